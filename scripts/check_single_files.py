"""Exports tiny models of every family as single files and as diffusers folders, and compares the results byte by byte.

    python scripts/check_single_files.py WORK [NAME ...]

The models have the published structure, CLIP's own vocabulary and random weights; nothing but the file is given to
``sdort export``. A row says which files differ, and whether the images do; configs are compared by what shapes a graph.
A NAME is a family, or a part that has files of its own: controlnet, vae, taesd. The exit code is 1 if something
differs.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
import torch
from diffusers import AutoencoderKL, AutoencoderTiny, ControlNetModel, UNet2DConditionModel
from support.ldm_files import (
    State,
    ldm_control,
    ldm_unet,
    ldm_vae,
    load_part,
    old_clip_names,
    open_clip,
    save,
    with_prefix,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

import sdort
from sdort.pipelines.checkpoints.clip_merges import read_clip_merges
from sdort.pipelines.checkpoints.releases import DDIM_V, EULER, PNDM
from sdort.pipelines.clip_tokenizer import EOS, write_clip_tokenizer
from sdort.pipelines.configs import write_json
from sdort.verification.metrics import psnr

CROSS, PLAIN = "CrossAttnDownBlock2D", "DownBlock2D"
UP, PLAIN_UP = "CrossAttnUpBlock2D", "UpBlock2D"
TEXT: dict[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 1,
    "num_hidden_layers": 2,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
UNET: dict[str, Any] = {
    "block_out_channels": (64, 128),
    "layers_per_block": 1,
    "down_block_types": (CROSS, PLAIN),
    "up_block_types": (PLAIN_UP, UP),
    "cross_attention_dim": 64,
}
SD2 = {**UNET, "use_linear_projection": True, "attention_head_dim": [1, 2]}
XL = {**SD2, "down_block_types": (PLAIN, CROSS), "up_block_types": (UP, PLAIN_UP), "addition_embed_type": "text_time"}
XL |= {"addition_time_embed_dim": 256, "transformer_layers_per_block": [1, 2]}
FAMILIES: dict[str, dict[str, Any]] = {
    "sd1": UNET,
    "sd1 inpainting": {**UNET, "in_channels": 9},
    "sd2": SD2,
    "sd2 v": SD2,
    "sd2 inpainting": {**SD2, "in_channels": 9},
    "sdxl": {**XL, "cross_attention_dim": 128, "projection_class_embeddings_input_dim": 64 + 6 * 256},
    "refiner": {**XL, "projection_class_embeddings_input_dim": 64 + 5 * 256, "transformer_layers_per_block": 2},
}
VAE: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
DRAWN = ("sd1", "sd2", "sd2 v", "sdxl")
"""Families that make an image of text alone."""
INPAINT = "StableDiffusionInpaintPipeline"
XL_CLASSES = {"sdxl": "StableDiffusionXLPipeline", "refiner": "StableDiffusionXLImg2ImgPipeline"}
CLASSES = {"sd1 inpainting": INPAINT, "sd2 inpainting": INPAINT, **XL_CLASSES}


def build(family: str, folder: Path) -> None:
    """Save the parts of a family as diffusers does."""
    torch.manual_seed(0)
    scale = 0.13025 if family in XL_CLASSES else 0.18215
    vae = AutoencoderKL(**VAE, scaling_factor=scale)
    parts: dict[str, Any] = {"unet": UNet2DConditionModel(**FAMILIES[family]), "vae": vae}
    if family != "refiner":
        activation = "gelu" if family.startswith("sd2") else "quick_gelu"
        projection = 512 if family.startswith("sd2") else 768
        config = CLIPTextConfig(**TEXT, hidden_act=activation, projection_dim=projection)
        parts["text_encoder"] = CLIPTextModel(config)
    if family in XL_CLASSES:
        config = CLIPTextConfig(**TEXT, hidden_act="gelu", projection_dim=64)
        parts["text_encoder_2"] = CLIPTextModelWithProjection(config)
    index: dict[str, Any] = {"_class_name": CLASSES.get(family, "StableDiffusionPipeline")}
    for name, part in parts.items():
        part.save_pretrained(folder / name)
        index[name] = ["diffusers" if name in ("unet", "vae") else "transformers", type(part).__name__]
        if name.startswith("text"):
            tokenizer = name.replace("text_encoder", "tokenizer")
            index[tokenizer] = ["transformers", "CLIPTokenizer"]
            pad = "!" if part.config.hidden_act == "gelu" else EOS  # as published
            write_clip_tokenizer(folder / tokenizer, read_clip_merges(), pad)
    scheduler = EULER if family in XL_CLASSES else DDIM_V if family == "sd2 v" else PNDM
    index["scheduler"] = ["diffusers", scheduler["_class_name"]]
    (folder / "scheduler").mkdir()
    write_json(folder / "scheduler" / "scheduler_config.json", scheduler)
    write_json(folder / "model_index.json", index)


def write_file(family: str, folder: Path, path: Path) -> None:
    """Write the parts in the original layout."""
    state = with_prefix("model.diffusion_model.", ldm_unet(load_part(folder / "unet"), 1))
    state |= with_prefix("first_stage_model.", ldm_vae(load_part(folder / "vae")))
    if family.startswith("sd2"):
        state |= with_prefix("cond_stage_model.model.", open_clip(load_part(folder / "text_encoder")))
    elif family != "refiner":
        prefix = "conditioner.embedders.0.transformer." if family == "sdxl" else "cond_stage_model.transformer."
        state |= with_prefix(prefix, old_clip_names(load_part(folder / "text_encoder")))
    if family in XL_CLASSES:
        prefix = f"conditioner.embedders.{int(family == 'sdxl')}.model."
        state |= with_prefix(prefix, open_clip(load_part(folder / "text_encoder_2")))
    # Of tiny UNets no tensor tells what they predict.
    notes = {"modelspec.prediction_type": "v" if family == "sd2 v" else "epsilon"} if family.startswith("sd2") else {}
    save(state, path, **notes)


def draw(folder: Path) -> str:
    """Whether both exports draw the same image."""
    one, two = (
        sdort.run(
            folder / name,
            "a cat in a hat",
            provider="cpu",
            steps=2,
            seed=3,
            height=64,
            width=64,
            output=folder / f"{name}.png",
        )
        .images[0]
        .pixels
        for name in ("one", "two")
    )
    same = "the same image" if np.array_equal(one, two) else f"other images, {psnr(one, two):.0f} dB"
    return f"{same} (deviation {one.std():.0f})"


def differences(one: Path, two: Path) -> str:
    """Which graphs and weights of two exports differ, in words."""
    files, others = ({path.relative_to(out) for path in out.rglob("model.onnx*")} for out in (one, two))
    differ = files ^ others | {
        file for file in files & others if (one / file).read_bytes() != (two / file).read_bytes()
    }
    return f"differ: {', '.join(sorted(map(str, differ)))}" if differ else f"{len(files)} files are equal"


def check(family: str, folder: Path) -> list[str]:
    """The row of a family."""
    (folder / "diffusers").mkdir()
    build(family, folder / "diffusers")
    write_file(family, folder / "diffusers", folder / "file.safetensors")
    sdort.export(folder / "diffusers", folder / "one")
    start = time.perf_counter()
    report = sdort.export(folder / "file.safetensors", folder / "two")
    seconds = time.perf_counter() - start
    drawn = draw(folder) if family in DRAWN else "no image"
    traced = [component.name for component in report.components if component.traced]
    verdict = differences(folder / "one", folder / "two")
    return [f"{report.pipeline:36} {verdict}; {drawn}; traced: {', '.join(traced) or 'none'}; {seconds:.1f} s"]


def check_part(folder: Path, layouts: dict[str, dict[str, State]]) -> list[str]:
    """Rows of a part whose diffusers folder is ``folder/diffusers``: layout -> names of its files -> tensors."""
    sdort.export(folder / "diffusers", folder / "one")
    rows = []
    for number, (layout, files) in enumerate(layouts.items()):
        place = folder / str(number)
        place.mkdir()
        for name, state in files.items():
            save(state, place / f"{name}.safetensors")
        sdort.export(place / f"{next(iter(files))}.safetensors", place / "two")
        rows.append(f"{layout:36} {differences(folder / 'one', place / 'two')}")
    return rows


def check_controlnet(folder: Path) -> list[str]:
    """A ControlNet of SD 1.x in the original's names, with and without their prefix, and in diffusers'."""
    torch.manual_seed(0)
    ControlNetModel(**{name: value for name, value in UNET.items() if name != "up_block_types"}).save_pretrained(
        folder / "diffusers"
    )
    state = load_part(folder / "diffusers")
    original = ldm_control(state, 1)
    layouts = {"control_model.": with_prefix("control_model.", original), "original": original, "diffusers": state}
    return check_part(folder, {layout: {"control": tensors} for layout, tensors in layouts.items()})


def check_vae(folder: Path) -> list[str]:
    """A VAE in the original's names, with and without their prefix, and in diffusers'."""
    torch.manual_seed(0)
    AutoencoderKL(**VAE, scaling_factor=0.18215).save_pretrained(folder / "diffusers")
    state = load_part(folder / "diffusers")
    original = ldm_vae(state)
    layouts = {"first_stage_model.": with_prefix("first_stage_model.", original), "original": original}
    return check_part(folder, {layout: {"vae": state} for layout, state in {**layouts, "diffusers": state}.items()})


def check_taesd(folder: Path) -> list[str]:
    """TAESD in its own two files, and in diffusers' one."""
    torch.manual_seed(0)
    AutoencoderTiny().save_pretrained(folder / "diffusers")
    state = load_part(folder / "diffusers")
    halves: dict[str, State] = {"taesd_decoder": {}, "taesd_encoder": {}}
    for name, tensor in state.items():
        half, _, number, rest = name.split(".", 3)
        # The original's decoder begins with a clamp and a function, of which diffusers counts one.
        halves[f"taesd_{half}"][f"{int(number) + (half == 'decoder')}.{rest}"] = tensor
    return check_part(folder, {"original": halves, "diffusers": {"taesd": state}})


PARTS = {"controlnet": check_controlnet, "vae": check_vae, "taesd": check_taesd}


def main() -> int:
    """Print all rows; the exit code."""
    rows = []
    for name in sys.argv[2:] or [*FAMILIES, *PARTS]:
        folder = Path(sys.argv[1]) / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found = PARTS[name](folder) if name in PARTS else check(name, folder)
        rows += found
        print("\n".join(f"{name:16} {row}" for row in found), flush=True)
    return int(any("differ:" in row or "other images" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
