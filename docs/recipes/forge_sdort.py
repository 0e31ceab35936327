"""Forge with sdort's UNet: save as extensions/sdort/scripts/forge_sdort.py, with sdort in Forge's environment."""

import re

import gradio as gr
import torch
from modules import scripts

from sdort.integrations.comfyui.unet_folder import load_denoiser


class Script(scripts.Script):
    folder, denoiser = "", None

    def title(self):
        return "sdort"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        return [gr.Textbox(label="sdort: folder of the optimized model; empty: Forge's own UNet")]

    def process_before_every_sampling(self, p, folder, **kwargs):
        if folder != Script.folder:
            Script.folder, Script.denoiser = "", None  # before the other one is there
            Script.denoiser = load_denoiser(folder) if folder else None
            Script.folder = folder
        if not folder:
            return
        prompts = [*p.all_prompts, *(getattr(p, "all_hr_prompts", None) or [])]
        if re.search("<(lora|lyco):", " ".join(prompts)):
            raise RuntimeError("a LoRA of the prompt does not reach sdort's UNet: optimize an export with it (--lora)")
        unet = p.sd_model.forge_objects.unet.clone()
        unet.set_model_unet_function_wrapper(lambda _, step: self.step(unet.model.predictor, step))
        p.sd_model.forge_objects.unet = unet

    def step(self, predictor, step):
        x, sigma, given = step["input"], step["timestep"], dict(step["c"])
        scaled, beside = predictor.calculate_input(sigma, x), given.pop("c_concat", None)
        scaled = scaled if beside is None else torch.cat([scaled, beside], 1)
        made = Script.denoiser(scaled, predictor.timestep(sigma).float(), context=given.pop("c_crossattn"), **given)
        return predictor.calculate_denoised(sigma, made.float(), x)
