"""Checkpoints as they are published: each is described with its own weights, or refused in a sentence before the work.

No graph is traced, and no image drawn: what a layout decides is read from the files' headers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, DiffusionPipeline, UNet2DConditionModel
from PIL import Image
from safetensors.torch import load_file, save_file
from support.ldm_files import averaged, ldm_unet, ldm_vae, old_clip_names, open_clip, save, with_prefix
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

import sdort
from sdort.checkpoints.configs import INDEX
from sdort.demo import DEMO_FOLDER
from sdort.errors import BadModelError, SdortError
from sdort.exporter import open_source
from sdort.files.user_folders import models_folder
from sdort.first_use import making
from sdort.first_use.given_checkpoint import downloaded, find_checkpoint
from sdort.first_use.making_plan import Making

State = dict[str, torch.Tensor]
ONE, ALONE = "diffusion_pytorch_model", "model"
PARTS = {"unet": ONE, "vae": ONE, "text_encoder": ALONE}
"""Folder of a component -> the stem of the names of its weights."""


def to_half(folder: Path, *parts: str, keep: bool = False) -> None:
    """Let parts have their weights in a variant, as ``save_pretrained(variant="fp16")`` names it."""
    for part in parts:
        path = folder / part / f"{PARTS[part]}.safetensors"
        state = {name: tensor.half() for name, tensor in load_file(path).items()}
        save_file(state, path.with_name(f"{PARTS[part]}.fp16.safetensors"))
        if not keep:
            path.unlink()


def to_shards(folder: Path, part: str, middle: str = "", lost: bool = False) -> None:
    """Let a part have its weights in two files with an index."""
    path = folder / part / f"{PARTS[part]}.safetensors"
    state = load_file(path)
    names = sorted(state)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    files = [f"{PARTS[part]}{middle}-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, half in zip(files, halves, strict=True):
        save_file({name: state[name] for name in half}, path.with_name(file))
    index = {
        "metadata": {},
        "weight_map": {name: file for file, half in zip(files, halves, strict=True) for name in half},
    }
    path.with_name(f"{PARTS[part]}.safetensors.index{middle}.json").write_text(json.dumps(index))
    path.unlink()
    if lost:
        path.with_name(files[1]).unlink()


def all_to_shards(folder: Path, middle: str = "") -> None:
    for part in PARTS:
        to_shards(folder, part, middle)


def edit_index(folder: Path, **entries: Any) -> None:
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**index, **entries}))


def without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            shutil.rmtree(folder / name)

    return change


def name_lost_parts(folder: Path) -> None:
    edit_index(
        folder,
        safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"],
        feature_extractor=["transformers", "CLIPImageProcessor"],
    )


def to_pickles(folder: Path) -> None:
    for part, stem in PARTS.items():
        path = folder / part / f"{stem}.safetensors"
        torch.save(load_file(path), path.with_name("pytorch_model.bin" if stem == ALONE else f"{ONE}.bin"))
        path.unlink()


FOLDERS: dict[str, tuple[Callable[[Path], object], str | None]] = {
    "plain": (lambda folder: None, None),
    "variant": (lambda folder: to_half(folder, *PARTS), None),
    "both": (lambda folder: to_half(folder, *PARTS, keep=True), None),
    "variant of the UNet alone": (lambda folder: to_half(folder, "unet"), None),
    "variant of all but the UNet": (lambda folder: to_half(folder, "vae", "text_encoder"), None),
    "shards": (all_to_shards, None),
    "shards of a variant": (lambda folder: all_to_shards(folder, ".fp16"), None),
    "no checker and no extractor": (name_lost_parts, None),
    "no scheduler": (without("scheduler"), "scheduler is missing or empty"),
    "no tokenizer": (without("tokenizer"), r"tokenizer.vocab\.json: No such file"),
    "no VAE": (without("vae"), r"vae.config\.json: No such file"),
    "a VAE that is null": (lambda folder: edit_index(folder, vae=[None, None]), r"has no VAE(.|\n)*model --vae DIR"),
    "a lost shard": (lambda folder: to_shards(folder, "unet", lost=True), "a shard that .* names, is missing"),
    "pickles": (to_pickles, r"a pickle(.|\n)*sdort export \S+ model --allow-pickle\n.*optimize"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "shapes"
    shutil.copytree(DEMO_FOLDER, made)
    return made


def plan(model: Path, **options: Any) -> Any:
    found = sdort.plan_run(model, "a star", provider="cpu", output=model.with_name("out.png"), **options)
    return found.making


def nothing_is_kept() -> bool:
    return not models_folder().is_dir() or not any(models_folder().iterdir())


@pytest.mark.parametrize("layout", FOLDERS)
def test_folders(layout: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, problem = FOLDERS[layout]
    change(folder)
    if problem:
        with pytest.raises(SdortError, match=problem):
            plan(folder)
        assert nothing_is_kept()
        return
    assert plan(folder).bytes
    checkpoint = find_checkpoint(folder)
    with making._opened(checkpoint, Making((), "cpu"), None) as opened:
        for part, stem in PARTS.items():
            expected = load_file(DEMO_FOLDER / part / f"{stem}.safetensors")
            found = {name: weight.load() for name, weight in opened.adaptation.tensors[part].items()}
            assert found.keys() == expected.keys()
            for name, values in found.items():
                assert np.array_equal(values, expected[name].to(torch.from_numpy(values).dtype).numpy()), name


@pytest.mark.parametrize("published", ["", "fp16", "pickles"])
def test_what_the_hub_has(published: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for diffusers' download, which raises where the weights that are asked for are not there."""
    asked: list[str | None] = []

    def download(_: str, *, variant: str | None, use_safetensors: bool | None) -> Path:
        asked.append(variant)
        assert use_safetensors
        if published == (variant or ""):
            return tmp_path
        raise OSError(f"Could not find the necessary `safetensors` weights in {{'a'}} (variant={variant})")

    monkeypatch.setattr(open_source, "run_worker", lambda _, task: open_source.download(**task))
    monkeypatch.setattr(DiffusionPipeline, "download", download)
    checkpoint = find_checkpoint("owner/name")
    if published == "pickles":
        words = r"owner/name has no safetensors on the hub(.|\n)*sdort export owner/name model --allow-pickle\n"
        with pytest.raises(BadModelError, match=words):
            downloaded(checkpoint)
    else:
        assert downloaded(checkpoint).path == tmp_path
    assert asked == ([None] if not published else [None, "fp16"])


TOKENS, WIDTH = 49408, 8
BLOCKS: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
LINEAR: dict[str, Any] = {"use_linear_projection": True, "attention_head_dim": [1, 1]}
XL: dict[str, Any] = {**LINEAR, "addition_embed_type": "text_time", "addition_time_embed_dim": 256}
LEVELS = 4


def shaped(make: Callable[[], Any]) -> State:
    """Ones in the shapes of a model's parameters: a norm whose scales are 0 would be one of differences."""
    with torch.device("meta"):
        state = make().state_dict()
    return {name: torch.ones(tensor.shape) for name, tensor in state.items()}


@cache
def unet(inputs: int = 4, linear: bool = False, pooled: int = 0, context: int = WIDTH) -> State:
    """A UNet's tensors, behind the original's names; ``pooled`` is the width of what an SDXL's takes beside."""
    config = {**BLOCKS, "in_channels": inputs, "cross_attention_dim": context}
    config |= {**XL, "projection_class_embeddings_input_dim": pooled} if pooled else LINEAR if linear else {}
    return with_prefix("model.diffusion_model.", ldm_unet(shaped(lambda: UNet2DConditionModel(**config)), 1))


@cache
def vae() -> State:
    config: dict[str, Any] = {
        "block_out_channels": (32,) * LEVELS,
        "down_block_types": ("DownEncoderBlock2D",) * LEVELS,
        "up_block_types": ("UpDecoderBlock2D",) * LEVELS,
    }
    return with_prefix("first_stage_model.", ldm_vae(shaped(lambda: AutoencoderKL(**config))))


@cache
def text(prefix: str, kind: str = "clip") -> State:
    config = CLIPTextConfig(
        vocab_size=TOKENS, hidden_size=WIDTH, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        projection_dim=WIDTH,
    )  # fmt: skip
    state = shaped(lambda: (CLIPTextModelWithProjection if kind == "big" else CLIPTextModel)(config))
    return with_prefix(prefix, old_clip_names(state) if kind == "clip" else open_clip(state))


CLIP, CLIP_XL = "cond_stage_model.transformer.", "conditioner.embedders.0.transformer."
OPEN, BIG, REFINERS = "cond_stage_model.model.", "conditioner.embedders.1.model.", "conditioner.embedders.0.model."


def sdxl(inputs: int = 4) -> State:
    base = unet(inputs, pooled=WIDTH + 6 * 256, context=2 * WIDTH)
    return {**base, **vae(), **text(CLIP_XL), **text(BIG, "big")}


def sd1(inputs: int = 4) -> State:
    return {**unet(inputs), **vae(), **text(CLIP)}


def refiner() -> State:
    return {**unet(pooled=WIDTH + 5 * 256), **vae(), **text(REFINERS, "big")}


def with_averages() -> State:
    own = {name.removeprefix("model.diffusion_model."): tensor for name, tensor in unet().items()}
    return {**sd1(), **averaged(own), "model_ema.decay": torch.ones(1)}


def of_dtype(dtype: torch.dtype) -> Callable[[], State]:
    return lambda: {name: value.to(dtype) if value.is_floating_point() else value for name, value in sd1().items()}


MASKED = {"init_image": "image.png", "mask": "image.png"}
FILES: dict[str, tuple[Callable[[], State], dict[str, str], str | None]] = {
    "SD 1.x": (sd1, {}, None),
    "SD 1.x in fp16": (of_dtype(torch.float16), {}, None),
    "SD 1.x in bf16": (of_dtype(torch.bfloat16), {}, None),
    "SD 1.x in fp8": (of_dtype(torch.float8_e4m3fn), {}, "a quantized format"),
    "SD 1.x with averages": (with_averages, {}, None),
    "SD 1.x inpainting": (lambda: sd1(9), MASKED, None),
    "SD 1.x inpainting without a mask": (lambda: sd1(9), {}, "an inpainting model, which wants a mask"),
    "SD 2.x": (lambda: {**unet(linear=True), **vae(), **text(OPEN, "open")}, {}, None),
    "SDXL": (sdxl, {}, None),
    "SDXL inpainting without a mask": (lambda: sdxl(9), {}, "an inpainting model"),
    "SDXL's refiner": (refiner, {"init_image": "image.png"}, None),
    "SDXL's refiner without an image": (refiner, {}, r"file\.safetensors is SDXL's refiner, which works on an image"),
    "no VAE": (lambda: {**unet(), **text(CLIP)}, {}, r"has no VAE, so(.|\n)*model --vae DIR\|FILE\n"),
    "no text encoder": (lambda: {**unet(), **vae()}, {}, r"has no text encoder, so(.|\n)*model --config DIR\n"),
    "a UNet alone": (unet, {}, r"has no text encoder and no VAE(.|\n)*--config DIR --vae DIR\|FILE"),
    "averages alone": (
        lambda: {name: value for name, value in with_averages().items() if not name.startswith("model.")},
        {},
        r"averaged weights \(model_ema\.\) alone",
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", FILES)
def test_single_files(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, options, problem = FILES[layout]
    state = make()
    path = tmp_path / "file.safetensors"
    save(state, path)
    Image.new("RGB", (64, 64), "white").save(tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    if problem:
        with pytest.raises(SdortError, match=problem):
            plan(path, **options)
        assert nothing_is_kept()
        return
    made = plan(path, **options)
    unread = ("model_ema.", "logit_scale", "position_ids")
    elements = sum(tensor.numel() for name, tensor in state.items() if not any(part in name for part in unread))
    assert made.bytes == pytest.approx(4 * elements, rel=0.02)
