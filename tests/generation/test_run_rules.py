"""Rules of a run that no image is drawn for: files, seeds, prompts and options, each at its own function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.noting import noting

from sdort.errors import CancelledError, OutputError, ParityError, UsageError
from sdort.generation import command, job
from sdort.generation.command import BadImage, _case, _refuse_bad, _shown_progress, _with_placement
from sdort.generation.denoising import ip_adapter_tokens
from sdort.generation.denoising.step_progress import StepProgress
from sdort.generation.files.image_files import _check_place, _free_paths
from sdort.generation.files.output_names import FIELDS, _parts, plain_name
from sdort.generation.files.prompts_file import Lines, _object, together
from sdort.generation.job import Job, _read_files, _remark_on_files, _within_limit, plan_lines
from sdort.generation.pictures.clip_pixels import resized as resized_sides
from sdort.generation.requests import tokenizers
from sdort.generation.requests.control_choice import ControlChoice, _pairs, parse_control_choice
from sdort.generation.requests.ip_adapter_choice import IpAdapterChoice
from sdort.generation.requests.request import Request, _check_mask, _for_each, check_tasks, check_text
from sdort.generation.requests.seeds import read_seeds
from sdort.generation.requests.typed_options import PreviewOptions
from sdort.generation.resumed_prompts import Unfinished
from sdort.generation.run_summary import _seeds


def image(tall: int, wide: int, level: int = 255, name: str = "a.png") -> Any:
    picture = Image.fromarray(np.full((tall, wide), level, np.uint8))
    return SimpleNamespace(name=name, picture=picture, size=(tall, wide), __str__=lambda self: name)


# Seeds and names


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ([7, 7], "seed 7"),
        ([9, 8, 7, 8], "seeds 7 to 9"),
        ([3, 5], "seeds 3, 5"),
        ([9, 1, 3, 5, 7], "seeds 1, 3, 5, 7, 9"),
        ([9, 1, 3, 5, 7, 12], "6 seeds"),
        ([1, 2, 3, 4, 5, 6, 7], "seeds 1 to 7"),
    ],
)
def test_seeds_in_the_last_lines(seeds: list[int], text: str) -> None:
    assert _seeds(seeds) == text


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("7", (7,)),
        (" 1 , 5,, 10 - 12 ,", (1, 5, 10, 11, 12)),
        ("4-4", (4,)),
        ("70000-70002", (70000, 70001, 70002)),
        ("0-9999", tuple(range(10_000))),
        ("5-4", "--seed 5-4: a range goes up"),
        ("0-10000", "at most 10,000 numbers"),
        ("-3", "-3"),
        ("3-x", "'x'|x"),
        ("3--2", "-2"),
        ("", "--seed has no number"),
        (",", "--seed has no number"),
        ("1-6000,1-6000", "more than 10,000 numbers"),
    ],
)
def test_seeds_that_are_read(text: str, seeds: tuple[int, ...] | str) -> None:
    if isinstance(seeds, tuple):
        assert read_seeds(text) == seeds
        return
    with pytest.raises(UsageError, match=seeds):
        read_seeds(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a cat", "a-cat"),
        ("  A_cat!! by/night  ", "A-cat-by-night"),
        ("", "image"),
        ("!?", "image"),
        ("e\u0301te\u0301", "été"),
        ("a" * 500, None),
        ("星" * 500, None),
        ("ab " * 200, None),
    ],
    ids=["words", "signs", "empty", "signs alone", "accents", "long", "long in bytes", "long words"],
)
def test_the_name_of_a_prompt(text: str, name: str | None) -> None:
    made = plain_name(text)
    assert name is None or made == name
    assert re.fullmatch(r"[^\W_](?:-?[^\W_])*", made)
    if len(text) >= 500:  # 60 characters, or 150 bytes, without a hyphen at the end
        assert (len(made), len(made.encode())) == {"a": (60, 60), "星": (50, 150), " ": (59, 59)}[text[-1]]


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("a.png", [("a.png", "", "")]),
        ("{{a}}{seed:05}-{index}.png", [("{", "", ""), ("a}", "", ""), ("", "seed", "05"), ("-", "index", ""),
                                        (".png", "", "")]),
        ("{index:99}", [("", "index", "99")]),
        ("{prompt:3}", "format {prompt:3}, which"),
        ("{index:0}", "has the format"),
        ("{index:100}", "has the format"),
        ("{seed:.3f}", "has the format"),
        ("{seed!r}", "has the format"),
        ("{sed}", "has the field {sed}, which there is not"),
        ("{}", "has the field {}"),
        ("{seed", "is no template"),
    ],
)  # fmt: skip
def test_fields_of_a_template(template: str, parts: list[tuple[str, str, str]] | str) -> None:
    if not isinstance(parts, str):
        joined = "".join(text for text, _, _ in _parts(template))
        assert joined == "".join(text for text, _, _ in parts)
        assert [part[1:] for part in _parts(template) if part[1]] == [part[1:] for part in parts if part[1]]
        return
    with pytest.raises(UsageError, match=re.escape(parts)) as error:
        _parts(template)
    if "field" in parts:
        assert all(f"{{{field}}}, " in str(error.value.hint) for field in FIELDS)
        assert ("seed" in str(error.value.hint).split("{")[0]) is (template == "{sed}")


def test_images_of_a_run_are_free_together(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    assert _free_paths(path, 1) == [path]
    (tmp_path / "a-2.png").symlink_to(tmp_path / "nowhere")  # a link to nothing is there too
    assert _free_paths(path, 2) == [tmp_path / "a-run2-1.png", tmp_path / "a-run2-2.png"]
    (tmp_path / "a-run2-1.png").touch()
    assert _free_paths(path, 2) == [tmp_path / "a-run3-1.png", tmp_path / "a-run3-2.png"]
    assert _free_paths(path, 1) == [path]
    path.touch()
    assert _free_paths(path, 1) == [tmp_path / "a-run2.png"]


def test_the_place_of_an_image_is_a_folder_or_will_be(tmp_path: Path) -> None:
    _check_place(tmp_path / "new" / "newer" / "a.png")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "a.png", tmp_path / "file" / "b" / "a.png"):
        with pytest.raises(OutputError, match="file is no folder"):
            _check_place(path)


# Controls and images of an IP-Adapter


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("net:a.png", [("net", "a.png")]),
        ("a:b:c", [("a", "b:c"), ("a:b", "c")]),
        (r"C:\net:D:\a.png", [(r"C:\net", r"D:\a.png")]),
        (r"C:/net:a.png", [("C:/net", "a.png")]),
        (r"net:C:\a.png", [("net", r"C:\a.png")]),
        (r"xC:\a.png", [("xC", r"\a.png")]),
        (":a", []),
        ("a:", []),
    ],
)
def test_colons_that_part_a_control(text: str, pairs: list[tuple[str, str]]) -> None:
    assert [*_pairs(text)] == pairs


def test_a_control_whose_numbers_are_part_of_a_name(tmp_path: Path) -> None:
    """What exists is taken, the whole text first; else the first colon parts names, and numbers are numbers."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net:ab").mkdir()
    for name in ("a.png", "b.png:2", "c"):
        (tmp_path / name).touch()
    for text, path, image, numbers in (
        (f"net:{tmp_path}/a.png:0.5:0.25:0.75", "net", "a.png", (0.5, 0.25, 0.75)),
        (f"net:{tmp_path}/a.png:-0.5", "net", "a.png", (-0.5, 0, 1)),
        (f"net:{tmp_path}/b.png:2", "net", "b.png:2", (1, 0, 1)),
        (f"net:ab:{tmp_path}/c", "net:ab", "c", (1, 0, 1)),
        (f"net:ab:{tmp_path}/c:3", "net:ab", "c", (3, 0, 1)),
    ):
        found = parse_control_choice(f"{tmp_path}/{text}")
        assert (found.path, found.image) == (tmp_path / path, tmp_path / image)
        assert (found.scale, found.start, found.end) == numbers
    for text, path, image, numbers in (
        ("no:such:2", "no", "such", (2, 0, 1)),
        ("no:such:x:2:0.5:1", "no", "such:x", (2, 0.5, 1)),
        ("no:such:x", "no", "such:x", (1, 0, 1)),
        ("no:2", "no", "2", (1, 0, 1)),
    ):
        found = parse_control_choice(text)
        assert (found.path, found.image, found.scale, found.start, found.end) == (Path(path), Path(image), *numbers)
    for text in (r"C:\net", "net", ":", "a:"):
        with pytest.raises(UsageError, match="expected DIR:IMAGE"):
            parse_control_choice(text)


@pytest.mark.parametrize(
    ("size", "resized"),
    [((100, 100), (24, 24)), ((100, 150), (24, 36)), ((150, 100), (36, 24)), ((100, 109), (24, 26)),
     ((10, 320), (24, 768))],
)  # fmt: skip
def test_an_image_for_the_encoder_keeps_its_sides(size: tuple[int, int], resized: tuple[int, int]) -> None:
    assert resized_sides(size, 24) == resized


def test_an_image_for_the_encoder_is_not_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ip_adapter_tokens, "LONGEST", 3)
    ip_adapter_tokens._refuse_thin(image(10, 30))
    for size, shown in (((10, 31), "31x10"), ((31, 10), "10x31")):
        with pytest.raises(UsageError, match=f"has {shown} pixels, which is too long"):
            ip_adapter_tokens._refuse_thin(image(*size))


def test_choices_are_taken_as_they_are_or_read(tmp_path: Path) -> None:
    control, image_of = ControlChoice(Path("net"), "a.png", 0.5), IpAdapterChoice("a.png", 0.5)
    assert job.choose_control(control) is control
    assert job.choose_ip_adapter_image(image_of) is image_of
    assert job.choose_control("net:a.png:0.5") == ControlChoice(Path("net"), Path("a.png"), 0.5)
    (tmp_path / "b.png:2").touch()
    path: Any = tmp_path / "b.png:2"  # as people give it beside texts
    assert job.choose_ip_adapter_image(path) == IpAdapterChoice(path)
    assert job.choose_ip_adapter_image("a.png:-.5") == IpAdapterChoice(Path("a.png"), -0.5)
    assert job.choose_ip_adapter_image("a.png:x") == IpAdapterChoice(Path("a.png:x"))
    for wrong in ("", ":2"):
        with pytest.raises(UsageError, match="expected IMAGE or IMAGE:SCALE"):
            job.choose_ip_adapter_image(wrong)


# Requests


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_blur": 3}, "--mask-blur means nothing without --mask"),
        ({"hires_steps": 3}, "--hires-steps means nothing without --hires"),
        ({"refiner_start": 0.5}, "--refiner-start means nothing without --refiner"),
        ({"strength": 0.5}, "--strength means nothing without --init-image"),
        ({"variation_strength": 0.5, "variation_seed": None}, None),
        ({"hires": 2.0}, None),
        ({"hires": 2.0, "init_image": image(4, 6)}, "--hires goes with text alone"),
        ({"refiner": Path("r")}, None),
        ({"refiner": Path("r"), "init_image": image(4, 6)}, None),
        ({"refiner": Path("r"), "hires": 2.0}, "whole image, not with --hires"),
        ({"refiner": Path("r"), "init_image": image(4, 6), "mask": image(4, 6)}, "whole image, not with --mask"),
        ({"hires": 2.0, "hires_upscale": "latent"}, None),
        ({"hires": 2.0, "hires_upscale": "image"}, None),
        ({"hires": 2.0, "hires_upscale": "other"}, "--hires-upscale 'other' is not one of latent, image"),
        ({"init_image": image(4, 6), "mask": image(4, 6)}, None),
        ({"init_image": image(4, 6), "mask": image(6, 4, name="m.png")}, "--mask m.png has 4x6 pixels and --init-image "
                                                                          "a.png 6x4"),
        ({"mask": image(4, 6)}, "--mask means nothing without --init-image"),
    ],
    ids=lambda value: "+".join(map(str, value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_tasks_that_go_together(fields: dict[str, Any], message: str | None) -> None:
    request: Any = SimpleNamespace(**{**vars(Request("a")), **fields})
    if message is None:
        check_tasks(request)
        return
    with pytest.raises(UsageError, match=re.escape(message)):
        check_tasks(request)


def test_a_mask_selects_something() -> None:
    _check_mask(image(4, 6), image(4, 6, 128))
    with pytest.raises(UsageError, match="--mask m selects nothing"):
        _check_mask(image(4, 6), image(4, 6, 127, "m"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n\t\x7f\ue000\ud7ff", None),
        ("x" * (1 << 17), None),
        ("x" * ((1 << 17) + 1), "--prompt-2 has 131,073 characters, at most 131,072"),
        ("ab\0", r"--prompt-2 is no text: its character 3 is '\\x00'"),
        ("\ud800", "its character 1 is"),
        ("a\udfff", "its character 2 is"),
        (7, "--prompt-2 is a text, not int"),
        (None, "--prompt-2 is a text, not NoneType"),
    ],
    ids=["control", "longest", "longer", "NUL", "first half", "last half", "number", "None"],
)
def test_texts_of_a_request(text: object, message: str | None) -> None:
    if message is None:
        check_text("prompt_2", text)
        return
    with pytest.raises(UsageError, match=message):
        check_text("prompt_2", text)


def test_a_text_stands_for_one_or_for_each_prompt() -> None:
    assert _for_each("prompt_2", "ab", 2) == ["ab", "ab"]
    assert _for_each("prompt_2", ["a"], 3) == ["a"] * 3
    assert _for_each("prompt_2", ("a", "b"), 2) == ["a", "b"]
    assert _for_each("prompt_2", [], 2) == ["", ""]
    for texts in (["a", "b"], ["a"] * 4):
        with pytest.raises(UsageError, match=f"--prompt is given 3 times, --prompt-2 {len(texts)} times"):
            _for_each("prompt_2", texts, 3)


# Files of prompts


def test_lines_of_one_setting_are_together() -> None:
    lines = [
        (3, {"prompt": "a", "steps": 4, "prompt_2": "x"}),
        (7, {"prompt": "b", "steps": 4, "negative_prompt": "y"}),
    ]
    found = together(lines)
    assert found.prompts == ["a", "b"]
    assert found.numbers == [3, 7]
    assert found.options == {"steps": 4, "prompt_2": ["x", None], "negative_prompt": [None, "y"]}
    first, second = found.each()
    assert (first.prompts, first.numbers) == (["a"], [3])
    assert (second.prompts, second.numbers) == (["b"], [7])
    assert second.options == {"steps": 4, "prompt_2": [None], "negative_prompt": ["y"]}
    assert together([(1, {"prompt": "a", "negative_prompt_2": "z"})]).options == {"negative_prompt_2": ["z"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "seed": 7, "num_images": 2, "negative_prompt": "b"}', None),
        ('{"prompt": ""}', None),
        ("{", "line 5 of f "),
        ("[]", "line 5 of f has no prompt"),
        ('{"seed": 7}', "line 5 of f has no prompt"),
        ('{"prompt": 7}', "line 5 of f has no prompt"),
        ('{"prompt": "a", "output": "x"}', "has the option 'output', which lines do not have"),
        *((f'{{"prompt": "a", "{name}": null}}', f"line 5 of f has a {name} that is no text")
          for name in ("negative_prompt", "prompt_2", "negative_prompt_2")),
    ],
)  # fmt: skip
def test_a_line_of_json(line: str, message: str | None) -> None:
    if message is None:
        assert _object(Path("f"), 5, line)["prompt"] in ("a", "")
        return
    with pytest.raises(UsageError, match=message):
        _object(Path("f"), 5, line)


def test_an_error_of_lines_names_the_first_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], dict[str, Any]]] = []

    def plan_job(prompt: list[str], options: dict[str, Any], seeds: Any, numbers: Any) -> Job:
        seen.append((prompt, options))
        if "bad" in prompt:
            raise UsageError("no")
        return Job([], None, False, on_progress=None, cancel=None, previews=PreviewOptions())

    monkeypatch.setattr(job, "plan_job", plan_job)
    lines = Lines(["a", "bad", "bad"], {"steps": 4, "prompt_2": ["x", "y", "z"]}, [3, 8, 9])
    with pytest.raises(UsageError, match=re.escape("line 8 of f: no")):
        plan_lines(Path("f"), lines, {"steps": 2, "width": 64})
    assert seen[-1] == (["bad"], {"steps": 4, "width": 64, "prompt_2": ["y"]})
    made = plan_lines(Path("f"), Lines(["a"], {"steps": 4}, [6]), {"steps": 2, "width": 64})
    assert made.place == "line 6 of f"
    assert seen[-1] == (["a"], {"steps": 4, "width": 64})


def test_images_of_a_run_are_counted_over_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "NUM_IMAGES", SimpleNamespace(high=5, reason="so it is"))
    monkeypatch.setattr(job, "alike", lambda each: [each.images, "part"])
    jobs: list[Any] = [SimpleNamespace(images=number) for number in (2, 3)]
    assert [*_within_limit(jobs)] == [2, "part", 3, "part"]
    with pytest.raises(UsageError, match="more than 5 images: so it is"):
        [*_within_limit([*jobs, SimpleNamespace(images=1)])]  # type: ignore[list-item]


# Files of a request


def test_files_are_read_by_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "read_image", lambda source, option: ("image", source, option))
    monkeypatch.setattr(job, "read_mask", lambda source, option: ("mask", source, option))
    monkeypatch.setattr(job, "choose_adapter", lambda choice: f"adapter {choice}")
    monkeypatch.setattr(job, "choose_control", lambda choice: SimpleNamespace(read=lambda: f"control {choice}"))
    monkeypatch.setattr(job, "choose_ip_adapter_image", lambda choice: SimpleNamespace(read=lambda: f"ip {choice}"))
    settings: dict[str, Any] = {
        "lora": ["a", "b"], "init_image": "i", "mask": "m", "refiner": "r", "control": ("c",), "ip_adapter_image": ["p"]
    }  # fmt: skip
    _read_files(settings)
    assert settings == {
        "lora": ("adapter a", "adapter b"), "init_image": ("image", "i", "--init-image"),
        "mask": ("mask", "m", "--mask"), "refiner": Path("r"), "control": ("control c",),
        "ip_adapter_image": ("ip p",),
    }  # fmt: skip
    empty: dict[str, Any] = {"init_image": None, "mask": None, "refiner": None, "lora": None}
    _read_files(empty)
    assert empty == {
        "init_image": None, "mask": None, "refiner": None, "lora": (), "control": (), "ip_adapter_image": ()
    }  # fmt: skip


def test_every_kind_of_file_is_compared_with_the_images_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "record_adapter", lambda each: f"lora {each}")
    monkeypatch.setattr(job, "record_control", lambda each: f"control {each}")
    monkeypatch.setattr(job, "record_ip_adapter_image", lambda each: f"ip {each}")
    told: list[Any] = []
    drawn: Any = SimpleNamespace(
        remark_on_image=lambda *given: told.append(given), remark_on_files=lambda *given: told.append(given)
    )
    lists = {"lora": ("a",), "control": ("b",), "ip_adapter_image": ("c", "d")}
    of_lists = [("lora", ["lora a"]), ("control", ["control b"]), ("ip_adapter_image", ["ip c", "ip d"])]
    for images in ({"init_image": 1, "mask": 2}, {"init_image": None, "mask": 2}, {"init_image": 1}, {}):
        told.clear()
        _remark_on_files(drawn, {**lists, **images})
        assert told == [*((name, value) for name, value in images.items() if value), *of_lists]


def test_what_is_given_beside_an_image_to_draw_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(job, "read_image_options", noting(asked, "drawn"))
    settings: dict[str, Any] = {"from_image": "a.png", "steps": 3, "seed": None, "eta": 0.0}
    again: Any = job._drawn
    assert again("a", settings) == "drawn"
    assert settings == {"steps": 3, "seed": None, "eta": 0.0}
    assert asked == [(Path("a.png"), {"steps": 3, "eta": 0.0, "prompt": "a"})]
    assert again("", {"from_image": "b.png"}) == "drawn"
    assert asked[1] == (Path("b.png"), {})
    assert again("a", {"from_image": None}) is None
    assert again("a", {}) is None
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("network", "given", "told"),
    [
        ("<lora:mine:0.8>", {}, "asks for <lora:mine:0.8>, which is not applied: no --lora-folder is given. Give the "
                                "file: --lora mine.safetensors:0.8"),
        ("<lora:mine>", {}, "--lora mine.safetensors"),
        ("<lora: Mine : 0.80 >", {"mine": 0.8}, ""),
        ("<lora:mine>", {"mine": 1.0}, ""),
        ("<lora:mine>", {"mine": 0.5}, "whose scale is that of --lora: 0.5"),
        ("<lora:mine:x>", {"mine": 0.5}, "whose scale is that of --lora: 0.5"),
        ("<lora:mine:0.5:2>", {"mine": 0.5}, ""),
        ("<lora:mine:0.5>", {"other": 0.5}, "no --lora-folder is given"),
        ("<hypernet:mine:1>", {"mine": 1.0}, "sdort has no hypernetworks"),
        ("<hypernetwork:mine>", {}, "sdort has no hypernetworks"),
    ],
)  # fmt: skip
def test_a_network_that_a_prompt_asks_for(
    network: str, given: dict[str, float], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers._remark_on_network(network, given, "no --lora-folder is given")
    said = " ".join(capsys.readouterr().err.split())
    assert told in said
    assert bool(told) == bool(said)
    if told == "--lora mine.safetensors":
        assert said.endswith(told)


# A run


def test_only_bad_images_end_a_run() -> None:
    _refuse_bad([], 3)
    bad: list[Any] = [
        BadImage("", Request("a cat"), SimpleNamespace(seed=4, problem="it is black")),  # type: ignore[arg-type]
        BadImage("line 2 of f", Request("b"), SimpleNamespace(seed=5, problem="it is grey")),  # type: ignore[arg-type]
    ]
    with pytest.raises(ParityError) as error:
        _refuse_bad(bad, 2)
    assert error.value.message == (
        "the image of seed 4 of 'a cat' is not written: it is black; line 2 of f: the image of seed 5 of 'b' is not "
        "written: it is grey"
    )
    assert error.value.component == "vae_decoder"
    with pytest.raises(ParityError) as error:
        _refuse_bad(bad[:1], 1)
    assert error.value.message == "the image of seed 4 is not written: it is black"


def test_progress_of_a_generation_is_that_of_all_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[tuple[Any, ...]] = []
    moved: list[float] = []

    @contextmanager
    def bar(description: Any, total: Any, *, numbers: Any) -> Iterator[Callable[[float], None]]:
        bars.append((description(), total, numbers()[0]))
        yield moved.append

    monkeypatch.setattr(command, "progress", bar)
    stages: list[Any] = [SimpleNamespace(steps=4, calls=7), SimpleNamespace(steps=3, calls=5)]
    requests = [Request("a", images_at_once=2)] * 2 + [Request("b", images_at_once=2)]
    seen: list[tuple[float, float]] = []
    cancel = Event()
    for told in (None, lambda *both: seen.append(both)):
        job: Any = SimpleNamespace(on_progress=told, cancel=cancel)
        with _shown_progress(requests, stages, job) as watch:
            watch.step(2)
            watch.step(2)
    cancel.set()
    with pytest.raises(CancelledError):
        watch.step(2)
    with pytest.raises(CancelledError):
        watch.tile(1, 2)
    assert bars[0] == ("images 1 to 2 of 3", 36, "step 0 of 7")
    assert moved == [2, 2, 2, 2, 2]
    assert seen == [(2, 36), (4, 36), (6, 36)]


@dataclass(frozen=True)
class Joined:
    """What :func:`sdort.generation.result.joined` was given."""

    results: list[Any]
    done_before: Sequence[Path] = ()


@pytest.mark.parametrize("fails", [False, True])
def test_jobs_take_the_files_in_turns_and_tell_what_is_written(
    fails: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Any] = []

    @contextmanager
    def previewing(*given: Any, judged: bool) -> Iterator[None]:
        shown.append(given)
        yield

    def generate(each: Any, plan: str, own: Sequence[Path], written: list[Path], bad: list[Any]) -> Any:
        assert plan == f"plan of {each.previews}"
        done.append((each.images, own))
        if fails and len(done) == 2:
            raise KeyboardInterrupt
        written += own
        return SimpleNamespace(each=each.images)

    monkeypatch.setattr(command, "previewing", previewing)
    monkeypatch.setattr(command, "joined", Joined)
    one: Any = SimpleNamespace(file=None, requests=[SimpleNamespace(safety=None)], grid=False)
    jobs: list[Any] = [SimpleNamespace(images=count, previews=f"p{count}", **vars(one)) for count in (2, 1)]
    plans: list[Any] = ["plan of p2", "plan of p1"]
    paths = [Path(name) for name in "abc"]
    done: list[Any] = []
    monkeypatch.setattr(command, "say_unjudged", lambda folder, asked: None)
    models: Any = SimpleNamespace(folder=None)
    pipeline: Any = SimpleNamespace(_models=models, _options="options", _generate=generate)
    if fails:
        with pytest.raises(KeyboardInterrupt):
            command.Pipeline._run_jobs(pipeline, Unfinished(jobs, paths, []), paths, plans)
    else:
        found: Any = command.Pipeline._run_jobs(pipeline, Unfinished(jobs, paths, [Path("z")]), paths, plans)
        assert [each.each for each in found.results] == [2, 1]
        assert found.done_before == [Path("z")]
    assert done == [(2, paths[:2]), (1, paths[2:])]
    assert shown == [(models, "p2", paths[0], "options"), (models, "p1", paths[2], "options")]
    assert paths == [Path(name) for name in "abc"]
    assert re.findall(r"wrote (\w)", capsys.readouterr().err) == (["a", "b"] if fails else [])
    done.clear()
    shown.clear()
    fails = False
    command.Pipeline._run_jobs(pipeline, Unfinished(jobs, [], []), None, plans)
    assert done == [(2, []), (1, [])]
    assert [each[2] for each in shown] == [None, None]


@dataclass(frozen=True)
class FakeResult:
    placement: Any = None
    placement_remarks: Any = None
    height: int = 64
    width: int = 96
    decoded: Any = None
    opened: Any = ()


def test_placement_is_of_every_component_and_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def case(folder: Any, component: str, request: Request, result: Any, provider: Any) -> str:
        asked.append((folder.name, component, request.num_images, request.prompt, result, provider))
        return f"case of {component}"

    monkeypatch.setattr(command, "_case", case)
    monkeypatch.setattr(command, "measure_cases", lambda *given: [given])
    monkeypatch.setattr(command, "remarks", lambda measured, provider: [f"{measured[0][1][0]} {provider}"])
    closed, parts = "text_encoder", ("unet", "vae_decoder")
    folder = SimpleNamespace(
        name="folder", models="models", vae_factor=8, tokens=len, compared=(closed, "vae_encoder", *parts)
    )
    sessions = {name: SimpleNamespace(provider=f"{name} provider") for name in parts}
    # With ``--memory low`` a component has no session any more when the run has ended.
    result: Any = FakeResult(opened=(SimpleNamespace(component=closed), SimpleNamespace(component="unet")))
    ran = [(closed, "pipeline's provider"), *((name, f"{name} provider") for name in parts)]
    requests = [Request("a", num_images=2), Request("b", num_images=3)]
    models: Any = SimpleNamespace(folder=folder, sessions=sessions, provider="pipeline's provider")
    found: Any = _with_placement(result, models, requests, "options")  # type: ignore[arg-type]
    assert asked == [("folder", name, 5, "a", result, provider) for name, provider in ran]
    wanted = [("models", [f"case of {name}"], provider, "options", 8, len(name)) for name, provider in ran]
    assert found.placement == wanted
    assert found.placement_remarks == [f"case of {name} {provider}" for name, provider in ran]


@pytest.mark.parametrize(("images", "at_once", "last"), [(5, 2, 1), (4, 2, 2), (1, 4, 1), (3, 4, 3), (6, 4, 2)])
@pytest.mark.parametrize("component", ["unet", "vae_decoder"])
def test_the_last_case_of_a_component_is_measured(
    component: str, images: int, at_once: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class FakeCase:
        batch: int
        given: Any = None

    asked: list[Any] = []

    def cases(*given: Any, **named: Any) -> list[FakeCase]:
        asked.append((given, named))
        return [FakeCase(9), FakeCase(7)]

    monkeypatch.setattr(command, "generation_cases", cases)
    planner = SimpleNamespace(part_of=lambda case, plan: replace(case, given=plan))
    monkeypatch.setattr(command, "planner_of", lambda folder, provider: planner if provider == "p" else None)
    monkeypatch.setattr(command, "Plan", lambda: "whole")
    folder: Any = SimpleNamespace(file=lambda name: SimpleNamespace(signature=SimpleNamespace(inputs=f"of {name}")))
    request = Request("a AND b", num_images=images, images_at_once=at_once)
    for decoded in ("in tiles", None):
        found: Any = _case(folder, component, request, FakeResult(decoded=decoded), "p")  # type: ignore[arg-type]
        if component == "unet":
            assert found == FakeCase(7)
        else:
            assert found == FakeCase(last, decoded or "whole")
    assert asked[0] == ((component, f"of {component}", images, (64, 96)), {"copies": 3, "at_once": at_once})


@pytest.mark.parametrize(
    ("finished", "calls", "seconds"), [(0, 1, 17.0), (0, 5, 13.0), (2, 0, 12.0), (4, 3, 3.0), (4, 6, 0.0), (0, 0, 18.0)]
)
def test_time_that_is_left_is_of_all_batches(
    finished: int, calls: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 images, 2 at once, are 3 batches of 6 calls, of a second each; half a second of the call went by."""
    watch = StepProgress(5, 2, 6, 6)
    assert watch._remaining() is None
    watch._pace, watch._first, watch._call, watch._now = 1.0, finished, calls, 10.0
    monkeypatch.setattr("sdort.generation.denoising.step_progress.time.perf_counter", lambda: 10.5)
    assert watch._remaining() == max(seconds - 0.5, 0.0)
