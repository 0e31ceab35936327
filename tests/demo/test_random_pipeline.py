"""Random pipelines: the released shapes, weights without repetitions, one line of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from diffusers import AutoencoderKL, SD3Transformer2DModel, UNet2DConditionModel
from support import published_configs as published

from sdort.cli import cli
from sdort.console import quiet_libraries
from sdort.demo.random_pipeline import _repeat, _weights
from sdort.demo.shapes import SHAPES
from sdort.demo.tokenizer import write_letters
from sdort.exporter.plain_tokenizers import write_plain_tokenizer
from sdort.families.family import PlainText
from sdort.generation.prompts.plain_tokenizer import PlainTokenizer

PUBLISHED = {
    "sd15": "SD 1.5",
    "sd15-inpainting": "SD 1.5 inpainting",
    "sd21": "SD 2.1",
    "sdxl": "SDXL",
    "sdxl-refiner": "SDXL refiner",
}
PARAMETERS = {"sd15": 859_520_964, "sd21": 865_910_724, "sdxl": 2_567_463_684}
"""Of the released UNets, as their authors state them."""


def shapes_of(config: Any) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = UNet2DConditionModel(**{key: value for key, value in config.items() if not key.startswith("_")})
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_unet_has_the_tensors_and_sizes_of_the_published_config(name: str) -> None:
    expected = published.UNETS[PUBLISHED[name]]
    found = shapes_of(SHAPES[name].denoiser)
    assert found == shapes_of(expected)
    assert SHAPES[name].denoiser["sample_size"] == expected["sample_size"]
    if name in PARAMETERS:
        assert sum(shape.numel() for shape in found.values()) == PARAMETERS[name]


@pytest.mark.parametrize("name", ["sd15", "sdxl"])
def test_a_vae_has_the_published_sizes_and_factor(name: str) -> None:
    shape, family = SHAPES[name], "SDXL" if name.startswith("sdxl") else "SD 1.4"
    expected = published.VAES[family]
    with torch.device("meta"):
        found, wanted = (AutoencoderKL(**each) for each in ({**shape.family.vae, **shape.vae}, expected))
    assert {name: each.shape for name, each in found.state_dict().items()} == {
        name: each.shape for name, each in wanted.state_dict().items()
    }
    assert found.config.scaling_factor == expected.get("scaling_factor", 0.18215)


def test_noise_goes_on_where_the_last_tensor_ended() -> None:
    noise, values = np.arange(5, dtype=np.float32), np.empty(12, np.float16)
    _repeat(noise, np.float32(1), values, 3)
    assert values.tolist() == [3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_weights_are_as_large_as_torch_begins_and_no_two_rows_are_alike() -> None:
    made = torch.nn.Sequential(torch.nn.Linear(1280, 1700), torch.nn.GroupNorm(4, 8), torch.nn.Embedding(2000, 640))
    noise = np.random.default_rng(0).uniform(-1, 1, 1_048_573).astype(np.float32)
    found = dict(_weights(made, noise, np.dtype(np.float16)))
    assert found.keys() == made.state_dict().keys()
    assert all(values.dtype == np.float16 for values in found.values())
    for name in ("0.weight", "2.weight"):
        values = found[name].astype(np.float64)
        bound = values.shape[1] ** -0.5
        assert abs(values).max() == pytest.approx(bound, rel=2e-3)
        assert values.std() == pytest.approx(bound / 3**0.5, rel=0.01)
        assert len({row.tobytes() for row in found[name]}) == len(values)
    assert abs(found["0.bias"]).max() <= np.float16(1280**-0.5)
    assert found["0.bias"].std() > 0
    assert (found["1.weight"].tolist(), found["1.bias"].tolist()) == ([1.0] * 8, [0.0] * 8)


def test_an_unknown_shape_is_told_the_known_ones(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["export", "random:sd16", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "random:sd16" in done.output
    assert all(f"random:{name}" in done.output for name in SHAPES)
    assert not (tmp_path / "out").exists()


def test_a_transformer_has_as_many_parameters_as_the_released_one() -> None:
    for name, billions in (
        ("sd35-medium", 2.243),
        ("sd35-large", 8.057),
        ("z-image", 6.155),
        ("flux-dev", 11.902),
        ("chroma", 8.9),
    ):
        shape = SHAPES[name]
        with torch.device("meta"), quiet_libraries():
            model = getattr(diffusers, shape.family.denoiser.class_name)(**shape.denoiser)
        assert sum(each.numel() for each in model.parameters()) / 1e9 == pytest.approx(billions, abs=2e-3)


def test_tables_of_positions_are_stored() -> None:
    """They are no parameters, and every other tensor of the state is there too."""
    with torch.device("meta"):
        model = SD3Transformer2DModel(**SHAPES["tiny-sd35"].denoiser)
    found = dict(_weights(model, np.linspace(-1, 1, 1009, dtype=np.float32), np.dtype(np.float32)))
    assert found.keys() == model.state_dict().keys()
    assert found["pos_embed.pos_embed"].std() > 0.1


@pytest.mark.parametrize(
    ("plain", "text", "count"),
    [
        (PlainText("T5TokenizerFast", 32, padded=True), "a cat", 32),
        (
            PlainText("Qwen2Tokenizer", 32, False, "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
            "a c",
            22,
        ),
    ],
    ids=lambda each: getattr(each, "tokenizer", ""),
)
def test_letters_are_tokens_of_plain_text(plain: PlainText, text: str, count: int, tmp_path: Path) -> None:
    write_letters(tmp_path, plain)
    write_plain_tokenizer(tmp_path, plain, tmp_path)
    tokenizer = PlainTokenizer(tmp_path, plain)
    row = tokenizer.row(text)
    assert (len(row.ids), row.lost) == (count, ())
    assert tokenizer.text(row.ids).startswith(f"{plain.before}{text}")
    assert len(set(tokenizer.row("dog").ids) ^ set(row.ids)) > 3
