"""AUTOMATIC1111 with sdort's UNets: save as extensions/sdort/scripts/a1111_sdort.py, with sdort in its environment.

Optimized models are folders in models/sdort; one that is named as a checkpoint is chosen with it (Settings, SD Unet).
"""

import sys
from pathlib import Path

from modules import paths_internal, script_callbacks, sd_unet

from sdort.integrations.comfyui.unet_folder import load_denoiser


class Option(sd_unet.SdUnetOption):
    def __init__(self, folder):
        self.folder, self.model_name, self.label = folder, folder.name, f"[sdort] {folder.name}"

    def create_unet(self):
        return Unet(self.folder)


class Unet(sd_unet.SdUnet):
    def __init__(self, folder):
        super().__init__()
        self.folder, self.denoiser = folder, None

    def activate(self):
        self.denoiser = load_denoiser(self.folder)

    def deactivate(self):
        self.denoiser = None

    def forward(self, x, timesteps, context, *args, y=None, **kwargs):
        if getattr(sys.modules.get("networks"), "loaded_networks", None):
            raise RuntimeError("a LoRA of the prompt does not reach sdort's UNet: optimize an export with it (--lora)")
        return self.denoiser(x, timesteps, context=context, y=y)


def list_unets(found):
    files = sorted(Path(paths_internal.models_path, "sdort").glob("*/unet/model.onnx"))
    found.extend(Option(file.parents[1]) for file in files)


script_callbacks.on_list_unets(list_unets)
