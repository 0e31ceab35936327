"""The trained demo model in the package: its files, and that it follows prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdort.adapters.adapter_file import read_adapter
from sdort.demo import CARD, DEMO, DEMO_ADAPTER, DEMO_CONTROL, DEMO_FOLDER, RANDOM, write_demo
from sdort.demo.prompt_language import held_out, parse
from sdort.demo.score import PAIR_BAR, SINGLE_BAR, score
from sdort.generation.job import choose_adapter

# None of these is held out; small enough a list for every run of the tests.
PROMPTS = (
    "a large red circle on white",
    "a blue ring on beige",
    "a yellow star on navy",
    "a purple triangle on gray",
)


def test_the_weights_are_half_precision_and_small() -> None:
    from sdort.checkpoints.safetensors import read_tensors

    files = sorted(DEMO_FOLDER.rglob("*.safetensors"))
    assert [file.parent.name for file in files] == ["text_encoder", "unet", "vae"]
    assert {tensor.dtype for file in files for tensor in read_tensors(file).values()} == {np.dtype(np.float16)}
    assert all(name.startswith("text_model.") for name in read_tensors(files[0]))
    assert sum(file.stat().st_size for file in DEMO_FOLDER.rglob("*") if file.is_file()) <= 12e6


def test_every_weight_is_finite() -> None:
    from sdort.checkpoints.safetensors import read_tensors

    for file in DEMO_FOLDER.rglob("*.safetensors"):
        for name, tensor in read_tensors(file).items():
            assert np.isfinite(tensor.load()).all(), name


def test_the_architecture_is_one_that_the_kernels_know() -> None:
    unet = json.loads((DEMO_FOLDER / "unet" / "config.json").read_text())
    widths, heads = unet["block_out_channels"], unet["attention_head_dim"]
    assert [width // heads for width in widths] == [32, 64]
    assert all(width % 32 == 0 for width in widths)
    assert unet["norm_num_groups"] == 32
    assert json.loads((DEMO_FOLDER / "vae" / "config.json").read_text())["scaling_factor"] == 0.18215


def test_nothing_in_it_names_another_place() -> None:
    for file in DEMO_FOLDER.rglob("*.json"):
        assert "_name_or_path" not in file.read_text()


def test_the_cards_scores_reach_the_bars() -> None:
    rows = re.findall(r"^\| ((?:torch|ONNX|optimized)[^|]*) \| (\d+) of (\d+) \| (\d+) of (\d+) \|", _card(), re.M)
    assert {name.split(",")[0] for name, *_ in rows} >= {"torch fp32", "torch fp16"}
    for name, *counts in rows:
        single, singles, pair, pairs = map(int, counts)
        assert single >= SINGLE_BAR * singles, name
        assert pair >= PAIR_BAR * pairs, name


def test_the_card_counts_the_parameters() -> None:
    from sdort.checkpoints.safetensors import read_tensors

    for part, words in (("text_encoder", "text encoder"), ("unet", "UNet"), ("vae", "autoencoder")):
        tensors = read_tensors(next((DEMO_FOLDER / part).glob("*.safetensors")))
        count = sum(int(np.prod(tensor.shape)) for tensor in tensors.values())
        assert f"{words} {count:,}" in _card()


def _card() -> str:
    return (DEMO_FOLDER / CARD).read_text(encoding="utf-8")


def test_the_tokenizer_has_a_token_for_every_word() -> None:
    from transformers import CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(DEMO_FOLDER / "tokenizer")
    for prompt in held_out():
        assert len(tokenizer.tokenize(prompt)) == len(prompt.split()), prompt


def test_the_tokenizer_is_the_one_that_training_writes(tmp_path: Path) -> None:
    from demo_words import caption_words, learn_merges

    from sdort.demo.tokenizer import write_tokenizer

    write_tokenizer(tmp_path, learn_merges(caption_words()))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        file.name: file.read_bytes() for file in (DEMO_FOLDER / "tokenizer").iterdir()
    }


@pytest.mark.parametrize("name", [DEMO, f"{RANDOM}tiny"])
def test_both_demos_are_pipelines_that_export_finds(name: str) -> None:
    from sdort.exporter.open_source import open_source

    with open_source(name) as source:
        assert source.name == name
        unet = json.loads((source.folder / "unet" / "config.json").read_text())
        assert len(unet["block_out_channels"]) == {"demo": 2, "random:tiny": 4}[name]
        assert not (source.folder / CARD).exists()


def test_its_controlnet_is_one_that_export_finds() -> None:
    from sdort.exporter.open_source import open_source

    with open_source(DEMO_CONTROL) as source:
        assert source.index["_class_name"] == "ControlNetModel"
        assert sum(file.stat().st_size for file in source.part("controlnet").iterdir()) < 4e6


def test_its_lora_is_called_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless there is a file of that name; every tensor of it fits the demo's UNet or text encoder."""
    monkeypatch.chdir(tmp_path)
    choice = choose_adapter("demo:0.5")
    assert (choice.path, choice.scale) == (DEMO_ADAPTER, 0.5)
    assert DEMO_ADAPTER.stat().st_size < 200e3
    shapes = {
        name: {key: tuple(value["shape"]) for key, value in read_header(DEMO_FOLDER / name).items()}
        for name in ("unet", "text_encoder")
    }
    adapter = read_adapter(choice.path, shapes)
    assert {name: len(deltas) for name, deltas in adapter.deltas.items()} == {"unet": 56, "text_encoder": 12}
    assert not adapter.unmatched
    (tmp_path / "demo").write_bytes(b"")
    assert choose_adapter("demo").path == Path("demo")


def read_header(folder: Path) -> dict[str, Any]:
    """Name -> dtype and shape of the tensors in a folder's one safetensors file."""
    [file] = folder.glob("*.safetensors")
    content = file.read_bytes()
    header: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return {name: value for name, value in header.items() if name != "__metadata__"}


def test_it_draws_what_prompts_ask_for(tmp_path: Path) -> None:
    """Eight steps: enough for one shape, and seconds on any machine."""
    import torch
    from diffusers import StableDiffusionPipeline

    from sdort.console import quiet_libraries

    write_demo("demo", tmp_path)
    with quiet_libraries():
        pipeline = StableDiffusionPipeline.from_pretrained(tmp_path).to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    generators = [torch.Generator().manual_seed(seed) for seed in range(len(PROMPTS))]
    drawn = pipeline(
        list(PROMPTS), guidance_scale=5.0, num_inference_steps=8, generator=generators, output_type="np"
    ).images
    pictures = np.round(drawn * 255).astype(np.uint8)
    found = score(zip(PROMPTS, pictures, strict=True))
    assert found.single == (len(PROMPTS), len(PROMPTS))
    assert found.background == (len(PROMPTS), len(PROMPTS))
    # The words matter: the first picture is none of what the second prompt asks for.
    assert not any(score([(prompt, pictures[0])]).single[0] for prompt in PROMPTS[1:])
    assert all(len(parse(prompt).shapes) == 1 for prompt in PROMPTS)
