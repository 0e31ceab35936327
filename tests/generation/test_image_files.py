"""Files of images in every format: pixels, parameters as other programs and sdort read them, equal bytes, refusals."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.infotext import read_infotext, record
from support.tiny_pipeline import Tiny

from sdort import load, run
from sdort.errors import UsageError
from sdort.generation.files.from_image import read_image_options
from sdort.generation.files.image_files import FORMATS, check_sides, check_texts, format_of, save_image
from sdort.generation.files.image_texts import read_texts
from sdort.generation.job import plan_jobs, plan_paths
from sdort.generation.latents.decode import Plan
from sdort.generation.requests.record import GenerationRecord, StageSeconds
from sdort.generation.result import Image as Made

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

PIXELS = np.random.default_rng(1).integers(0, 256, (24, 16, 3)).repeat(5, 0).repeat(5, 1).astype(np.uint8)
PROMPTS = ["a red star", "Zürich 東京 🦊, (dusk:1.2)", "a\nb", 'the "best"']


def made(prompt: str = "a cat", **values: object) -> Made:
    values = {"prompt_2": "", "negative_prompt_2": "", "fallback": None, "decoded": None, **values}
    return Made(None, 7, None, prompt, "fog", PIXELS, record(prompt=prompt, negative_prompt="fog", **values))


@pytest.mark.parametrize("suffix", [*FORMATS, ".JPG", ".Webp"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=ascii)
def test_the_parameters_are_in_every_format(suffix: str, prompt: str, tmp_path: Path) -> None:
    path = made(prompt).save(tmp_path / f"a{suffix}")
    with Image.open(path) as image:
        assert image.format == format_of(path).name
        assert image.size == (16 * 5, 24 * 5)
    texts = read_texts(path)
    told = read_infotext(texts["parameters"])
    assert (told["prompt"], told["negative"], told["Seed"]) == (prompt, "fog", "7")
    kept = json.loads(texts["sdort"])
    assert (kept["prompt"], kept["seed"], kept["scheduler"]) == (prompt, 7, "DDIMScheduler")


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_the_comment_is_as_a1111_writes_it(suffix: str, tmp_path: Path) -> None:
    """Read as piexif and exiftool read it: a code of eight bytes, then UTF-16 with the file's order of bytes."""
    with Image.open(made("é 🦊").save(tmp_path / f"a{suffix}")) as image:
        exif = image.getexif()
        comment = exif.get_ifd(0x8769)[0x9286]
    assert exif.endian == ">"
    assert comment[:8] == b"UNICODE\0"
    assert comment[8:].decode("utf-16-be").startswith("é 🦊\nNegative prompt: fog\nSteps: 20, ")


def psnr(found: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((found.astype(float) - PIXELS) ** 2).clip(1e-9)))


@pytest.mark.parametrize("form", ["jpeg", "webp"])
def test_quality_is_size_and_likeness(form: str) -> None:
    found = {}
    for quality in (20, None, 100):
        file = io.BytesIO()
        made().save(file, format=form, quality=quality)
        with Image.open(file) as image:
            found[quality] = (len(file.getvalue()), psnr(np.asarray(image)))
    assert found[20][0] < found[None][0] < found[100][0] or form == "webp"
    assert found[20][1] < found[None][1] < found[100][1]
    # Blocks of random colours are the hardest there is; WebP halves their resolution at any quality but 100.
    assert found[None][1] > (30 if form == "jpeg" else 19)
    assert (found[100][1] == psnr(PIXELS)) == (form == "webp")


def test_open_files_are_png_unless_they_say_otherwise(tmp_path: Path) -> None:
    for form, name in ((None, "PNG"), ("png", "PNG"), ("jpeg", "JPEG"), ("webp", "WEBP")):
        file = io.BytesIO()
        assert made().save(file, format=form) is None
        with Image.open(file) as image:
            assert image.format == name
    with pytest.raises(UsageError, match=r"image\.gif is no \.png, "):
        made().save(io.BytesIO(), format="gif")
    with pytest.raises(UsageError, match="format= is for open files"):
        made().save(tmp_path / "a.png", format="jpeg")


@pytest.mark.parametrize("suffix", ["", ".gif", ".pn", ".jpg.txt", ".avif"])
def test_an_unknown_suffix_is_refused_before_anything_runs(suffix: str) -> None:
    with pytest.raises(UsageError, match=r"is no \.png, \.jpg, \.jpeg or \.webp file"):
        plan_paths(plan_jobs("a", {"output": f"a{suffix}"}))


@pytest.mark.parametrize(("options", "words"), [({}, "sdort-7.png keeps"), ({"output": "a.png"}, "a.png keeps")])
def test_a_quality_of_png_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=f"--quality is for JPEG and WebP: {words} every pixel"):
        plan_paths(plan_jobs("a", {"seed": 7, "quality": 80, **options}))  # type: ignore[typeddict-item]
    for quality in (0, 101):
        with pytest.raises(UsageError, match=f"--quality {quality} is not a whole number from 1 to 100"):
            plan_paths(plan_jobs("a", {"output": "a.jpg", "quality": quality}))


def test_what_a_format_cannot_hold_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for suffix, longest in ((".webp", 16_383), (".jpg", 65_535)):
        check_sides(Path(f"a{suffix}"), (longest, longest))
        with pytest.raises(UsageError, match=f"would have {longest + 1}x8 pixels, a side of [A-Z]+ {longest:,}"):
            check_sides(Path(f"a{suffix}"), (8, longest + 1))
    long = "x" * 20_000
    with pytest.raises(UsageError, match="a JPEG file has no room for the parameters of prompts of 20,000 characters"):
        plan_paths(plan_jobs(long, {"output": "a.jpg"}))
    for output in ("a.png", "a.webp"):
        plan_paths(plan_jobs(long, {"output": output}))
    # The most that is let through fits.
    fits = next(count for count in range(20_000, 0, -500) if _fits("é" * count))
    path = made("é" * fits).save(tmp_path / "a.jpg")
    assert json.loads(read_texts(path)["sdort"])["prompt"] == "é" * fits


def _fits(text: str) -> bool:
    try:
        check_texts(Path("a.jpg"), [text])
    except UsageError:
        return False
    return True


def test_a_record_that_finds_no_room_is_left_out_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jpg"
    save_image(path, PIXELS, record(decoded=None, fallback="x" * 70_000), 7)
    assert "keeps A1111's parameters alone" in " ".join(capsys.readouterr().err.split())
    assert read_texts(path).keys() == {"parameters"}


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp"])
def test_two_runs_of_one_command_write_equal_bytes(suffix: str, tmp_path: Path) -> None:
    """Whatever they took, and however memory made them decode, but for tiles, which are seen."""
    slow, fast = StageSeconds(9, 9, 9, 9, 9, 9), StageSeconds(1, 1, 1, 1, 1, 1)
    one = made(seconds=slow, decoded=Plan(slicing=True)).save(tmp_path / f"a{suffix}").read_bytes()
    other = made(seconds=fast, decoded=Plan()).save(tmp_path / f"b{suffix}").read_bytes()
    tiled = made(seconds=fast, decoded=Plan(tile=32)).save(tmp_path / f"c{suffix}").read_bytes()
    assert one == other != tiled


# The whole way


def test_a_run_writes_equal_bytes_and_is_drawn_again_from_any_format(tiny: Tiny, tmp_path: Path) -> None:
    with load(tiny.onnx, provider="cpu") as pipeline:
        first, second = (
            [image.path.read_bytes() for image in run_into(pipeline, tmp_path / name) if image.path]
            for name in ("first", "second")
        )
        assert first == second
        assert len(set(first)) == 2
        for suffix in (".jpg", ".webp"):
            [image] = pipeline.generate("a cat", steps=1, seed=7, output=tmp_path / f"x{suffix}", quality=90).images
            assert image.path
            again = pipeline.generate(from_image=image.path).images[0]
            np.testing.assert_array_equal(again.pixels, image.pixels)
            found = read_image_options(image.path, {})
            assert (found.options["seed"], found.options["steps"], found.model_hash) == (7, 1, image.record.model_hash)
    third = run(tiny.onnx, "a cat", provider="cpu", steps=1, seed=7, num_images=2, output=tmp_path / "third" / "a.png")
    assert [image.path.read_bytes() for image in third.images if image.path] == first


def run_into(pipeline: object, folder: Path) -> list[Made]:
    images: list[Made] = pipeline.generate(  # type: ignore[attr-defined]
        "a cat", steps=1, seed=7, num_images=2, output=folder / "a.png"
    ).images
    return images


def test_nothing_of_the_record_is_lost_but_what_changes(tmp_path: Path) -> None:
    kept = json.loads(read_texts(made().save(tmp_path / "a.png"))["sdort"])
    assert {each.name for each in fields(GenerationRecord)} - kept.keys() == {"seconds"}
