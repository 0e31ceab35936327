"""The trained demo with a transformer: its files, and that it draws what prompts ask for, in 8 and 4 bits too."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from demo_words import chat_words, learn_merges
from support.pipelines import locked, trace_folder

import sdort
from sdort.checkpoints.safetensors import read_tensors
from sdort.demo import CARD, DEMO_FOLDER, DEMO_TRANSFORMER, TRANSFORMER_FOLDER, write_demo
from sdort.demo.prompt_language import held_out
from sdort.demo.score import PAIR_BAR, SINGLE_BAR, score
from sdort.demo.tokenizer import write_letters
from sdort.families.data.z_image import FAMILY
from sdort.generation.schedules.image_noise import SeededNormal
from sdort.graph.signature import Array

SOME = held_out()[::6]
"""Ten prompts of one shape and ten of two."""
OPTIONS: dict[str, Any] = {"steps": 8, "guidance_scale": 1.0}


def test_the_weights_are_half_precision_and_small() -> None:
    files = sorted(TRANSFORMER_FOLDER.rglob("*.safetensors"))
    assert [file.parent.name for file in files] == ["text_encoder", "transformer"]
    for file in files:
        for name, tensor in read_tensors(file).items():
            assert tensor.dtype == np.float16
            assert np.isfinite(tensor.load()).all(), name
    assert sum(file.stat().st_size for file in TRANSFORMER_FOLDER.rglob("*") if file.is_file()) <= 12e6


def test_the_architecture_is_one_that_the_kernels_know() -> None:
    """Heads of 32, and layers whose rows and columns are groups of 32."""
    config = json.loads((TRANSFORMER_FOLDER / "transformer" / "config.json").read_text())
    assert config["dim"] // config["n_heads"] == 32
    shapes = [tensor.shape for tensor in read_tensors(
        TRANSFORMER_FOLDER / "transformer" / "diffusion_pytorch_model.safetensors").values()]  # fmt: skip
    assert all(size % 32 == 0 for shape in shapes if len(shape) == 2 for size in shape if size > 16)


def test_nothing_in_it_names_another_place() -> None:
    for file in TRANSFORMER_FOLDER.rglob("*.json"):
        assert "_name_or_path" not in file.read_text()


def test_the_tokenizer_is_the_one_that_training_writes(tmp_path: Path) -> None:
    plain = FAMILY.encoders[0].plain
    assert plain
    write_letters(tmp_path, plain, learn_merges(chat_words(), end=""))
    found = json.loads((TRANSFORMER_FOLDER / "tokenizer" / "tokenizer.json").read_text())
    assert found == json.loads((tmp_path / "tokenizer.json").read_text())


def test_the_card_says_what_is_there() -> None:
    card = (TRANSFORMER_FOLDER / CARD).read_text(encoding="utf-8")
    for part, words in (("text_encoder", "text encoder"), ("transformer", "transformer")):
        tensors = read_tensors(next((TRANSFORMER_FOLDER / part).glob("*.safetensors")))
        assert f"{words} {sum(math.prod(tensor.shape) for tensor in tensors.values()):,}" in card
    rows = re.findall(r"^\| ((?:torch|ONNX|optimized)[^|]*) \| (\d+) of (\d+) \| (\d+) of (\d+) \|", card, re.M)
    assert len(rows) > 2
    for name, *counts in rows:
        single, singles, pair, pairs = map(int, counts)
        assert single >= SINGLE_BAR * singles, name
        assert pair >= PAIR_BAR * pairs, name


def test_its_autoencoder_is_the_other_demos(tmp_path: Path) -> None:
    """With the shift that diffusers' pipeline adds."""
    write_demo(DEMO_TRANSFORMER, tmp_path)
    weights = Path("vae") / "diffusion_pytorch_model.safetensors"
    assert (tmp_path / weights).read_bytes() == (DEMO_FOLDER / weights).read_bytes()
    configs = [json.loads((folder / "vae" / "config.json").read_text()) for folder in (tmp_path, DEMO_FOLDER)]
    assert configs[0] == {**configs[1], "shift_factor": 0.0}
    assert not (tmp_path / CARD).exists()


@pytest.fixture(scope="module")
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, traces = tmp_path_factory.mktemp("demo-transformer") / "model", trace_folder(request.config)
    with locked(traces):
        sdort.export(DEMO_TRANSFORMER, out, cache_dir=traces)
    return out


@pytest.fixture(scope="module")
def fast(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo-transformer-cpu") / "fast"
    sdort.optimize(exported, out, provider="cpu")
    return out


def draw(folder: Path, prompts: list[str], **options: Any) -> list[Array]:
    with sdort.load(folder, provider="cpu") as loaded:
        made = [loaded.generate(prompt, seed=seed, **{**OPTIONS, **options}) for seed, prompt in enumerate(prompts)]
    return [made.images[0].pixels for made in made]


def right(prompts: list[str], pictures: list[Array]) -> int:
    found = score(zip(prompts, pictures, strict=True))
    return found.single[0] + found.pair[0]


def test_it_draws_what_diffusers_does(exported: Path, tmp_path: Path) -> None:
    from diffusers import ZImagePipeline

    write_demo(DEMO_TRANSFORMER, tmp_path)
    pipeline = ZImagePipeline.from_pretrained(tmp_path).to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    noise = torch.from_numpy(np.stack([SeededNormal(seed).draw((4, 16, 16)) for seed in range(2)]))
    wanted = pipeline(SOME[::10], 64, 64, 8, guidance_scale=1.0, latents=noise, output_type="np").images
    assert np.abs(np.stack(draw(exported, SOME[::10])) - 255 * wanted).max() < 2


def test_prompts_get_what_they_ask_for(fast: Path) -> None:
    pictures = draw(fast, SOME)
    assert right(SOME, pictures) >= 18
    # The words matter: none of the pictures is what the prompt before it asks for.
    assert right([*SOME[-1:], *SOME[:-1]], pictures) <= 2


def test_as_it_comes_it_draws_without_guidance(fast: Path) -> None:
    """Eight steps of 64x64 pixels: what ``sdort run demo-transformer`` does where nobody asks for more."""
    pictures = draw(fast, SOME, steps=None, guidance_scale=None)
    assert {picture.shape for picture in pictures} == {(64, 64, 3)}
    assert right(SOME, pictures) >= 15


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_in_few_bits_draw_as_well(weights: Any, exported: Path, tmp_path: Path) -> None:
    sdort.optimize(exported, tmp_path / "fast", provider="cpu", weights=weights)
    assert right(SOME, draw(tmp_path / "fast", SOME)) >= 18


def test_it_is_verified_against_diffusers(fast: Path) -> None:
    """The checkpoint is written again: the manifest's source is a name."""
    found = sdort.verify(fast, provider="cpu", seeds=1, steps=2)
    assert found.passed, found.failed
    assert found.checkpoint == Path(DEMO_TRANSFORMER)
    assert len(found.images) == 2
