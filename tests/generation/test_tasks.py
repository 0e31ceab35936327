"""Images from images: those of diffusers' own pipelines, and a sentence for everything that cannot be."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from support import task_parity, without
from support.pipelines import trace_folder
from support.task_parity import GUIDANCE, NEGATIVE, PROMPT, Built, mask, ours, picture, theirs

import sdort
from sdort.cli import cli
from sdort.errors import BadModelError, SdortError, UsageError
from sdort.generation.denoising.device_loop import Loop
from sdort.generation.pictures.image_sizes import size_from
from sdort.generation.pictures.input_image import read_image
from sdort.generation.schedules.image_noise import ImageSeed, NoiseSource, slerp
from sdort.generation.schedules.recurrence import Recurrence
from sdort.verification.metrics import psnr

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ALIKE = 60
_built: dict[str, Built] = {}


@pytest.fixture
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def build(name: str) -> Built:
        if name not in _built:
            _built[name] = task_parity.build(name, tmp_path_factory.mktemp("family"), trace_folder(request.config))
        return _built[name]

    return build


# --- the same images as diffusers ---


@pytest.mark.parametrize(
    ("name", "task", "scheduler"),
    [
        ("sd1", "img2img 0.6", "euler-a"),
        ("sd1", "img2img 1", "heun"),
        ("sd1", "inpaint 1", "dpm++-2m-sde"),
        ("sd1", "inpaint 0.6", "heun"),
        ("sd1", "only masked", "lcm"),
        ("sd1", "hires", "pndm"),
        ("sd1 inpainting", "inpaint 1", "euler-a"),
        ("sd1 inpainting", "inpaint 0.6", "ddim"),
        ("sd1 tiny vae", "inpaint 0.6", "euler-a"),
        ("sdxl", "img2img 0.6", "euler"),
        ("sdxl", "inpaint 0.6", "euler-a"),
        ("sdxl", "hires", "dpm++-2m"),
    ],
)
def test_images_are_those_of_diffusers(name: str, task: str, scheduler: str, family: Any) -> None:
    built = family(name)
    drawn, wanted = ours(built, task, steps=5, seed=11, scheduler=scheduler)[0], None
    wanted = theirs(built, task, steps=5, seed=11, scheduler=scheduler)
    assert drawn.shape == wanted.shape
    assert drawn.std() > 20, "the image shows nothing, so that any two are alike"
    assert psnr(drawn, wanted) >= ALIKE
    other = ours(built, task, steps=5, seed=12, scheduler=scheduler)[0]
    assert psnr(other, wanted) < 45, "another seed gives the same image"


@pytest.mark.parametrize(("name", "task"), [("sd1", "inpaint 0.6"), ("sd1 inpainting", "inpaint 1"), ("sd1", "hires")])
def test_through_the_host_it_is_the_same_image(
    name: str, task: str, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = family(name)
    on_device = ours(built, task, steps=4, seed=3, scheduler="euler-a")[0]
    asked: list[Recurrence] = []
    monkeypatch.setattr(Loop, "fits", lambda self, recurrence, batch: asked.append(recurrence))
    assert psnr(ours(built, task, steps=4, seed=3, scheduler="euler-a")[0], on_device) >= ALIKE
    assert len(asked) == (2 if task == "hires" else 1)


def test_tasks_need_no_torch(family: Any, tmp_path: Path) -> None:
    built = family("sd1")
    tasks = {"img2img 0.6": "lms", "inpaint 0.6": "unipc", "only masked": "dpm2", "hires": "pndm"}
    picture(built.side).save(tmp_path / "picture.png")
    mask(built.side).save(tmp_path / "mask.png")
    common: dict[str, Any] = {"negative_prompt": NEGATIVE, "guidance_scale": GUIDANCE, "steps": 4, "seed": 2,
                              "height": built.side, "width": built.side}  # fmt: skip
    cases = []
    for task, scheduler in tasks.items():
        case = {**common, **task_parity.TASKS[task], "scheduler": scheduler}
        case |= {} if task == "hires" else {"init_image": tmp_path / "picture.png"}
        cases.append(case | ({"mask": tmp_path / "mask.png"} if "mask" in case else {}))
    drawn = without.draw(built.folder, tmp_path, PROMPT, *cases)
    for (task, scheduler), image in zip(tasks.items(), drawn, strict=True):
        np.testing.assert_array_equal(image, ours(built, task, steps=4, seed=2, scheduler=scheduler)[0], task)


@pytest.mark.parametrize("task", ["inpaint 0.6", "hires"])
def test_an_image_of_several_is_the_same_alone(task: str, family: Any) -> None:
    built = family("sd1")
    several = ours(built, task, steps=3, seed=5, num_images=3, images_at_once=2, scheduler="euler-a")
    alone = ours(built, task, steps=3, seed=7, scheduler="euler-a")[0]
    assert psnr(several[2], alone) >= ALIKE
    assert psnr(several[1], alone) < 45


def test_what_the_mask_leaves_is_the_original_to_the_bit(family: Any) -> None:
    built = family("sd1")
    for task in ("inpaint 1", "only masked"):
        made = ours(built, task, steps=2, seed=1, mask_blur=0)[0]
        size = (made.shape[1], made.shape[0])
        original = np.asarray(picture(64).resize(size, Image.Resampling.LANCZOS))
        kept = np.asarray(mask(64).resize(size, Image.Resampling.LANCZOS)) == 0
        assert 0.5 < kept.mean() < 0.95
        np.testing.assert_array_equal(made[kept], original[kept])
        assert np.abs(made[~kept].astype(int) - original[~kept]).mean() > 20
    assert ours(built, "only masked", steps=2, seed=1)[0].shape == (64, 80, 3), "the init image's own size"


# --- variations ---


def test_variations_go_from_the_seed_to_another(family: Any) -> None:
    built = family("sd1")

    def made(**options: Any) -> Any:
        return ours(built, "hires", hires=None, hires_strength=None, steps=3, **options)

    plain, other = made(seed=4)[0], made(seed=9)[0]
    none = made(seed=4, variation_seed=9, variation_strength=0.0)[0]
    whole = made(seed=4, variation_seed=9, variation_strength=1.0)[0]
    some = made(seed=4, variation_seed=9, variation_strength=0.1, num_images=2)
    assert min(psnr(none, plain), psnr(whole, other)) >= ALIKE
    assert psnr(whole, plain) < psnr(some[0], plain) < ALIKE
    assert psnr(some[0], some[1]) < ALIKE
    np.testing.assert_array_equal(some[1], made(seed=4, variation_seed=10, variation_strength=0.1)[0])


def test_slerp_keeps_the_deviation_of_noise_and_meets_both_ends() -> None:
    """Half-way between two perpendicular columns each has a share of sqrt(1/2), where a mean would have a half."""
    source = NoiseSource([ImageSeed(1), ImageSeed(2)])
    low, high = source.draw((4, 64, 8)), source.draw((4, 64, 8))
    for amount, end in ((0.0, low), (1.0, high)):
        np.testing.assert_allclose(slerp(amount, low, end if amount else high), end, rtol=1e-5, atol=1e-6)
    assert 0.95 < slerp(0.5, low, high).std() < 1.05
    across = np.zeros((1, 1, 2, 1), np.float32), np.zeros((1, 1, 2, 1), np.float32)
    across[0][0, 0, 0], across[1][0, 0, 1] = 3.0, 3.0
    np.testing.assert_allclose(slerp(0.5, *across).flatten(), [3 * 0.5**0.5] * 2, rtol=1e-6)
    np.testing.assert_allclose(slerp(0.3, low, low), low, rtol=1e-6)  # parallel


# --- sizes ---


@pytest.mark.parametrize(
    ("size", "asked", "expected"),
    [
        ((100, 203), (None, None), [96, 200]),  # its own, rounded down
        ((768, 1024), (None, None), [768, 1024]),
        ((3024, 4032), (None, None), [440, 592]),  # a photograph: as many pixels as the model has
        ((5, 300), (None, None), [8, 296]),
        ((300, 600), (None, 512), [256, 512]),  # one is asked for, the other follows
        ((300, 600), (64, None), [64, 128]),
        ((300, 600), (64, 64), [64, 64]),
    ],
)
def test_the_size_is_the_images_own(size: tuple[int, int], asked: tuple[Any, Any], expected: list[int]) -> None:
    image = read_image(Image.new("RGB", size[::-1]), "--init-image")
    assert size_from(image, asked, (512, 512), 8) == expected


# --- the command ---


@pytest.fixture
def command(family: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    picture(64).save("photo.png")
    mask(64).save("mask.png")
    picture(32).save("small.png")
    Image.new("L", (80, 64)).save("black.png")
    Image.new("L", (80, 64), 255).save("white.png")
    dot = Image.new("L", (80, 64))
    dot.putpixel((41, 33), 255)
    dot.save("dot.png")

    def call(*args: str, name: str = "sd1") -> Result:
        folder = str(family(name).folder)
        given = ["--prompt", "a cat", "--steps", "2", "--seed", "7", "--provider", "cpu", "-o", "out.png"]
        return CliRunner().invoke(cli, ["run", folder, *given, *args])

    return call


def test_an_image_and_a_mask_on_the_command_line(command: Any) -> None:
    result = command("--init-image", "photo.png", "--mask", "mask.png", "--strength", "0.5", "--height", "64")
    assert result.exit_code == 0, result.output
    with Image.open("out.png") as made:
        assert made.size == (80, 64)
        record, text = json.loads(made.info["sdort"]), made.info["parameters"]
    expected = {"init_image": "photo.png", "mask": "mask.png", "strength": 0.5, "mask_blur": 4, "only_masked": False}
    assert {name: record[name] for name in expected} == expected
    assert re.fullmatch("[0-9a-f]{16}", record["init_image_hash"])
    assert "Denoising strength: 0.5" in text
    assert "Mask blur: 4" in text


def test_an_image_from_an_image_is_drawn_again(command: Any) -> None:
    options = ["--strength", "0.5", "--mask-blur", "2", "--scheduler", "euler-a", "--guidance-scale", "3"]
    assert command(*MASKED, "mask.png", *options).exit_code == 0
    again = command(*MASKED, "mask.png", "--from-image", "out.png", "-o", "again.png")
    assert again.exit_code == 0, again.output
    assert "differ" not in again.output
    first, second = Path("out.png").read_bytes(), Path("again.png").read_bytes()
    np.testing.assert_array_equal(read_image("again.png", "").picture, read_image("out.png", "").picture)
    assert b'"mask_blur": 2' in first
    assert b'"mask_blur": 2' in second
    told = re.sub(r"\s+", " ", command("--from-image", "out.png", "-o", "b.png").output)
    assert "drawn with files that are not in it: photo.png, mask.png" in told
    assert "Give them with --init-image and --mask." in told
    picture(64).rotate(180).save("photo.png")
    told = re.sub(r"\s+", " ", command(*MASKED, "mask.png", "--from-image", "out.png", "-o", "b.png").output)
    assert "--init-image photo.png is not the photo.png that the image was drawn with" in told
    assert "--mask" not in told
    assert read_image("b.png", "").digest != read_image("out.png", "").digest
    Path("mask.png").unlink()
    assert "cannot read mask.png" in command(*MASKED, "mask.png", "--from-image", "out.png", "-o", "c.png").output


def test_a_larger_second_pass_on_the_command_line(command: Any) -> None:
    result = command("--hires", "1.5", "--hires-upscale", "image", "--hires-steps", "3", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    with Image.open("out.png") as made:
        assert made.size == (96, 96)
        assert "Hires upscale: 1.5" in made.info["parameters"]
    assert (record["height"], record["hires_steps"], record["hires_strength"]) == (64, 3, 0.7)
    assert record["seconds"]["encode_image"] > 0


def test_variations_on_the_command_line_tell_their_seeds(command: Any) -> None:
    result = command("--variation-strength", "0.1", "--num-images", "2", "--json")
    assert result.exit_code == 0, result.output
    images = json.loads(result.stdout)["images"]
    assert [image["seed"] for image in images] == [7, 7]
    assert images[1]["variation_seed"] == images[0]["variation_seed"] + 1
    with Image.open("out-2.png") as made:
        assert json.loads(made.info["sdort"])["variation_seed"] == images[1]["variation_seed"]
        assert f"Variation seed: {images[1]['variation_seed']}" in made.info["parameters"]


MASKED = ("--init-image", "photo.png", "--mask")


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["--init-image", "photo.png", "--strength", "0"], 2, "--strength 0 of 2 steps leaves none to take"),
        (["--init-image", "photo.png", "--strength", "0.4"], 2, "--strength 0.4 of 2 steps leaves none to take"),
        (["--init-image", "photo.png", "--strength", "1.1"], 2, "1.1 is not a number from 0 to 1"),
        (["--strength", "0.5"], 2, "--strength means nothing without --init-image"),
        (["--mask", "mask.png"], 2, "--mask means nothing without --init-image"),
        (["--init-image", "photo.png", "--only-masked"], 2, "--only-masked means nothing without --mask"),
        (["--variation-seed", "3"], 2, "--variation-seed means nothing without --variation-strength"),
        (["--hires-steps", "3"], 2, "--hires-steps means nothing without --hires"),
        (["--hires", "2", "--init-image", "photo.png"], 2, "--hires goes with text alone, not with --init-image"),
        (["--hires", "2", "--hires-strength", "0.3"], 2, "--hires-strength 0.3 of 2 steps leaves none"),
        ([*MASKED, "small.png"], 2, "--mask small.png has 40x32 pixels and --init-image photo.png 80x64"),
        ([*MASKED, "black.png"], 2, "--mask black.png selects nothing"),
        ([*MASKED, "dot.png", "--mask-blur", "0"], 2, "is too small: at 80x64 pixels it covers no square of 4"),
        ([*MASKED, "dot.png", "--mask-blur", "0"], 2, "or generate its surroundings alone, larger: --only-masked"),
        ([*MASKED, "dot.png", "--mask-blur", "0", "--only-masked"], 2, "Draw it larger, or ask for a larger image"),
        (["--init-image", "missing.png"], 2, "cannot read missing.png"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_sentence(args: list[str], code: int, sentence: str, command: Any) -> None:
    result = command(*args)
    assert result.exit_code == code, result.output
    assert sentence in re.sub(r"\s+", " ", result.output)
    assert not Path("out.png").exists()


def test_what_is_not_quite_as_asked_is_told(command: Any) -> None:
    told = command(*MASKED, "white.png", "--width", "64", "--height", "32").output
    assert "photo.png is resized from 80x64 to 64x32 pixels, which are other proportions" in re.sub(r"\s+", " ", told)
    assert "--mask white.png is all white: the whole image is generated anew" in re.sub(r"\s+", " ", told)


def test_an_inpainting_model_wants_a_mask(command: Any) -> None:
    for args in ([], ["--init-image", "photo.png"]):
        result = command(*args, name="sd1 inpainting")
        assert result.exit_code == BadModelError.exit_code, result.output
        assert "takes 9 channels, not the 4 of latent noise; it is an inpainting model" in result.output
        assert "--init-image PHOTO --mask MASK" in result.output


def test_an_init_image_wants_the_encoder(family: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(family("sd1").folder, tmp_path / "without"))
    shutil.rmtree(folder / "vae_encoder")
    with pytest.raises(BadModelError, match="has no vae_encoder, which --init-image needs"):
        sdort.run(folder, "a cat", provider="cpu", steps=2, init_image=picture(64), output=tmp_path / "a.png")
    assert sdort.run(folder, "a cat", provider="cpu", steps=2, output=tmp_path / "a.png").images


def test_pictures_and_arrays_are_taken_as_files_are(family: Any) -> None:
    pipeline = sdort.load(family("sd1").folder, provider="cpu")
    images = [
        pipeline.generate("a cat", steps=2, seed=1, init_image=source).images[0].pixels
        for source in (picture(64), np.asarray(picture(64)))
    ]
    np.testing.assert_array_equal(images[0], images[1])
    with pytest.raises(SdortError) as caught:
        pipeline.generate("a cat", init_image=np.zeros((4, 4)))  # type: ignore[arg-type]
    assert isinstance(caught.value, UsageError)
