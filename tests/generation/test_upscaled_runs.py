"""Upscalers in a run: of the finished images, and between the two passes of a larger one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import upscalers
from support.alive_sessions import in_turn
from support.tiny_pipeline import Tiny, with_encoder

import sdort
from sdort.errors import BadModelError, UsageError
from sdort.generation.files.image_texts import read_texts
from sdort.generation.pictures import upscaled_picture
from sdort.generation.pipeline import TextToImage
from sdort.graph.signature import Array

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
OPTIONS: dict[str, Any] = {"steps": 2, "seed": 4}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An upscaler of 2x that only repeats pixels, and adds 10 of 255 to the blue ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state = upscalers.compact_state(np.random.default_rng(0), filters=4, layers=1, scale=2)
    last = max(int(name.split(".")[1]) for name in state)
    state[f"body.{last}.weight"] *= 0
    state[f"body.{last}.bias"] = np.repeat(np.array([0, 0, 10 / 255], np.float32), 4)
    return upscalers.write_state(tmp_path / "twice.safetensors", state)


def repeated(pixels: Array) -> Array:
    """What the upscaler makes of an image."""
    large = pixels.astype(int).repeat(2, 0).repeat(2, 1)
    large[:, :, 2] += 10
    return large.clip(0, 255)


def test_each_finished_image_is_enlarged(tiny: Tiny, model: Path, tmp_path: Path) -> None:
    with sdort.load(tiny.onnx, provider="cpu") as pipeline:
        plain = pipeline.generate("a cat", num_images=2, **OPTIONS)
        output = tmp_path / "large.png"
        large = pipeline.generate("a cat", num_images=2, upscale=model, output=output, **OPTIONS)
        for before, after in zip(plain.images, large.images, strict=True):
            assert np.abs(after.pixels - repeated(before.pixels)).max() <= 1
            assert (np.asarray(Image.open(after.path or "")) == after.pixels).all()
        assert (large.upscale, large.upscale_by, large.seconds.upscale > 0) == ("twice", 2.0, True)
        text = read_texts(tmp_path / "large-1.png")["parameters"]
        assert "Postprocess upscale by: 2.0, Postprocess upscaler: twice" in text
        third = pipeline.generate("a cat", upscale=model, upscale_by=3, **OPTIONS).images[0]
        assert third.pixels.shape[0] == 3 * plain.images[0].pixels.shape[0]


def test_an_upscaler_is_loaded_with_the_decoder_where_models_are_loaded_in_turn(
    tiny: Tiny, model: Path, tmp_path: Path
) -> None:
    folder = with_encoder(tiny, tmp_path / "whole")
    twice: dict[str, Any] = {"upscale": model, "num_images": 2, "images_at_once": 1}
    with sdort.load(folder, provider="cpu") as normal, sdort.load(folder, provider="cpu", memory="low") as low:
        loaded = in_turn(normal, low, "a cat", **OPTIONS, **twice)
        assert loaded == {"text_encoder": 1, "unet": 1, "vae_decoder": 1, "upscaler": 1}
        result = low.generate("a cat", **OPTIONS, **twice)
        assert (result.upscale_by, result.images[0].record.upscale_by) == (2.0, 2.0)
        larger = in_turn(normal, low, "a cat", **OPTIONS, hires=2, hires_strength=0.5, hires_upscaler=model)
        assert larger == {"text_encoder": 1, "unet": 2, "vae_decoder": 2, "vae_encoder": 1, "upscaler": 1}


def test_the_second_pass_begins_with_what_the_upscaler_made(
    tiny: Tiny, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Array] = []
    posterior = TextToImage._posterior

    def record(self: TextToImage, pixels: Array, *rest: Any) -> Any:
        encoded.append(pixels)
        return posterior(self, pixels, *rest)

    monkeypatch.setattr(TextToImage, "_posterior", record)
    with sdort.load(with_encoder(tiny, tmp_path / "whole"), provider="cpu") as pipeline:
        plain = pipeline.generate("a cat", **OPTIONS).images[0]
        made = pipeline.generate("a cat", hires=2, hires_strength=0.5, hires_upscaler=model, **OPTIONS)
    assert np.abs((encoded[0][0].transpose(1, 2, 0) + 1) * 127.5 - repeated(plain.pixels)).max() <= 1.5
    assert (made.hires_upscale, made.hires_upscaler) == ("image", "twice")


def test_what_cannot_be_is_refused_before_anything_is_loaded(
    tiny: Tiny, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.pth").write_bytes(b"nothing of the kind")
    refusals: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (BadModelError, "cannot read", {"upscale": tmp_path / "missing.pth"}),
        (BadModelError, "is neither a .pth", {"upscale": tmp_path / "other.pth"}),
        (BadModelError, "is neither a .pth", {"hires": 2, "hires_upscaler": tmp_path / "other.pth"}),
        (UsageError, "--upscale-by means nothing without --upscale", {"upscale_by": 2}),
        (UsageError, "--hires-upscaler means nothing without --hires", {"hires_upscaler": model}),
        (UsageError, "enlarges the image", {"hires": 2, "hires_upscale": "latent", "hires_upscaler": model}),
        (UsageError, "--upscale-by", {"upscale": model, "upscale_by": 100}),
        (UsageError, "would have 128x128 pixels", {"upscale": model, "width": 64, "height": 64}),
    ]
    monkeypatch.setattr(upscaled_picture, "MAX_PIXELS", 128 * 128 - 1)
    monkeypatch.setattr("sdort.generation.command.load_pipeline", None)
    folder = with_encoder(tiny, tmp_path / "whole")
    for error, message, options in refusals:
        with pytest.raises(error, match=message):
            sdort.run(folder, "a cat", provider="cpu", output=tmp_path / "x.png", **OPTIONS, **options)


@pytest.mark.parametrize("option", ["--hires-upscaler", "--hires-upscale image"])
def test_what_encodes_an_image_needs_an_encoder(option: str, tiny: Tiny, model: Path) -> None:
    more: dict[str, Any] = {"hires_upscaler": model} if option == "--hires-upscaler" else {"hires_upscale": "image"}
    with pytest.raises(BadModelError, match=f"has no vae_encoder, which {option} needs"):
        sdort.run(tiny.onnx, "a cat", provider="cpu", hires=2, hires_strength=0.5, **OPTIONS, **more)


def test_an_image_says_what_enlarged_it(
    tiny: Tiny, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"provider": "cpu", **OPTIONS}
    sdort.run(tiny.onnx, "a cat", output=tmp_path / "a.png", upscale=model, **options)
    again = sdort.run(tiny.onnx, from_image=tmp_path / "a.png", output=tmp_path / "b.png", provider="cpu")
    assert again.upscale is None
    assert "was enlarged by twice in the end" in capsys.readouterr().err
    passes: dict[str, Any] = {"hires": 2, "hires_strength": 0.5, "hires_upscaler": model}
    folder = with_encoder(tiny, tmp_path / "whole")
    sdort.run(folder, "a cat", output=tmp_path / "c.png", **passes, **options)
    with pytest.raises(UsageError, match="files that are not in it: twice"):
        sdort.run(folder, from_image=tmp_path / "c.png", output=tmp_path / "d.png", provider="cpu")
