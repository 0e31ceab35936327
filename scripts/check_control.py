"""ControlNets and T2I-Adapters of every family against diffusers' own pipelines: the same noise, fp32 on the CPU.

    python scripts/check_control.py [--work DIR]

Random models of the true architecture (four levels and 13 residuals as SD 1.x, three and 10 as SDXL), as exported and
optimized for the CPU. Prints decibels; 60 and more is the same image but for the order of sums.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import sdort
from sdort.console import quiet_libraries
from sdort.generation.control_choice import ControlChoice

ROOT = Path(__file__).resolve().parents[1]
LIKE = 60.0
FAMILIES = ("sd1", "sd1 inpainting", "sdxl")
STEPS, SEED, SIDE = 4, 7, 128
PROMPT = "a red star"
SD1: dict[str, Any] = {
    "block_out_channels": (32, 64, 64, 64),
    "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
    "attention_head_dim": 4,
    "cross_attention_dim": 32,
}
SDXL: dict[str, Any] = {
    "block_out_channels": (32, 64, 64),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "attention_head_dim": [2, 4, 4],
    "cross_attention_dim": 80,
    "use_linear_projection": True,
    "transformer_layers_per_block": [1, 2, 2],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 24 + 6 * 8,
}
VAE: dict[str, Any] = {
    "block_out_channels": (8, 8, 8, 8),
    "norm_num_groups": 4,
    "layers_per_block": 1,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
}


def build(family: str, folder: Path) -> dict[str, Any]:
    """The parts of a diffusers pipeline with random weights, saved to ``folder``."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, EulerDiscreteScheduler, UNet2DConditionModel
    from support import models, tiny_pipeline, tiny_sdxl
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    torch.manual_seed(0)
    xl = family == "sdxl"
    config = SDXL if xl else SD1
    up = tuple(kind.replace("Down", "Up") for kind in config["down_block_types"][::-1])
    text = tiny_sdxl.TEXT if xl else {**tiny_pipeline.TEXT, "hidden_size": 32, "intermediate_size": 64}
    parts: dict[str, Any] = {
        "vae": AutoencoderKL(**VAE),
        "text_encoder": CLIPTextModel(CLIPTextConfig(**text)),
        "unet": UNet2DConditionModel(
            **config, up_block_types=up, sample_size=SIDE // 8, in_channels=9 if family == "sd1 inpainting" else 4
        ),
    }
    if xl:
        parts["text_encoder_2"] = CLIPTextModelWithProjection(CLIPTextConfig(**tiny_sdxl.TEXT_2))
    for part in parts.values():
        models.randomize(part.eval())
    parts["tokenizer"] = tiny_pipeline.byte_tokenizer(folder / "tokenizer")
    settings: dict[str, Any] = dict(tiny_pipeline.SCHEDULER)
    if xl:
        parts["tokenizer_2"] = tiny_pipeline.byte_tokenizer(folder / "tokenizer_2")
        settings = {key: value for key, value in settings.items() if key not in ("clip_sample", "set_alpha_to_one")}
    parts["scheduler"] = (EulerDiscreteScheduler if xl else DDIMScheduler)(**settings)
    plain = _pipeline("StableDiffusionXLPipeline" if xl else "StableDiffusionPipeline", parts)
    plain.save_pretrained(str(folder))
    return parts


def _pipeline(name: str, parts: dict[str, Any]) -> Any:
    import diffusers

    more: dict[str, Any] = {"add_watermarker": False} if "XL" in name else {"safety_checker": None}
    if "XL" not in name:
        more |= {"feature_extractor": None, "requires_safety_checker": False}
    if name == "StableDiffusionXLAdapterPipeline":
        more = {}
    with quiet_libraries():
        made = getattr(diffusers, name)(**parts, **more)
    made.set_progress_bar_config(disable=True)
    return made


def controls(family: str, folder: Path) -> dict[str, Any]:
    """Two ControlNets, and T2I-Adapters of each kind that the family has."""
    from diffusers import ControlNetModel, T2IAdapter
    from support import models

    config = SDXL if family == "sdxl" else SD1
    made: dict[str, Any] = {}
    for number in range(2):
        made[f"net{number}"] = ControlNetModel(**config, conditioning_embedding_out_channels=(4, 8, 8, 8))
    wide = list(config["block_out_channels"])
    kinds = {"full_adapter_xl": ([*wide, wide[-1]], 16)} if family == "sdxl" else {
        "full_adapter": (wide, 8),
        "light_adapter": (wide[:3], 8),
    }  # fmt: skip
    for kind, (channels, factor) in kinds.items():
        made[kind] = T2IAdapter(channels=channels, downscale_factor=factor, adapter_type=kind)
    for number, (name, model) in enumerate(made.items()):
        models.randomize(model.eval())
        for parameter in model.parameters():
            parameter.data *= 1 + 0.1 * number  # no two are equal
        model.save_pretrained(str(folder / name))
    return made


def theirs(
    family: str, parts: dict[str, Any], models: dict[str, Any], names: list[str], options: dict[str, Any]
) -> Any:
    """The image of diffusers' pipeline, [height, width, 3] in 0 to 255."""
    import torch

    kind = "ControlNet" if names[0].startswith("net") else "Adapter"
    xl = "XL" if family == "sdxl" else ""
    task, count = options.get("task", ""), options.get("num_images_per_prompt", 1)
    options = {key: value for key, value in options.items() if key != "task"}
    chosen = [models[name] for name in names]
    part = {"controlnet" if kind == "ControlNet" else "adapter": chosen[0] if len(chosen) == 1 else chosen}
    pictures = [picture(number) for number in range(len(names))]
    steering = pictures[0] if len(names) == 1 else pictures
    images = {"control_image": steering, "image": INIT} if task else {"image": steering}
    images |= {"mask_image": MASK} if task == "Inpaint" else {}
    generators = [torch.Generator().manual_seed(SEED + index) for index in range(count)]
    result = _pipeline(f"StableDiffusion{xl}{kind}{task}Pipeline", {**parts, **part})(
        PROMPT,
        **images,
        num_inference_steps=STEPS,
        guidance_scale=5.0,
        height=SIDE,
        width=SIDE,
        generator=generators if count > 1 else generators[0],
        output_type="np",
        **options,
    )
    made = np.concatenate([*result.images], axis=1) * 255
    # sdort leaves the original outside of the mask.
    return np.where(np.asarray(MASK)[..., None] > 0, made, np.asarray(INIT)) if task == "Inpaint" else made


def picture(number: int) -> Image.Image:
    """A random image of the generated size."""
    values = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    return Image.fromarray(values)


INIT = picture(100)
MASK = Image.fromarray(np.pad(np.full((48, 56), 255, np.uint8), ((24, 56), (40, 32))))
Case = tuple[str, list[str], list[tuple[float, float, float]], dict[str, Any], dict[str, Any]]


def cases(family: str) -> Iterator[Case]:
    """Title, models, each one's scale, start and end, and the options of diffusers and of sdort."""
    weight = "controlnet_conditioning_scale"
    yield from tasks(family)
    if family == "sd1 inpainting":
        return
    yield "ControlNet", ["net0"], [(0.8, 0, 1)], {weight: 0.8}, {}
    share = {"control_guidance_start": 0.25, "control_guidance_end": 0.75}
    yield "ControlNet, half of the steps", ["net0"], [(1, 0.25, 0.75)], {weight: 1.0, **share}, {}
    yield "two ControlNets", ["net0", "net1"], [(0.7, 0, 1), (0.5, 0, 1)], {weight: [0.7, 0.5]}, {}
    yield "guess mode", ["net0"], [(1, 0, 1)], {weight: 1.0, "guess_mode": True}, {"guess_mode": True}
    adapters = ["full_adapter_xl"] if family == "sdxl" else ["full_adapter", "light_adapter"]
    for name in adapters:
        yield f"T2I-Adapter {name}", [name], [(0.9, 0, 1)], {"adapter_conditioning_scale": 0.9}, {}
    if family == "sdxl":
        half = {"adapter_conditioning_scale": 1.0, "adapter_conditioning_factor": 0.5}
        yield "T2I-Adapter, half of the steps", adapters, [(1, 0, 0.5)], half, {}


def tasks(family: str) -> Iterator[Case]:
    """Cases that begin with an image; a UNet for inpainting does nothing else."""
    one: list[tuple[float, float, float]] = [(0.8, 0, 1)]
    begin: dict[str, Any] = {"controlnet_conditioning_scale": 0.8}
    masked: dict[str, Any] = {"init_image": INIT, "mask": MASK, "mask_blur": 0}
    yield "inpainting", ["net0"], one, {**begin, "task": "Inpaint", "strength": 1.0}, {**masked, "strength": 1.0}
    yield "inpainting 0.6", ["net0"], one, {**begin, "task": "Inpaint", "strength": 0.6}, {**masked, "strength": 0.6}
    if family == "sd1 inpainting":
        return
    again: dict[str, Any] = {"init_image": INIT, "strength": 0.6}
    yield "img2img", ["net0"], one, {**begin, "task": "Img2Img", "strength": 0.6}, again
    yield "two images at once", ["net0"], one, {**begin, "num_images_per_prompt": 2}, {"num_images": 2}


def check(family: str, folder: Path, cache: Path) -> Iterator[tuple[str, str, float, float]]:
    """Family, case, and decibels of the exported and of the optimized pipeline."""
    parts, models = build(family, folder / "pipeline"), controls(family, folder)
    for name in ("pipeline", *models):
        sdort.export(folder / name, folder / f"{name}.exported", cache_dir=cache, control=name == "pipeline")
        sdort.optimize(folder / f"{name}.exported", folder / f"{name}.fast", provider="cpu")
    pipelines = {kind: sdort.load(folder / f"pipeline.{kind}", provider="cpu") for kind in ("exported", "fast")}
    for title, names, numbers, their_options, options in cases(family):
        expected = theirs(family, parts, models, names, their_options)
        found = []
        for kind, pipeline in pipelines.items():
            chosen = [
                ControlChoice(folder / f"{name}.{kind}", picture(index), *numbers[index])
                for index, name in enumerate(names)
            ]
            made = pipeline.generate(PROMPT, steps=STEPS, guidance_scale=5.0, seed=SEED, control=chosen, **options)
            found.append(decibels(np.concatenate([image.pixels for image in made.images], axis=1), expected))
        yield family, title, found[0], found[1]


def decibels(ours: Any, expected: Any) -> float:
    """The peak signal-to-noise ratio of two images."""
    error = np.square(np.asarray(ours, np.float64) - np.round(expected)).mean()
    return float(10 * np.log10(255**2 / max(float(error), 1e-12)))


def main() -> None:
    """Check both families and print a table; the exit code is 1 if one is below the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="keep models and traces here; by default they are thrown away")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="one of all; can be repeated")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    worst = float("inf")
    with tempfile.TemporaryDirectory() as scratch:
        work = args.work or Path(scratch)
        for family in args.family or FAMILIES:
            folder = Path(scratch) / family
            folder.mkdir()
            for name, title, exported, fast in check(family, folder, work / "traces"):
                print(f"{name:14} {title:32} exported {exported:6.1f} dB   optimized {fast:6.1f} dB", flush=True)
                worst = min(worst, exported, fast)
    sys.exit(worst < LIKE)


if __name__ == "__main__":
    main()
