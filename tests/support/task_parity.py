"""Tasks that start from an image, by sdort and by diffusers' own pipelines from the same noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from support import models, tiny_pipeline, tiny_sdxl
from support.pipelines import locked

from sdort.exporter.command import export
from sdort.generation.job import plan_job
from sdort.generation.pipeline import TextToImage, load_pipeline
from sdort.generation.schedules.schedulers import load_scheduler
from sdort.providers.runtime_options import RuntimeOptions

Array = np.ndarray[Any, Any]


def with_tiny_vae(folder: Path, **options: Any) -> Any:
    """The tiny pipeline with an ``AutoencoderTiny`` of as many pixels a latent."""
    import torch
    from diffusers import AutoencoderTiny

    pipeline = tiny_pipeline.build_diffusers(folder, **options)
    torch.manual_seed(3)
    widths: dict[str, Any] = {f"{half}_block_out_channels": (8,) * 3 for half in ("encoder", "decoder")}
    vae = AutoencoderTiny(**widths, num_encoder_blocks=(1,) * 3, num_decoder_blocks=(1,) * 3).eval()
    models.randomize(vae)
    pipeline.register_modules(vae=vae)
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    pipeline.save_pretrained(str(folder))
    return pipeline


V_PREDICTION = {"prediction_type": "v_prediction"}
ONE_LEVEL: dict[str, Any] = {
    "block_out_channels": (16,),
    "down_block_types": ("CrossAttnDownBlock2D",),
    "up_block_types": ("CrossAttnUpBlock2D",),
}
"""Changes of the tiny UNet for families whose tasks differ in what is fed: its depth others have."""
FAMILIES: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "sd1": (tiny_pipeline.build_diffusers, {}, {}),
    "sd1 inpainting": (tiny_pipeline.build_diffusers, {**ONE_LEVEL, "in_channels": 9}, {}),
    "sd1 tiny vae": (with_tiny_vae, {}, {}),
    "sd2 v": (
        tiny_pipeline.build_diffusers,
        {**ONE_LEVEL, "use_linear_projection": True, "attention_head_dim": 2},
        V_PREDICTION,
    ),
    "sdxl": (tiny_sdxl.build_diffusers, {}, {}),
    "sdxl inpainting": (tiny_sdxl.build_diffusers, {**tiny_sdxl.ONE_LEVEL, "in_channels": 9}, {}),
}
"""Name -> what builds it, changes of its UNet's config, and of its scheduler's."""

TASKS: dict[str, dict[str, Any]] = {
    "img2img 0.6": {"strength": 0.6},
    "img2img 1": {"strength": 1.0},
    "inpaint 1": {"mask": True},
    "inpaint 0.6": {"mask": True, "strength": 0.6},
    "only masked": {"mask": True, "only_masked": True, "mask_padding": 6, "strength": 0.7, "mask_blur": 2},
    "hires": {"hires": 1.5, "hires_strength": 0.6},
}
"""Name -> options of sdort; with a mask, :func:`mask`."""


def families_of(task: str) -> list[str]:
    """The families that do a task: inpainting UNets do nothing but inpainting."""
    return [name for name in FAMILIES if "inpainting" not in name or "mask" in TASKS[task]]


@dataclass(frozen=True)
class Built:
    """A family's pipeline in diffusers, and as sdort exports it."""

    pipeline: Any
    folder: Path

    @property
    def side(self) -> int:
        """Pixels of the test images."""
        return 256 if "text_encoder_2" in self.pipeline.components else 64


def build(family: str, folder: Path, traces: Path, **options: Any) -> Built:
    """Build and export a family's tiny pipeline in ``folder``; ``options`` are the export's."""
    make, unet, settings = FAMILIES[family]
    pipeline = make(folder / "diffusers", unet=unet)
    # As in every checkpoint with PNDM; diffusers' inpainting pipeline sets it for all others.
    config = {**pipeline.scheduler.config, "skip_prk_steps": True, **settings}
    del config["_use_default_values"]  # of which from_config would take none
    pipeline.register_modules(scheduler=type(pipeline.scheduler).from_config(config))
    pipeline.scheduler.save_pretrained(folder / "diffusers" / "scheduler")
    with locked(traces):
        export(folder / "diffusers", folder / "onnx", cache_dir=traces, **options)
    return Built(pipeline, folder / "onnx")


def picture(side: int) -> Image.Image:
    """An image with edges and slopes, a little wider than high."""
    wide, high = side + side // 4, side
    rows, columns = np.mgrid[0:high, 0:wide]
    pixels = np.stack([rows * 255 // high, columns * 255 // wide, (rows * columns) % 256], axis=2).astype(np.uint8)
    image = Image.fromarray(pixels)
    ImageDraw.Draw(image).ellipse((wide // 4, high // 4, wide // 2, high // 2), fill=(240, 30, 60))
    return image


def mask(side: int) -> Image.Image:
    """A mask of :func:`picture`'s size, of no whole number of latents."""
    image = Image.new("L", (side + side // 4, side))
    third = side // 3
    ImageDraw.Draw(image).rectangle((third + 1, third - 2, 2 * third + 5, 2 * third + 3), fill=255)
    return image


@cache
def opened(folder: Path) -> TextToImage:
    """The pipeline of a folder that no test changes."""
    return load_pipeline(folder, RuntimeOptions("cpu"))


PROMPT, NEGATIVE, GUIDANCE = "a lighthouse at dusk", "people", 4.0


def ours(built: Built, task: str, **options: Any) -> list[Array]:
    """The images of sdort, uint8 [height, width, 3]."""
    settings = {"negative_prompt": NEGATIVE, "guidance_scale": GUIDANCE, **TASKS[task], **options}
    if "hires" not in settings:
        settings["init_image"] = picture(built.side)
    if settings.get("mask") is True:
        settings["mask"] = mask(built.side)
    settings = {"height": built.side, "width": built.side, **settings}
    job = plan_job(PROMPT, settings)  # type: ignore[arg-type]
    return [image.pixels for image in opened(built.folder).generate(job.requests[0])]


def theirs(built: Built, task: str, *, steps: int, seed: int, scheduler: str | None = None) -> Array:
    """The image of diffusers, uint8 [height, width, 3], with the original outside of the mask."""
    import torch

    options = TASKS[task]
    common = {
        "prompt": PROMPT,
        "negative_prompt": NEGATIVE,
        "guidance_scale": GUIDANCE,
        "num_inference_steps": steps,
        # diffusers' pipelines say 0, the scheduler itself 0.3.
        **({"eta": 0.3} if scheduler == "tcd" else {}),
        "generator": torch.Generator().manual_seed(seed),
    }
    loaded = load_scheduler(built.folder / "scheduler", scheduler)
    if "hires" in options:
        return _hires(built, options, common, loaded)
    shown = picture(built.side)
    if "mask" not in options:
        pipeline = variant(built, "Img2Img", loaded)
        size = {"image": shown.resize((built.side, built.side), Image.Resampling.LANCZOS)}
        return _pixels(pipeline(**common, **size, strength=options["strength"], output_type="np").images)
    pipeline = variant(built, "Inpaint", loaded)
    selected = pipeline.mask_processor.blur(mask(built.side), options.get("mask_blur", 4))
    padding = options.get("mask_padding")
    made = pipeline(
        **common,
        image=shown,
        mask_image=selected,
        height=built.side,
        width=built.side,
        strength=options.get("strength", 1.0),
        padding_mask_crop=padding,
        output_type="pil",
    ).images[0]
    if padding is None:
        images = pipeline.image_processor
        shown, selected = (images.resize(each, built.side, built.side) for each in (shown, selected))
        made = images.apply_overlay(selected, shown, made)
    return np.asarray(made)


def _hires(built: Built, options: Mapping[str, Any], common: Mapping[str, Any], scheduler: Any) -> Array:
    import torch

    first = variant(built, "", scheduler)
    latents = first(**common, height=built.side, width=built.side, output_type="latent").images
    sides = [round(side * options["hires"]) for side in latents.shape[2:]]
    larger = torch.nn.functional.interpolate(latents, size=sides, mode="bilinear")
    second = variant(built, "Img2Img", type(scheduler).from_config(scheduler.config))
    strength = options["hires_strength"]
    return _pixels(second(**common, image=larger, strength=strength, output_type="np").images)


def _pixels(images: Any) -> Array:
    return np.asarray((images[0] * 255).round().astype(np.uint8))


def variant(built: Built, kind: str, scheduler: Any) -> Any:
    """Diffusers' pipeline of the same components for another task: ``Img2Img``, ``Inpaint`` or text alone."""
    import diffusers

    xl = "text_encoder_2" in built.pipeline.components
    made = getattr(diffusers, f"StableDiffusion{'XL' if xl else ''}{kind}Pipeline")
    parts = {name: part for name, part in built.pipeline.components.items() if part is not None}
    parts["scheduler"] = scheduler
    if not xl:
        parts |= {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    pipeline = made(**parts, **({"add_watermarker": False} if xl else {}))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
