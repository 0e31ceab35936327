"""Safety checkers: diffusers' decision, transformers' pixels, and what becomes of an image that is flagged."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from support.alive_sessions import in_turn, watching
from support.tiny_pipeline import Tiny
from support.tiny_safety_checker import PROCESSOR, SIDE, add_flags, add_scores, build_safety_checker, cosines

import sdort
from sdort.checkpoints.clip_processing import ClipProcessing, read_processing, usual_processing
from sdort.cli import cli
from sdort.errors import BadModelError, UsageError
from sdort.generation.pictures.clip_pixels import clip_pixels
from sdort.generation.pictures.safety import STRICTER, Verdict, verdict_of
from sdort.generation.pipeline import TextToImage

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
SEEDS = (5, 6, 7)


def test_the_decision_is_that_of_diffusers() -> None:
    """On scores around every rounding, with and without a concept of special care."""
    import torch

    checker = build_safety_checker()
    del checker.vision_model
    checker.__dict__["vision_model"] = lambda embeds: (None, embeds)
    checker.visual_projection = torch.nn.Identity()
    generator = torch.Generator().manual_seed(1)
    embeds = torch.randn(400, 20, generator=generator)
    near = torch.nn.functional.normalize(embeds) @ torch.nn.functional.normalize(checker.concept_embeds).T
    care = torch.nn.functional.normalize(embeds) @ torch.nn.functional.normalize(checker.special_care_embeds).T
    seen = set()
    for image in range(len(embeds)):
        # All concepts but one are far away; that one is as near as makes a difference.
        edge = (-0.0112, -0.0107, -0.0102, -0.0093, -0.0006, -0.0004, 0.0, 0.0004, 0.0006, 0.001)[image % 10]
        checker.concept_embeds_weights.data = near[image] + 1
        checker.concept_embeds_weights.data[image % 17] = near[image, image % 17] - edge
        checker.special_care_embeds_weights.data = care[image] + (0.5, -0.0004, -0.0006, -0.2)[image // 10 % 4]
        _, [flagged] = checker(embeds[image : image + 1], [np.ones((2, 2, 3))])
        scores = (near[image] - checker.concept_embeds_weights).detach().numpy()
        special = (care[image] - checker.special_care_embeds_weights).detach().numpy()
        found = verdict_of(scores, special)
        assert found.flagged == flagged, (edge, special)
        assert found.score == pytest.approx(edge + STRICTER * (image // 10 % 4 > 1), abs=6e-4)
        seen.add((flagged, edge))
    assert len(seen) > 12  # some edges decide either way, by special care


@pytest.mark.parametrize("size", [(90, 61), (20, 33), (64, 64), (7, 8)])
def test_pixels_are_those_of_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    from transformers import CLIPImageProcessorPil

    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8))
    plain = {"size": SIDE, "crop_size": SIDE}
    for config in (PROCESSOR, {**PROCESSOR, "size": 18, "crop_size": SIDE, "resample": 2}, plain):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
        expected = CLIPImageProcessorPil(**config)(picture, return_tensors="np").pixel_values
        assert np.array_equal(clip_pixels(picture, read_processing(tmp_path, SIDE)), expected)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"do_normalize": False}, "do_normalize is false"),
        ({"crop_size": {"height": 16, "width": 20}}, "does not cut a square"),
        ({"size": {"height": 16, "width": 16}}, "does not cut a square"),
        ({"size": 12}, "does not cut a square"),
        ({"crop_size": 18}, "makes 18 pixels a side, and the model takes 16"),
        ({"image_std": [1, 0, 1]}, "image_std"),
    ],
)
def test_pixels_of_another_kind_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **change}))
    with pytest.raises(BadModelError, match=said):
        read_processing(tmp_path, SIDE)


def test_without_settings_pixels_are_clip_s_own(tmp_path: Path) -> None:
    assert read_processing(tmp_path, 224) == usual_processing(224) == ClipProcessing(224, 224)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls ``sdort run PIPELINE ...`` for the images of three seeds, in an empty folder."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    given = ["--prompt", "a", "--steps", "1", "--seed", str(SEEDS[0]), "--num-images", "3", "-o", "x.png"]
    return lambda folder, *more: CliRunner().invoke(cli, ["run", str(folder), *given, "--provider", "cpu", *more])


@pytest.fixture(scope="module")
def drawn(tiny: Tiny) -> list[Any]:
    """The images of three seeds, uint8, by a pipeline without a checker."""
    made = sdort.load(tiny.onnx, provider="cpu").generate("a", steps=1, seed=SEEDS[0], num_images=3)
    assert [image.flagged for image in made.images] == [None] * 3
    return [image.pixels for image in made.images]


@pytest.fixture(scope="module")
def near(drawn: list[Any]) -> Any:
    """The cosine of each image and each concept [3, 2]."""
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(**PROCESSOR)
    pixels = [processor(Image.fromarray(image), return_tensors="np").pixel_values[0] for image in drawn]
    return np.asarray([cosines(each) for each in pixels])


def test_images_of_models_that_are_loaded_in_turn_are_judged(judged: tuple[Path, list[bool]]) -> None:
    options: Any = {"steps": 1, "seed": SEEDS[0], "num_images": 3, "images_at_once": 1}
    with (
        sdort.load(judged[0], provider="cpu") as normal,
        sdort.load(judged[0], provider="cpu", memory="low") as low,
    ):
        loaded = in_turn(normal, low, "a", **options)
        assert loaded == {"text_encoder": 1, "unet": 1, "vae_decoder": 1, "safety_checker": 1}
        assert [image.flagged for image in low.generate("a", **options).images] == judged[1]
        with watching() as alive, pytest.raises(UsageError, match="does not load beside the UNet"):
            low.generate("a", **options, on_preview=lambda _: None)
        assert alive.together == []
        shown: list[Any] = []
        low.generate("a", **{**options, "steps": 3}, on_preview=shown.append, preview_every=1, safety="off")
        assert shown


@pytest.fixture
def judged(tiny: Tiny, near: Any, tmp_path: Path) -> tuple[Path, list[bool]]:
    """A pipeline whose checker flags the image that is nearest to the first concept, and whether each one is."""
    folder = Path(shutil.copytree(tiny.onnx, tmp_path / "judged"))
    first = near[:, 0]
    edge = float(np.sort(first)[-2:].mean())
    add_scores(folder, [edge, 2.0])
    flagged = [bool(each > edge) for each in first]
    assert sum(flagged) == 1
    return folder, flagged


def words(result: Result) -> str:
    return " ".join(result.output.split())


def pixels_of(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image)


def test_a_flagged_image_is_not_written(
    judged: tuple[Path, list[bool]], drawn: list[Any], call: Callable[..., Result]
) -> None:
    folder, flagged = judged
    result = call(folder)
    assert result.exit_code == 1, result.output
    for number, (black, image) in enumerate(zip(flagged, drawn, strict=True), 1):
        path = Path(f"x-{number}.png")
        assert path.exists() != black
        assert black or np.array_equal(pixels_of(path), image)
    seed = SEEDS[flagged.index(True)]
    assert f"the image of seed {seed} is not written: the pipeline's safety checker flagged it" in words(result)
    assert "1 of 3 images is not written" in words(result)
    assert "2 images, x-" in words(result)
    assert "safety checker 0." in words(result)


def test_a_flagged_image_is_replaced_by_a_black_one(
    judged: tuple[Path, list[bool]], drawn: list[Any], call: Callable[..., Result]
) -> None:
    folder, flagged = judged
    result = call(folder, "--safety", "replace")
    assert result.exit_code == 0, result.output
    for number, (black, image) in enumerate(zip(flagged, drawn, strict=True), 1):
        path = Path(f"x-{number}.png")
        assert np.array_equal(pixels_of(path), np.zeros_like(image) if black else image)
        with Image.open(path) as written:
            record = json.loads(written.text["sdort"])  # type: ignore[attr-defined]
        assert (record["safety"], record["flagged"]) == ("replace", black)
    assert f"seed {SEEDS[flagged.index(True)]} is replaced by a black one" in words(result)


def test_off_is_told_and_nothing_is_judged(
    judged: tuple[Path, list[bool]], drawn: list[Any], call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextToImage, "judge", lambda *_: pytest.fail("it was asked"))
    result = call(judged[0], "--safety", "off", "--json")
    assert result.exit_code == 0, result.output
    assert "does not look at the images" in result.stderr
    document = json.loads(result.stdout)
    assert (document["safety"], document["flagged"]) == ("off", None)
    assert all(np.array_equal(pixels_of(Path(f"x-{n}.png")), image) for n, image in enumerate(drawn, 1))


def test_json_says_what_was_flagged(judged: tuple[Path, list[bool]], near: Any, call: Callable[..., Result]) -> None:
    result = call(judged[0], "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [image["flagged"] for image in document["images"]] == judged[1]
    assert [image["path"] is None for image in document["images"]] == judged[1]
    edge = np.sort(near[:, 0])[-2:].mean()
    assert [image["safety_score"] for image in document["images"]] == pytest.approx(near[:, 0] - edge, abs=6e-4)
    assert (document["safety"], document["flagged"]) == ("on", True)


def test_in_python_pixels_are_black_and_nothing_is_raised(
    judged: tuple[Path, list[bool]], tmp_path: Path, drawn: list[Any]
) -> None:
    folder, flagged = judged
    pipeline = sdort.load(folder, provider="cpu")
    result = pipeline.generate("a", steps=1, seed=SEEDS[0], num_images=3)
    assert ([image.flagged for image in result.images], result.flagged) == (flagged, True)
    for image, black, expected in zip(result.images, flagged, drawn, strict=True):
        assert np.array_equal(image.pixels, np.zeros_like(expected) if black else expected)
    assert len(result.save(tmp_path / "x.png")) == 2
    bad = result.images[flagged.index(True)]
    for target in (tmp_path / "bad.png", io.BytesIO()):
        with pytest.raises(UsageError, match="flagged it"):
            bad.save(target)
    replaced = pipeline.generate("a", steps=1, seed=bad.seed, safety="replace")
    assert replaced.images[0].save(tmp_path / "black.png").exists()
    unjudged = pipeline.generate("a", steps=1, seed=bad.seed, safety="off")
    assert (unjudged.flagged, unjudged.images[0].flagged) == (None, None)
    assert np.array_equal(unjudged.images[0].pixels, drawn[flagged.index(True)])


def test_special_care_judges_more_strictly(tiny: Tiny, near: Any, call: Callable[..., Result], tmp_path: Path) -> None:
    """All images are just below a threshold, and special care takes them above it."""
    folder = Path(shutil.copytree(tiny.onnx, tmp_path / "strict"))
    add_scores(folder, [float(near[:, 0].max()) + 0.5 * STRICTER, 2.0], care=2.0)
    assert call(folder, "--json").exit_code == 0
    add_scores(folder, [float(near[:, 0].max()) + 0.5 * STRICTER, 2.0], care=-2.0)
    document = json.loads(call(folder, "--json", "--overwrite").stdout)
    assert [image["flagged"] for image in document["images"]].count(True) >= 1


def test_a_checker_that_decides_by_itself(
    judged: tuple[Path, list[bool]], near: Any, call: Callable[..., Result]
) -> None:
    """As diffusers' conversion script exports it: it also takes images, and makes them black."""
    folder, flagged = judged
    add_flags(folder, [float(np.sort(near[:, 0])[-2:].mean()), 2.0])
    document = json.loads(call(folder, "--json").stdout)
    assert [image["flagged"] for image in document["images"]] == flagged
    assert [image["safety_score"] for image in document["images"]] == [None] * 3


@pytest.mark.parametrize("asked", ["on", "replace"])
def test_a_pipeline_without_a_checker_refuses(asked: str, tiny: Tiny, call: Callable[..., Result]) -> None:
    result = call(tiny.onnx, "--safety", asked)
    assert result.exit_code == 3
    assert f"has no safety_checker, which --safety {asked} asks" in words(result)
    assert not Path("x-1.png").exists()


def test_a_pipeline_without_a_checker_does_nothing_of_itself(tiny: Tiny, call: Callable[..., Result]) -> None:
    for given in ((), ("--safety", "off", "--overwrite")):
        result = call(tiny.onnx, *given)
        assert result.exit_code == 0
        assert "safety" not in result.output


def test_what_is_no_checker_or_no_choice_is_refused_before_anything_is_drawn(
    judged: tuple[Path, list[bool]], call: Callable[..., Result]
) -> None:
    folder, _ = judged
    model = folder / "safety_checker" / "model.onnx"
    shutil.copy(folder / "vae_decoder" / "model.onnx", model)
    result = call(folder)
    assert result.exit_code == 3
    assert "nothing is known of a safety checker that maps latent_sample to sample" in words(result)
    assert "denoise" not in result.output
    assert call(folder, "--safety", "off").exit_code == 0
    with pytest.raises(UsageError, match="not one of on, off, replace"):
        sdort.run(folder, "a", safety="maybe", provider="cpu")


def test_previews_and_larger_images_are_judged_too(
    judged: tuple[Path, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    def judge(self: TextToImage, pixels: Any) -> Verdict:
        seen.append(pixels.shape)
        return Verdict(len(seen) % 2 == 1, 0.5)

    monkeypatch.setattr(TextToImage, "judge", judge)
    shown: list[Any] = []
    settings: Any = {"steps": 3, "seed": 1, "preview_every": 2, "hires": 1.5, "on_preview": shown.append}
    pipeline = sdort.load(judged[0], provider="cpu")
    result = pipeline.generate("a", **settings)
    assert seen[-1] == (96, 96, 3)  # the enlarged image, once
    assert seen.count(seen[-1]) == 1
    assert len(seen) == len(shown) + 1 > 1
    assert [bool(preview.images[0].any()) for preview in shown] == [number % 2 == 1 for number in range(len(shown))]
    assert result.images[0].flagged == (len(seen) % 2 == 1)
    shown.clear()
    seen.clear()
    pipeline.generate("a", **settings, safety="off")
    assert not seen
    assert all(preview.images[0].any() for preview in shown)
