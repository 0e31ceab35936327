"""Pictures made larger: what becomes of colours, transparency, orientation, profiles and parameters, and the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, ImageCms, PngImagePlugin
from support import upscalers

from sdort.cli import cli
from sdort.errors import BadModelError, OutputError, ParityError, UsageError
from sdort.files.user_folders import models_folder
from sdort.generation.files.image_texts import read_texts
from sdort.generation.files.infotext import read_infotext
from sdort.generation.pictures import upscaled_picture
from sdort.generation.upscaled_files import upscale
from sdort.graph.signature import Array
from sdort.providers.runtime_options import RuntimeOptions
from sdort.upscaling.upscaler import open_upscaler

STATE = upscalers.compact_state(np.random.default_rng(3), filters=4, layers=1, scale=2)
PIXELS = np.random.default_rng(5).integers(60, 196, (9, 14, 3), np.uint8)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small upscaler of 2x, in an own cache; the current folder is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return upscalers.write_state(tmp_path / "2x small.safetensors", STATE)


def larger(pixels: Array) -> Array:
    """What the network makes of an image, uint8 [height, width, 3], to nearest."""
    values = upscalers.compact(pixels.transpose(2, 0, 1) / 255, STATE, 2)
    return (np.clip(values, 0, 1) * 255).round().transpose(1, 2, 0)


def off(found: Any, expected: Array) -> float:
    """The largest difference in steps of 8 bits."""
    values = np.asarray(found, np.float64)
    assert values.shape == expected.shape
    return float(np.abs(values - expected).max())


def written(path: str | Path, pixels: Array = PIXELS, **options: Any) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return Path(path)


def test_colours_grey_and_transparency(model: Path) -> None:
    alpha = np.random.default_rng(6).integers(0, 256, PIXELS.shape[:2], np.uint8)
    grey = PIXELS[:, :, 0]
    files = [written("rgb.png"), written("grey.png", grey), written("clear.png", np.dstack([PIXELS, alpha]))]
    result = upscale(files, model, provider="cpu")
    pictures = [Image.open(image.path) for image in result.images if image.path]
    assert [picture.mode for picture in pictures] == ["RGB", "L", "RGBA"]
    assert off(pictures[0], larger(PIXELS)) <= 1
    assert off(pictures[1], larger(np.repeat(grey[:, :, None], 3, 2)).mean(axis=2)) <= 1.5
    assert off(np.asarray(pictures[2])[:, :, :3], larger(PIXELS)) <= 1
    assert off(np.asarray(pictures[2])[:, :, 3], larger(np.repeat(alpha[:, :, None], 3, 2)).mean(axis=2)) <= 1.5
    assert [str(image.path) for image in result.images] == ["rgb-2x.png", "grey-2x.png", "clear-2x.png"]
    assert [image.pixels.shape[2] for image in result.images] == [3, 1, 4]


def test_an_upright_picture_with_its_profile(model: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    upscale(written("turned.png", exif=exif, icc_profile=profile), model, provider="cpu")
    picture = Image.open("turned-2x.png")
    assert off(picture, larger(np.rot90(PIXELS, -1))) <= 1
    assert picture.info["icc_profile"] == profile
    assert "exif" not in picture.info


@pytest.mark.parametrize(("scale", "turns"), [(4.0, 2), (3.0, 2), (1.5, 1), (1.0, 1), (8.0, 3), (16.0, 3)])
def test_another_scale_is_reached_by_turns_and_resizing(model: Path, scale: float, turns: int) -> None:
    upscaler = open_upscaler(model, RuntimeOptions("cpu"))
    runs: list[int] = []
    picture = upscaled_picture.upscale_picture(
        upscaler, Image.fromarray(PIXELS), scale, None, lambda tile, tiles: runs.append(tiles)
    )
    assert picture.size == (round(14 * scale), round(9 * scale))
    assert len(runs) == turns
    once = larger(PIXELS).astype(np.uint8)
    expected = larger(once) if turns > 1 else once
    if scale in (4.0, 1.5):
        reference = Image.fromarray(expected.astype(np.uint8)).resize(picture.size, Image.Resampling.LANCZOS)
        assert off(picture, np.asarray(reference, np.float64)) <= 3


def test_the_parameters_go_with_it(model: Path) -> None:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("parameters", "a cat\nSteps: 20, Sampler: Euler, CFG scale: 7, Seed: 5, Size: 14x9")
    texts.add_text("sdort", json.dumps({"prompt": "a cat"}))
    written("cat.png", pnginfo=texts)
    for name in ("large.png", "large.jpg", "large.webp"):
        upscale("cat.png", model, output=name, provider="cpu")
        found = read_texts(Path(name))
        assert found["parameters"].endswith("Size: 14x9, Postprocess upscale by: 2, Postprocess upscaler: 2x small")
        assert found["sdort"] == texts.chunks[1][1].partition(b"\0")[2].decode()
        assert read_infotext(found["parameters"]).options["seed"] == 5


def test_jpeg_has_white_where_it_was_transparent(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clear = np.dstack([PIXELS, np.zeros(PIXELS.shape[:2], np.uint8)])
    upscale(written("clear.png", clear), model, output="white.jpg", provider="cpu")
    assert "transparent parts are white" in capsys.readouterr().err
    upscale("clear.png", model, output="clear-large.png", provider="cpu")
    expected = Image.alpha_composite(Image.new("RGBA", (28, 18), "white"), Image.open("clear-large.png"))
    assert np.abs(np.asarray(Image.open("white.jpg"), float) - np.asarray(expected, float)[:, :, :3]).mean() < 10


def test_files_are_named_and_refused(model: Path, tmp_path: Path) -> None:
    files = [written("a.png"), written("b.png")]
    upscale(files, model, output="out/", provider="cpu")
    assert sorted(path.name for path in Path("out").iterdir()) == ["a-2x.png", "b-2x.png"]
    upscale(files[0], model, provider="cpu")
    assert str(upscale(files[0], model, provider="cpu").images[0].path) == "a-2x-run2.png"
    (tmp_path / "other").mkdir()
    for error, message, options in (
        (OutputError, "out/a-2x.png and 1 more exist", {"images": files, "output": "out"}),
        (UsageError, "do not fit into one file", {"images": files, "output": "x.png"}),
        (UsageError, "two images would be", {"images": [files[0], written(tmp_path / "other/a.png")], "output": "o/"}),
        (UsageError, "is no .png", {"images": files[0], "output": "x.gif"}),
        (UsageError, "no image was given", {"images": []}),
        (UsageError, "--scale", {"images": files[0], "scale": 100.0}),
        (UsageError, "--tile", {"images": files[0], "tile": 8}),
        (UsageError, "--quality is for", {"images": files[0], "output": "x.png", "quality": 50}),
        (BadModelError, "cannot read", {"images": files[0], "model": "missing.pth"}),
    ):
        with pytest.raises(error, match=message):
            upscale(**{"model": model, "provider": "cpu", **options})  # type: ignore[arg-type]
    upscale(files, model, output="out", provider="cpu", overwrite=True)


def test_a_result_is_bounded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upscaled_picture, "MAX_PIXELS", 9 * 14 * 4 - 1)
    with pytest.raises(UsageError, match="would have 28x18 pixels"):
        upscale(written("a.png"), model, provider="cpu")
    assert not Path("a-2x.png").exists()


def test_it_is_made_ready_once(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a file's content: the second use says nothing, a copy has the same, another content is made anew."""
    written("a.png")

    def said() -> bool:
        upscale("a.png", model, output="b.png", overwrite=True, provider="cpu")
        return "first use" in capsys.readouterr().err

    assert said()
    assert not said()
    upscalers.write_state(model, upscalers.compact_state(np.random.default_rng(9), filters=4, layers=1, scale=2))
    assert said()
    assert len(list(models_folder().glob("model-*"))) == 2
    for record in models_folder().glob("model-*/made-of.json"):
        record.write_text(record.read_text().replace('"cpu"', '"rocm"'))
    with pytest.raises(BadModelError, match="names something else"):
        upscale("a.png", model, output="b.png", overwrite=True, provider="cpu")


def test_the_command_tells_what_it_made(model: Path) -> None:
    written("a.png")
    words = ["upscale", "a.png", "--model", str(model), "--provider", "cpu", "--tile", "64"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0
    assert "a-2x.png: 28x18, 1 tile, " in result.stdout
    assert "2x small (Compact, 2x) in fp32 on cpu" in result.stdout
    record = json.loads(CliRunner().invoke(cli, [*words, "--json", "-o", "c.png"]).stdout)
    assert record["schema"] == "sdort-upscale-1"
    assert record["images"][0] | {"seconds": 0} == {
        "source": "a.png", "path": "c.png", "width": 28, "height": 18, "tiles": 1, "seconds": 0,
    }  # fmt: skip


class _Network:
    """A session in which a test says what comes of a tile, as floats [images, height, width, channels]."""

    def __init__(self, run: Callable[[Array], Array]) -> None:
        self.inputs = {"pixels": None}
        self.outputs = [type("Spec", (), {"name": name}) for name in ("larger", "sum")]
        self.provider = type("Provider", (), {"name": "cpu", "vendor": "", "programs": ""})
        self.options = type("Options", (), {"device_id": 0})
        self._run = run

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        values = self._run(feeds["pixels"] / np.float32(255))
        larger = (np.clip(np.nan_to_num(values), 0, 1) * 255).round().astype(np.uint8)
        return {"larger": larger, "sum": values.sum(axis=(1, 2, 3))}


def stub(run: Callable[[Array], Array], wide: Callable[[Array], Array] | None = None) -> Any:
    from sdort.upscaling.upscaler import Upscaler
    from sdort.upscaling.upscaler_file import UpscalerFacts

    network: Any = _Network(run)
    facts = UpscalerFacts("ESRGAN", 1, 3, 1)
    return Upscaler("x", network, facts, "fp16", None if wide is None else lambda: _Network(wide))  # type: ignore[arg-type,return-value]


def test_nan_in_fp16_goes_on_in_fp32(capsys: pytest.CaptureFixture[str]) -> None:
    upscaler = stub(lambda image: image * np.float32("nan"), lambda image: image)
    assert (upscaler.enlarge(PIXELS) == PIXELS).all()
    assert upscaler.precision == "fp32"
    assert "gives NaN in fp16" in capsys.readouterr().err
    with pytest.raises(ParityError, match="NaN or infinite"):
        stub(lambda image: image * np.float32("inf")).enlarge(PIXELS)


def test_it_goes_on_in_smaller_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    from sdort.errors import MemoryShortageError

    def small_memory(image: Array) -> Array:
        if image.shape[1] * image.shape[2] > 200 * 200:
            raise MemoryShortageError("no memory left")
        return image

    pixels = np.random.default_rng(0).integers(0, 256, (450, 300, 3), np.uint8)
    upscaler = stub(small_memory)
    assert (upscaler.enlarge(pixels) == pixels).all()
    assert "tiles of 256 x 256 pixels" in capsys.readouterr().err
    with pytest.raises(MemoryShortageError):
        upscaler.enlarge(pixels, tile=512)
