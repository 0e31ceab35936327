"""SD.Next with sdort's UNet: save as extensions/sdort/scripts/sdnext_sdort.py, with sdort in SD.Next's environment."""

import re

import gradio as gr
from modules import scripts_manager, shared

from sdort.integrations.torch import load_unet

COMPARED = ("in_channels", "cross_attention_dim", "addition_embed_type", "block_out_channels")


class Script(scripts_manager.Script):
    folder, pipeline, own = "", None, None  # where sdort's UNet is in place, and the one that was there before

    def title(self):
        return "sdort"

    def show(self, is_img2img):
        return scripts_manager.AlwaysVisible

    def ui(self, is_img2img):
        return [gr.Textbox(label="sdort: folder of the optimized model; empty: SD.Next's own UNet")]

    def process(self, p, folder):
        if Script.own is not None and (folder, shared.sd_model) != (Script.folder, Script.pipeline):
            Script.pipeline.register_modules(unet=Script.own)
            Script.own = None
        if folder and re.search("<(lora|lyco):", " ".join(p.all_prompts)):  # with the styles' texts
            raise RuntimeError("a LoRA of the prompt does not reach sdort's UNet: optimize an export with it (--lora)")
        if folder and Script.own is None:
            unet, own = load_unet(folder), shared.sd_model.unet
            other = [name for name in COMPARED if unet.config.get(name) != own.config.get(name)]
            if other:
                raise RuntimeError(f"{folder} is of another family than the model that is loaded: {', '.join(other)}")
            Script.folder, Script.pipeline, Script.own = folder, shared.sd_model, own
            shared.sd_model.register_modules(unet=unet)
