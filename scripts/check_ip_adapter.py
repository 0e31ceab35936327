"""IP-Adapters of each kind and family against diffusers' own pipelines: the same noise and images, fp32 on the CPU.

    python scripts/check_ip_adapter.py [--family sd1|sdxl]... [--kind plain|plus]... [--task NAME]... [--traces DIR]

Random models of the true architecture, as exported and optimized for the CPU, in fp32 and in fp16. Prints decibels; in
fp32 60 and more is the same image but for the order of sums, and fp16 has 11 bits. The exit code is 1 if one is below
its limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Arguments
from PIL import Image

import sdort
from sdort.console import quiet_libraries
from sdort.generation.requests.control_choice import ControlChoice
from sdort.generation.requests.ip_adapter_choice import IpAdapterChoice
from sdort.verification.metrics import psnr

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {"exported": 60.0, "fast": 60.0, "half": 40.0}
"""Lowest decibels of the exported and the optimized pipelines, in fp32 and in fp16."""
FORMS: dict[str, dict[str, Any]] = {"fast": {}, "half": {"fp16": True}}
KINDS, SCALE = ("plain", "plus"), 0.8
STEPS, SEED, SIDE = 4, 7, 64
GUIDANCE, STRENGTH = 5.0, 0.6
PROMPT, NEGATIVE = "a red star", "dull"


def build(family: str, folder: Path) -> dict[str, Any]:
    """The parts of a diffusers pipeline and a ControlNet, with random weights, saved to folders of ``folder``."""
    from diffusers import ControlNetModel
    from support import models, tiny_pipeline, tiny_sdxl
    from support.tiny_ip_adapter import build_image_encoder, build_ip_adapter

    tiny = tiny_sdxl if family == "sdxl" else tiny_pipeline
    made = tiny.build_diffusers(folder / "model")
    parts = {name: part for name, part in made.components.items() if part is not None}
    config = {key: value for key, value in tiny.UNET.items() if key not in ("sample_size", "up_block_types")}
    halvings = (16, 32, 32, 32, 32, 32) if family == "sdxl" else (4, 8, 8)
    allowed = set(ControlNetModel.__init__.__annotations__)
    config = {key: value for key, value in config.items() if key in allowed}
    parts["controlnet"] = ControlNetModel(**config, conditioning_embedding_out_channels=halvings)
    models.randomize(parts["controlnet"].eval())
    parts["controlnet"].save_pretrained(str(folder / "control"))
    parts["image_encoder"] = build_image_encoder(folder / "image_encoder")
    for kind in KINDS:
        build_ip_adapter(folder / f"{kind}.safetensors", parts["unet"], kind, parts["image_encoder"])
    return parts


def picture(number: int, side: int) -> Image.Image:
    """A random image."""
    values = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    return Image.fromarray(values)


TASKS = {"text": "", "img2img": "Img2Img", "inpaint": "Inpaint", "ControlNet": "ControlNet"}
"""Task -> the part of diffusers' class name that says it."""


def theirs(family: str, task: str, parts: dict[str, Any], folder: Path, scales: list[float], side: int) -> Any:
    """The image of diffusers' pipeline, [height, width, 3] in 0 to 255."""
    import diffusers
    import torch
    from support.tiny_ip_adapter import ENCODER, published_state
    from transformers import CLIPImageProcessorPil

    size = ENCODER["image_size"]
    name = f"StableDiffusion{'XL' if family == 'sdxl' else ''}{TASKS[task]}Pipeline"
    used = {key: part for key, part in parts.items() if key != "controlnet" or task == "ControlNet"}
    more: dict[str, Any] = {"add_watermarker": False} if family == "sdxl" else {"safety_checker": None}
    more |= {} if family == "sdxl" else {"requires_safety_checker": False}
    inputs: dict[str, Any] = {"height": side, "width": side}
    if task == "ControlNet":
        inputs["image"] = picture(1, side)
    if task in ("img2img", "inpaint"):
        inputs = {"image": picture(1, side), "strength": STRENGTH}
    if task == "inpaint":
        inputs |= {"mask_image": mask(side), "height": side, "width": side}
    # Of what it is given the pipeline changes the UNet.
    with quiet_libraries():
        used["unet"] = diffusers.UNet2DConditionModel.from_pretrained(folder / "model" / "unet")
        made = getattr(diffusers, name)(
            **used, **more, feature_extractor=CLIPImageProcessorPil(size=size, crop_size=size)
        )
        made.set_progress_bar_config(disable=True)
        states = [published_state(folder / f"{kind}.safetensors") for kind in KINDS]
        made.load_ip_adapter(states, subfolder=["", ""], weight_name=["", ""])
        made.set_ip_adapter_scale(scales)
        result = made(
            PROMPT, negative_prompt=NEGATIVE, num_inference_steps=STEPS, guidance_scale=GUIDANCE,
            ip_adapter_image=[picture(0, 50)] * len(KINDS), generator=torch.Generator().manual_seed(SEED),
            output_type="np", **inputs,
        )  # fmt: skip
    return inside(task, result.images[0] * 255)


def inside(task: str, image: Any) -> Any:
    """What the mask of ``inpaint`` selects: sdort leaves the rest of the photograph as it is, diffusers does not."""
    return image[:, : image.shape[1] // 2] if task == "inpaint" else image


def mask(side: int) -> Image.Image:
    """A mask whose left half is white."""
    values = np.zeros((side, side), np.uint8)
    values[:, : side // 2] = 255
    return Image.fromarray(values)


def ours(pipeline: Any, task: str, control: Path, scales: list[float], side: int) -> Any:
    """The image of sdort, [height, width, 3] in 0 to 255."""
    options: dict[str, Any] = {}
    if task == "ControlNet":
        options["control"] = [ControlChoice(control, picture(1, side))]
    if task in ("img2img", "inpaint"):
        options |= {"init_image": picture(1, side), "strength": STRENGTH}
    if task == "inpaint":
        options |= {"mask": mask(side), "mask_blur": 0}
    made = pipeline.generate(
        PROMPT, negative_prompt=NEGATIVE, steps=STEPS, guidance_scale=GUIDANCE, seed=SEED, height=side, width=side,
        ip_adapter_image=[IpAdapterChoice(picture(0, 50), scale) for scale in scales], **options,
    )  # fmt: skip
    return inside(task, made.images[0].pixels)


def check(family: str, folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Kind and task, and the decibels of each form of the pipeline, in which the other kind's scale is 0."""
    parts = build(family, folder)
    side = SIDE * (4 if family == "sdxl" else 1)
    controlled = "ControlNet" in args.task
    adapters: dict[str, Any] = {"ip_adapter": [folder / f"{kind}.safetensors" for kind in KINDS]}
    for part, more in (("model", {**adapters, "control": controlled}), ("control", {})):
        if part == "model" or controlled:
            sdort.export(folder / part, folder / f"{part}.exported", cache_dir=args.traces, **more)
            for form, options in FORMS.items():
                sdort.optimize(folder / f"{part}.exported", folder / f"{part}.{form}", provider="cpu", **options)
    loaded = {form: sdort.load(folder / f"model.{form}", provider="cpu") for form in LIMITS}
    for kind in args.kind:
        scales = [SCALE * (each == kind) for each in KINDS]
        for task in args.task:
            expected = theirs(family, task, parts, folder, scales, side)
            found = {
                form: psnr(ours(pipeline, task, folder / f"control.{form}", scales, side), np.round(expected))
                for form, pipeline in loaded.items()
            }
            yield kind, task, found


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__)
    for option, choices in (("--family", ("sd1", "sdxl")), ("--kind", KINDS), ("--task", tuple(TASKS))):
        parser.add_argument(option, action="append", choices=choices, help="only this one (repeatable)")
    parser.add_argument("--traces", type=Path, help="keep the exporter's traces here; by default they are thrown away")
    args = parser.parse_args()
    args.family, args.kind = args.family or ["sd1", "sdxl"], args.kind or list(KINDS)
    args.task = args.task or list(TASKS)
    return args


def main() -> int:
    """Check and print a table; 1 if something is below its limit."""
    args = arguments()
    sys.path.insert(0, str(ROOT / "tests"))
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        args.traces = args.traces or Path(scratch) / "traces"
        for family in args.family:
            folder = Path(scratch) / family
            folder.mkdir()
            for kind, task, found in check(family, folder, args):
                numbers = "   ".join(f"{form} {value:6.1f} dB" for form, value in found.items())
                print(f"{family:5} {kind:6} {task:10} {numbers}", flush=True)
                failed = failed or not all(value >= LIMITS[form] for form, value in found.items())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
