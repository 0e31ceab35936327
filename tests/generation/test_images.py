"""What PNG files say of how they were made, read as other programs read it."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from support.infotext import read_infotext, record

from sdort.errors import UsageError
from sdort.generation.files.image_files import save_image
from sdort.generation.files.infotext import parameters_text
from sdort.generation.pictures import images
from sdort.generation.requests.request import MAX_PROMPT, Request, each_prompt

FORGED = "a cat\nNegative prompt: dog\nSteps: 1, Sampler: x, CFG scale: 1, Seed: 1, Size: 8x8, Model hash: evil"
PROMPTS = [
    "a red star", "a (cat:1.3), \\(series\\), [x|y] 50% <lora:a:1>", 'the "best" cat', '"quoted"', '"a', "", " spaced ",
    "Zürich 東京 🦊", FORGED, "Steps: 1, Model hash: evil, Size: 8x8, Seed: 2", "Negative prompt: x", "\n",
    "\x1b]0;a\x07\x85\u2028b",
    "\udcff\ud800", "a\\nb", "\tx\r\ny", "Model:\x0bx", "\u202ecod",
]  # fmt: skip


@pytest.mark.parametrize("prompt", PROMPTS, ids=ascii)
@pytest.mark.parametrize("negative", ["", "fog", FORGED], ids=["none", "fog", "forged"])
def test_prompts_are_read_back_and_forge_no_parameter(prompt: str, negative: str) -> None:
    made = record(prompt=prompt, negative_prompt=negative, model=f"a, Seed: 3\n{prompt}")
    text = parameters_text(made, 7)
    assert text.count("\n") == (2 if negative else 1)
    assert text.replace("\n", "").isprintable()
    told = read_infotext(text)
    assert (told["prompt"], told["negative"], told["Model"]) == (prompt, negative, made.model)
    assert (told["Steps"], told["Seed"], told["Size"], told["Model hash"]) == ("20", "7", "32x64", "0123")
    for name in ("Steps", "Model hash", "Negative prompt"):  # what simpler programs search for
        assert len(re.findall(rf"{name}:", text)) == (bool(negative) if name == "Negative prompt" else 1)


def test_usual_prompts_stay_as_they_are() -> None:
    for prompt in PROMPTS[:3]:
        assert parameters_text(record(prompt=prompt), 1).splitlines()[0] == prompt


@pytest.mark.parametrize("prompt", [FORGED, "\udcff", "x" * MAX_PROMPT], ids=["forged", "no UTF-8", "long"])
def test_a_file_holds_any_prompt_and_no_folder_of_the_users(prompt: str, tmp_path: Path) -> None:
    why = "cuda cannot be used: /home/me/lib/libcuda.so.1: cannot open shared object file"
    save_image(tmp_path / "a.png", np.zeros((2, 2, 3), np.uint8), record(prompt=prompt, fallback=why), 7)
    with Image.open(tmp_path / "a.png") as image:
        texts = image.text  # type: ignore[attr-defined]
    assert read_infotext(texts["parameters"])["prompt"] == prompt
    kept = json.loads(texts["sdort"])
    assert kept["prompt"] == (prompt if prompt != "\udcff" else "\\udcff")
    assert kept["fallback"] == "cuda cannot be used: libcuda.so.1: cannot open shared object file"
    assert b"/home/me" not in (tmp_path / "a.png").read_bytes()


def test_a_prompt_has_a_bound() -> None:
    with pytest.raises(UsageError, match="--prompt has 131,073 characters, at most 131,072 are taken"):
        each_prompt("x" * (MAX_PROMPT + 1), Request(""))
    assert each_prompt("", Request(""), {"negative_prompt": "x" * MAX_PROMPT})[0] == replace(
        Request(""), negative_prompt="x" * MAX_PROMPT
    )


def test_an_image_of_one_colour_with_a_few_other_pixels_shows_nothing() -> None:
    pixels = np.full((64, 64, 3), (200, 90, 10), np.uint8)
    pixels[0, :3] += 30  # a span of 30, and a standard deviation of 0.8
    assert "nearly the same value (200, 90, 10; standard deviation 0.8" in (images.constant_problem(pixels) or "")
    pixels[32, :8] += 30
    assert images.constant_problem(pixels) is None


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_file_that_has_come_meanwhile_stays(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two runs at once with one output: each looked before it drew."""
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EPERM, "no links here")))
    path, pixels = tmp_path / "a.png", np.zeros((2, 2, 3), np.uint8)
    assert save_image(path, pixels, record(), 7) == path
    theirs = path.read_bytes()
    assert save_image(path, pixels, record(), 8) == tmp_path / "a-run2.png"
    assert path.read_bytes() == theirs
    said = " ".join(capsys.readouterr().err.split())
    assert "another program has written" in said
    assert said.endswith("a-run2.png")
    assert save_image(path, pixels, record(), 8, overwrite=True) == path
    assert path.read_bytes() == (tmp_path / "a-run2.png").read_bytes() != theirs
    assert sorted(os.listdir(tmp_path)) == ["a-run2.png", "a.png"]


@pytest.mark.parametrize("seed", range(6))
def test_pixels_are_rounded_as_diffusers_rounds_them(seed: int) -> None:
    """Of any size, in strips; half a level goes to the even one."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 300), rng.choice([1, 7, 640, 70_000 // (seed + 1)])
    decoded = rng.normal(scale=0.8, size=(3, height, width)).astype(np.float32)
    decoded[:, :, ::3] = rng.integers(-255, 256, decoded[:, :, ::3].shape) / np.float32(255)
    expected = (np.clip(decoded.transpose(1, 2, 0) / 2 + 0.5, 0, 1) * 255).round().astype(np.uint8)
    found = images.to_image(decoded, 1)
    assert (found.pixels == expected).all()
    assert found.pixels.flags.c_contiguous
    decoded[rng.integers(3), rng.integers(height), rng.integers(width)] = rng.choice([np.nan, np.inf, -np.inf])
    bad = images.to_image(decoded, 1)
    assert bad.problem == "it has NaN or infinite pixels"
    assert bad.pixels.shape == expected.shape
    assert not bad.pixels.any()


@pytest.mark.parametrize("seed", range(40))
def test_an_image_shows_something_if_any_channel_varies(seed: int) -> None:
    """Whatever pixels are looked at first: by the standard deviation of all of them."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 90)), int(rng.choice([1, 13, 64, 128])), 3)
    pixels = rng.normal(rng.integers(0, 256), rng.choice([0.0, 0.7, 0.99, 1.01, 1.3, 9.0]), shape)
    if seed % 4 == 0:
        pixels[:, ::64] = rng.integers(0, 256, pixels[:, ::64].shape)  # the pixels that are looked at first
    taken = np.clip(pixels, 0, 255).round().astype(np.uint8)
    deviation = taken.reshape(-1, 3).std(axis=0, dtype=np.float64).max()
    assert (images.constant_problem(taken) is None) == (deviation >= images.FLAT)
