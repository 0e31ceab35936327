"""Files of prompts: a run that ended early goes on with what is left, lines with seeds of their own share batches."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from support.tiny_pipeline import Tiny

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.errors import OutputError, SdortError, UsageError
from sdort.first_use.command import load, run
from sdort.generation import resumed_prompts
from sdort.generation.command import Pipeline
from sdort.generation.files.from_image import REPLAYED
from sdort.generation.pipeline import TextToImage
from sdort.generation.requests.record import AdapterRecord
from sdort.generation.requests.request import Request
from sdort.generation.resumed_prompts import _lines, find_unfinished, plan_unfinished, recorded_settings
from sdort.pipelines.folder import PipelineFolder, open_folder

LINES: tuple[Mapping[str, Any], ...] = (
    {"prompt": "a", "seed": 7},
    {"prompt": "b", "negative_prompt": "fog"},
    {"prompt": "c", "num_images": 2},
    {"prompt": "a", "seed": "8-9", "steps": 2},
)
IMAGES = 6


@pytest.fixture(scope="module")
def pipeline(tiny: Tiny) -> Pipeline:
    return load(tiny.onnx, provider="cpu")


@pytest.fixture
def folder(tiny: Tiny) -> PipelineFolder:
    return open_folder(tiny.onnx)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(lines: Sequence[Mapping[str, Any]], name: str = "q.jsonl") -> str:
    Path(name).write_text("\n".join(map(json.dumps, lines)))
    return name


def draw(pipeline: Pipeline, **options: Any) -> Any:
    settings = {"prompts": "q.jsonl", "steps": 1, "guidance_scale": 1.5, "seed": 3, "output": "{index}.png"}
    return pipeline.generate(**{**settings, **options})


def pixels_of(*numbers: int) -> dict[int, bytes]:
    return {number: Image.open(f"{number}.png").tobytes() for number in numbers or range(1, IMAGES + 1)}


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_what_is_missing_is_drawn_and_the_rest_stays(
    pipeline: Pipeline, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(LINES)
    draw(pipeline)
    whole = pixels_of()
    for missing in [{6}, {1}, {4}, set(random.Random(0).sample(range(1, IMAGES + 1), 3)), set(whole), set()]:
        for number in missing:
            Path(f"{number}.png").unlink()
        kept = {number: Path(f"{number}.png").stat().st_mtime_ns for number in whole.keys() - missing}
        capsys.readouterr()
        result = draw(pipeline)
        assert [str(each.path) for each in result.images] == [f"{number}.png" for number in sorted(missing)]
        assert {int(each.stem) for each in result.done_before} == kept.keys()
        assert pixels_of() == whole
        assert {number: Path(f"{number}.png").stat().st_mtime_ns for number in kept} == kept
        left = "nothing left" if not missing else f"{len(missing)} of 6 images left"
        assert (left in told(capsys)) is (len(missing) < IMAGES)
    for number in (3, 4):
        Path(f"{number}.png").unlink()
    draw(pipeline)
    assert "lines 1-2, 4 are done by an earlier run, 2 of 6 images left" in told(capsys)
    Path("4.png").unlink()
    draw(pipeline)
    assert "lines 1-2, 4 are done and line 3 is in part by an earlier run, 1 of 6 images left" in told(capsys)


@pytest.mark.parametrize("variation", [{}, {"variation_strength": 0.5, "variation_seed": 9}])
def test_what_all_images_of_a_line_say_is_found_once(
    variation: Mapping[str, Any], pipeline: Pipeline, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hashes the files of refiners and ControlNets."""
    found: list[str] = []

    def counted(folder: PipelineFolder, request: Request) -> dict[str, Any]:
        found.append(request.prompt)
        return recorded_settings(folder, request)

    monkeypatch.setattr(resumed_prompts, "recorded_settings", counted)
    written([{"prompt": "a", "num_images": 3}, {"prompt": "b", "num_images": 2}])
    draw(pipeline, **variation)
    assert found == []
    Path("1.png").unlink()
    assert [str(each.path) for each in draw(pipeline, **variation).images] == ["1.png"]
    assert found == ["a", "b"]


def test_nothing_is_loaded_where_nothing_is_left(
    tiny: Tiny, pipeline: Pipeline, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(LINES[:1])
    draw(pipeline)
    monkeypatch.setattr("sdort.generation.command.load_folder", lambda *_: pytest.fail("loaded"))
    options: Any = {"prompts": "q.jsonl", "steps": 1, "guidance_scale": 1.5, "seed": 3, "output": "{index}.png"}
    result = run(tiny.onnx, provider="cpu", **options)
    assert (result.images, result.done_before, result.prompt) == ([], [Path("1.png")], "a")


OTHERS: dict[str, tuple[Mapping[str, Any], str]] = {
    "steps": ({"steps": 2}, "its steps is 1, not 2"),
    "guidance": ({"guidance_scale": 2.0}, "its guidance_scale is 1.5, not 2.0"),
    "seed": ({"seed": 4}, "its seed is 3, not 4"),
    "scheduler": ({"scheduler": "ddim"}, "its scheduler"),
    "size": ({"height": 32, "width": 32}, "its height is 64, not 32"),
    "negative prompt": ({"negative_prompt": "mist"}, 'its negative_prompt is "", not "mist"'),
}


@pytest.mark.parametrize(("options", "why"), OTHERS.values(), ids=OTHERS)
def test_an_image_of_other_settings_is_named_and_stays(
    options: Mapping[str, Any], why: str, pipeline: Pipeline, place: Path
) -> None:
    written([{"prompt": "b"}])
    draw(pipeline)
    before = Path("1.png").read_bytes()
    with pytest.raises(OutputError, match=r"1\.png exists and is not of line 1 of q\.jsonl: ") as refused:
        draw(pipeline, **options)
    assert why in str(refused.value)
    assert Path("1.png").read_bytes() == before
    assert [each.path for each in draw(pipeline, **options, overwrite=True).images] == [Path("1.png")]
    assert Path("1.png").read_bytes() != before


def test_files_that_change_places_are_told(pipeline: Pipeline, place: Path) -> None:
    written([{"prompt": "a"}, {"prompt": "b"}])
    draw(pipeline)
    shutil.move("1.png", "x")
    shutil.move("2.png", "1.png")
    with pytest.raises(OutputError, match=r'line 1 of q\.jsonl: its prompt is "b", not "a"'):
        draw(pipeline)
    Image.new("RGB", (64, 64)).save("1.png")
    with pytest.raises(OutputError, match="it does not say how it was drawn"):
        draw(pipeline)
    Path("1.png").write_bytes(Path("x").read_bytes()[:40])
    with pytest.raises(OutputError, match="it does not say how it was drawn"):
        draw(pipeline)


def test_every_setting_that_an_image_is_drawn_again_with_is_compared(folder: PipelineFolder, place: Path) -> None:
    written([{"prompt": "a"}])
    [job] = plan_unfinished((), {"prompts": "q.jsonl", "seed": 1, "steps": 2, "guidance_scale": 2.0})
    compared = recorded_settings(folder, job.requests[0]).keys() - set(resumed_prompts._OF_THE_RUN)
    assert set(REPLAYED.values()) - {"vae_slicing"} <= compared
    assert {
        "model_hash",
        "refiner_hash",
        "lora",
        "control",
        "ip_adapter_image",
        "init_image_hash",
        "mask_hash",
    } <= compared


@pytest.mark.parametrize("variation", [{}, {"variation_strength": 0.5}])
def test_the_seed_of_an_earlier_run_is_found(variation: Mapping[str, Any], pipeline: Pipeline, place: Path) -> None:
    written([{"prompt": "a", "seed": 5}, {"prompt": "b"}, {"prompt": "c", "num_images": 2}])
    draw(pipeline, seed=None, **variation)
    whole = pixels_of(1, 2, 3, 4)
    for missing in ((4,), (2, 3)):
        for number in missing:
            Path(f"{number}.png").unlink()
        assert len(draw(pipeline, seed=None, **variation).images) == len(missing)
        assert pixels_of(1, 2, 3, 4) == whole


def test_names_that_the_seed_is_in_say_how_to_go_on(
    pipeline: Pipeline, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written([{"prompt": "a"}, {"prompt": "b", "steps": 2}])
    real = TextToImage.generate_all

    def interrupted(self: TextToImage, requests: Any, *args: Any) -> Any:
        if requests[0].steps == 2:
            raise KeyboardInterrupt
        return real(self, requests, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TextToImage, "generate_all", interrupted)
        patch.setattr("secrets.randbelow", lambda most: 77)
        with pytest.raises(KeyboardInterrupt):
            draw(pipeline, seed=None, output="{index}-{seed}.png")
    assert "1 of 2 images are written, the last one 1-77.png: the same command --seed 77 goes on" in told(capsys)
    assert [str(each.path) for each in draw(pipeline, seed=77, output="{index}-{seed}.png").images] == ["2-77.png"]


def test_files_without_a_name_of_their_own_go_on_or_take_free_names(tiny: Tiny, place: Path) -> None:
    written([{"prompt": "a"}, {"prompt": "b"}])
    options: Any = {"prompts": "q.jsonl", "steps": 1, "guidance_scale": 1.5, "seed": 3, "provider": "cpu"}
    assert [str(each.path) for each in run(tiny.onnx, **options).images] == ["sdort-3-1.png", "sdort-3-2.png"]
    Path("sdort-3-2.png").unlink()
    assert [str(each.path) for each in run(tiny.onnx, **options).images] == ["sdort-3-2.png"]
    written([{"prompt": "c"}, {"prompt": "b"}])
    assert [str(each.path) for each in run(tiny.onnx, **options).images] == ["sdort-3-run2-1.png", "sdort-3-run2-2.png"]


def test_lines_with_seeds_of_their_own_are_one_job_and_the_same_images(
    pipeline: Pipeline, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Mapping[str, Any]] = [
        {"prompt": "a", "seed": 7},
        {"prompt": "b"},
        {"prompt": "c", "seed": [4, 9]},
        {"prompt": "d", "seed": 7},
    ]
    written(lines)
    [job] = plan_unfinished((), {"prompts": "q.jsonl", "seed": 3})
    drawn = [("a", 7), ("b", 3), ("c", 4), ("c", 9), ("d", 7)]
    assert [(each.prompt, each.seed) for each in job.requests] == drawn
    assert [job.place_of(number) for number in range(5)] == [f"line {line} of q.jsonl" for line in (1, 2, 3, 3, 4)]
    calls: list[int] = []
    real = TextToImage.generate_all

    def counted(self: TextToImage, requests: Any, *rest: Any) -> Any:
        calls.append(len(requests))
        return real(self, requests, *rest)

    monkeypatch.setattr(TextToImage, "generate_all", counted)
    together = [each.pixels for each in draw(pipeline).images]
    assert calls == [5]
    for (prompt, seed), pixels in zip(drawn, together, strict=True):
        alone = pipeline.generate(prompt, seed=seed, steps=1, guidance_scale=1.5).images[0].pixels
        # ONNX Runtime's products of a batch and of one sample may round differently.
        assert abs(alone.astype(int) - pixels).max() <= 1


def test_lines_that_are_drawn_are_those_of_their_own_seeds(place: Path) -> None:
    form = "{red|green|blue|white|black|pink} {cat|dog|fox|owl}"
    written([{"prompt": form, "seed": 7, "num_images": 3}, {"prompt": "b", "num_images": 3}])
    [job] = plan_unfinished((), {"prompts": "q.jsonl", "seed": 3})
    alone = plan_unfinished(form, {"seed": 7, "num_images": 3})[0].requests
    assert [each.prompt for each in job.requests] == [*(each.prompt for each in alone), "b"]
    assert job.lines == (1,) * len(alone) + (2,)


def test_what_is_given_for_all_lines_is_of_those_that_say_nothing(place: Path) -> None:
    written([{"prompt": "a", "negative_prompt": "x"}, {"prompt": "b"}, {"prompt": "c", "negative_prompt": ""}])
    for given in ("fog", ["fog"]):
        [job] = plan_unfinished((), {"prompts": "q.jsonl", "seed": 3, "negative_prompt": given})
        assert [each.negative_prompt for each in job.requests] == ["x", "fog", ""]
    with pytest.raises(UsageError, match=r"line 2 of q\.jsonl: --negative-prompt is given 2 times"):
        plan_unfinished((), {"prompts": "q.jsonl", "seed": 3, "negative_prompt": ["fog", "mist"]})


WRONG: dict[str, Mapping[str, Any]] = {
    "text of another encoder": {"prompt_2": "x"},
    "negative text of another encoder": {"negative_prompt_2": "x"},
    "seed": {"seed": -1},
    "seed of another kind": {"seed": 1.5},
    "seeds": {"seed": "9-1"},
    "size": {"width": 65},
    "steps": {"steps": 0},
    "scheduler": {"scheduler": "nobody"},
    "strength without an image": {"strength": 0.5},
    "weight": {"prompt": "(a:900)"},
    "clip skip": {"clip_skip": 9},
    "hires": {"hires": 1.01},
    "option": {"stepz": 3},
    "type": {"steps": "many"},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("at", [1, 3])
def test_a_wrong_line_of_any_kind_is_named(wrong: Mapping[str, Any], at: int, pipeline: Pipeline, place: Path) -> None:
    lines: list[Mapping[str, Any]] = [{"prompt": "a"}, {"prompt": "b", "seed": 5}, {"prompt": "c"}]
    lines[at - 1] = {**lines[at - 1], **wrong}
    written(lines)
    with pytest.raises(UsageError, match=rf"\bline {at} of q\.jsonl\b"):
        draw(pipeline)
    assert not list(Path().glob("*.png"))


def test_lines_are_told_in_ranges() -> None:
    assert _lines([1, 2, 3, 5, 7, 8]) == "lines 1-3, 5, 7-8 are"
    assert _lines([4]) == "line 4 is"


def test_without_a_file_of_prompts_nothing_is_left_out(folder: PipelineFolder, place: Path) -> None:
    jobs = plan_unfinished("a", {"seed": 1})
    assert find_unfinished(jobs, [Path("a.png")], folder).jobs == jobs


def test_a_record_has_what_ran_and_not_what_the_files_became(tiny: Tiny, tmp_path: Path) -> None:
    """A run keeps its adapters and its refiner open; their files may be gone when an image is written."""
    gone = AdapterChoice(tmp_path / "gone.safetensors", 0.5)
    request = Request("a", lora=(gone,), refiner=tmp_path / "gone")
    folder, ran = open_folder(tiny.onnx), AdapterRecord("gone.safetensors", 0.5, "a" * 64, "b" * 64)
    refiner: Any = SimpleNamespace(model_hash="c" * 16)
    found = recorded_settings(folder, request, lora=[ran], refiner=refiner)
    assert (found["lora"], found["refiner_hash"]) == ([ran], "c" * 16)
    with pytest.raises(SdortError):
        recorded_settings(folder, request, refiner=refiner)
    with pytest.raises(SdortError):
        recorded_settings(folder, request, lora=[ran])
