"""Prompts that change on the way and prompts of several parts: A1111's grammar, and images against a plain loop.

https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/Features#prompt-editing (and modules/prompt_parser.py)
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.conditioning import first_conditions
from support.step_texts import image_by_step_texts
from support.tiny_pipeline import Tiny

from sdort.errors import UsageError
from sdort.first_use.command import run
from sdort.generation.denoising import running_controls
from sdort.generation.job import plan_jobs
from sdort.generation.pipeline import TextToImage, load_pipeline
from sdort.generation.prompts.prompt_schedule import Clock, read_parts, read_schedule
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import plan_stages
from sdort.generation.schedules.schedulers import load_scheduler
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.metrics import psnr

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@cache
def opened(folder: Path) -> TextToImage:
    return load_pipeline(folder, RuntimeOptions("cpu"))


def texts(text: str, steps: int = 10, *, earlier: int = 0, begun: int = 0) -> list[str]:
    return read_schedule(text, "a1111").texts(Clock(steps, begun, earlier), steps - begun)


def spans(text: str, steps: int = 10, **clock: int) -> list[tuple[int, str]]:
    """Each text with the number of calls that it holds for, those that follow each other."""
    found: list[tuple[int, str]] = []
    for each in texts(text, steps, **clock):
        if found and found[-1][1] == each:
            found[-1] = (found[-1][0] + 1, each)
        else:
            found.append((1, each))
    return found


# Reading: A1111 counts calls from 0 on, and the text of step N holds up to and with call N.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cat", [(10, "a cat")]),
        ("a [b:3]", [(4, "a "), (6, "a b")]),
        ("a [b: 3 ]", [(4, "a "), (6, "a b")]),
        ("a [b::3]", [(4, "a b"), (6, "a ")]),
        ("a [[[b]]:2]", [(3, "a "), (7, "a [[b]]")]),
        ("[(a:2):3]", [(4, ""), (6, "(a:2)")]),
        ("a [b : c : 1] d", [(2, "a b  d"), (8, "a  c  d")]),
        ("a[b:[c:d:2]:1]e", [(2, "abe"), (1, "ace"), (7, "ade")]),
        ("a [b:.5] c", [(6, "a  c"), (4, "a b c")]),
        ("[a:b:0.05]", [(10, "b")]),
        ("[a:b:0]", [(10, "b")]),
        ("[a:b:-1]", [(10, "b")]),
        ("[a:b:99]", [(10, "a")]),
        ("[a:b:1e1]", [(10, "a")]),
        ("[a:b:3][c:d:3]", [(4, "ac"), (6, "bd")]),
        ("((a][:b:c [d:3]", [(4, "((a][:b:c "), (6, "((a][:b:c d")]),
        ("a [unbalanced", [(10, "a [unbalanced")]),
        ("[a]", [(10, "[a]")]),
        ("[a:b]", [(10, "[a:b]")]),
        ("[a:b:c:3]", [(10, "[a:b:c:3]")]),
        (r"\[a:b:3\]", [(10, r"\[a:b:3\]")]),
        (r"[a\|b:c:3]", [(4, r"a\|b"), (6, "c")]),
        ("<lora:x:1>[a:b:3]<lora:y:0.5>", [(4, "a"), (6, "b")]),
        ("[embedding:bad:b:3]", [(4, "bad"), (6, "b")]),
        ("a BREAK [b:c:3]", [(4, "a BREAK b"), (6, "a BREAK c")]),
        ("[a|b] c | d", [(10, "[a|b] c | d")]),
        ("[(a|b)]", [(10, "[(a|b)]")]),
    ],
)
def test_a_text_changes_at_its_step(text: str, expected: list[tuple[int, str]]) -> None:
    assert spans(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a|(b:1.1)]", ["a", "a", "(b:1.1)", "a", "(b:1.1)", "a"]),
        ("[fe|]male", ["female", "female", "male", "female", "male", "female"]),
        ("[a||c]", ["a", "a", "", "c", "a", ""]),
        ("[|a]", ["", "", "a", "", "a", ""]),
        ("[[a|b]:[c|d]:3]", ["a", "a", "b", "a", "d", "c"]),
        ("[a|[b:c:3]]", ["a", "a", "b", "a", "c", "a"]),
    ],
)
def test_texts_take_turns(text: str, expected: list[str]) -> None:
    assert texts(text, 6) == expected


def test_a_second_pass_and_a_refiner_count_on() -> None:
    assert spans("[a:b:0.5]", earlier=20) == [(10, "b")]
    assert spans("[a:b:1.5]", earlier=20) == [(6, "a"), (4, "b")]
    assert spans("[a:b:24]", earlier=20) == [(5, "a"), (5, "b")]
    assert spans("[a:b:1.5]") == [(10, "a")]
    assert spans("[a:b:8]", begun=6) == [(3, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a cat", [("a cat", 1)]),
        ("a AND b", [("a", 1), (" b", 1)]),
        ("a :0.5 AND b AND c:-1.5", [("a", 0.5), (" b", 1), (" c", -1.5)]),
        ("ratio 16:9", [("ratio 16:9", 1)]),
        ("(a:1.2) AND b:.5", [("(a:1.2)", 1), (" b", 0.5)]),
        ("BAND AND ANDES", [("BAND", 1), (" ANDES", 1)]),
        ("a and b", [("a and b", 1)]),
    ],
)
def test_parts_have_weights(text: str, parts: list[tuple[str, float]]) -> None:
    assert read_parts(text, "a1111") == parts
    assert read_parts(text, "comfyui") == read_parts(text, "none") == [(text, 1)]


def test_in_other_weightings_there_are_no_forms() -> None:
    for weighting in ("comfyui", "none"):
        schedule = read_schedule("[a|b] [c:d:3]", weighting)
        assert schedule.texts(Clock(4), 4) == ["[a|b] [c:d:3]"] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a|(b:200)]", "weights are from -100 to 100"),
        ("[" * 65 + "a:b:1" + "]" * 65, "more than 64 brackets"),
        (" AND ".join("a" * 17), "17 parts with AND"),
        ("a AND b:101", "gives the part 'b' the weight 101"),
        (f"[{'|'.join(map(str, range(65)))}]", "changes between 65 texts, at most 64"),
    ],
)
def test_what_is_too_much_is_refused_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Request(text, steps=80)


def test_and_divides_the_prompt_alone() -> None:
    with pytest.raises(UsageError, match="AND divides --prompt"):
        Request("a", prompt_2="b AND c")
    assert Request("a", "b AND c").guidance() == [-6.5, 7.5]
    assert Request("a AND b:0.5", guidance_scale=4).guidance() == [-5, 4, 2]
    assert Request("a AND b:0.5", guidance_scale=1).guidance() == [-0.5, 1, 0.5]
    assert Request("a AND b", guidance_scale=4).guidance(embedded=True) == [-1, 1, 1]


def test_prompts_of_other_weights_get_calls_of_their_own() -> None:
    jobs = plan_jobs(["a", "b", "a AND b", "c AND d", "c AND d:2"], {"seed": 1})
    prompts = [[request.prompt for request in job.requests] for job in jobs]
    assert prompts == [["a", "b"], ["a AND b", "c AND d"], ["c AND d:2"]]


@pytest.mark.parametrize("part", ["[x:y:1]", "a:b:1]", "[a|b]:", "[a:(b[c|d]:1)"])
def test_long_prompts_of_brackets_are_read_once(part: str) -> None:
    text = part * 15  # hours, if each bracket were read again for those around it
    assert len(set(texts(text + "[e:f:1]", 4))) > 1
    assert len(texts("".join([*["[x:y:1]:)"] * 9999, "z"]), 4)) == 4


def test_bounds_are_what_they_say() -> None:
    alternation = f"[{'|'.join(map(str, range(64)))}]"
    assert len(set(texts(alternation, 80))) == 64
    assert spans("[" * 63 + "[a:b:1]" + "]" * 63, 3) == [(2, "[" * 63 + "a" + "]" * 63), (1, "[" * 63 + "b" + "]" * 63)]
    # PNDM takes a call more than it has steps.
    assert read_schedule("[a|b]", "a1111").texts(Clock(2), 4) == ["a", "a", "b", "b"]


def test_deep_brackets_are_refused() -> None:
    for text in ("([a:" * 9999, "[a|[b:" * 9999, "(a" * 9999):
        with pytest.raises(UsageError, match="more than 64 brackets"):
            read_schedule(text, "a1111")


# Which calls of which pass


def clocks(folder: Path, **options: Any) -> list[tuple[Clock, int]]:
    [job] = plan_jobs("a", {"steps": 20, "seed": 1, **options})  # type: ignore[typeddict-item]
    return [(stage.clock, stage.calls) for stage in plan_stages(opened(folder).folder, job.requests[0])]


def test_every_pass_counts_as_in_a1111(tiny: Tiny) -> None:
    assert clocks(tiny.onnx) == [(Clock(20), 20)]
    assert clocks(tiny.onnx, scheduler="heun") == [(Clock(40), 39)]  # two calls a step, one at the last
    hires = clocks(tiny.onnx, hires=2, hires_steps=10, hires_strength=0.5)
    assert hires == [(Clock(20), 20), (Clock(5, earlier=20), 5)]
    shared = clocks(tiny.onnx, refiner=tiny.onnx, refiner_start=0.75)
    assert shared == [(Clock(20), 15), (Clock(20, begun=15), 5)]


# Images


STEPS = 4
IMAGES: list[tuple[str, str, float, str | None, list[str], list[tuple[list[str], float]]]] = [
    ("a [cat:dog:1]", "", 5, None, [""] * 4, [(["a cat", "a cat", "a dog", "a dog"], 1)]),
    ("[red|blue] sea", "[fog::2]", 5, "euler", ["fog", "fog", "fog", ""],
     [(["red sea", "red sea", "blue sea", "red sea"], 1)]),
    ("[a:fog by night:.3]", "c", 1, "ddim", ["c"] * 4, [(["a", "a", *["fog by night"] * 2], 1)]),
    ("[a|b]", "c", 4, "heun", ["c"] * 7, [(list("aabababa"), 1)]),
    ("a cat AND a dog:0.6 AND fog :-0.2", "rain", 5, None, ["rain"] * 4,
     [(["a cat"] * 4, 1), ([" a dog"] * 4, 0.6), ([" fog"] * 4, -0.2)]),
    ("a AND [b:c:1]:2", "d", 1, "euler", ["d"] * 4, [(["a"] * 4, 1), ([" b", " b", " c", " c"], 2)]),
]  # fmt: skip


# 84 dB and more were measured, and 29 to 49 for the first text alone.
ALIKE, OTHER = 78, 52


@pytest.mark.parametrize(("prompt", "negative", "scale", "scheduler", "unwanted", "parts"), IMAGES)
def test_an_image_is_that_of_each_steps_own_text(
    prompt: str, negative: str, scale: float, scheduler: str | None, unwanted: list[str],
    parts: list[tuple[list[str], float]], tiny: Tiny, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pipeline = opened(tiny.onnx)
    sampling: Any = {"steps": STEPS, "guidance_scale": scale, "seed": 3, "scheduler": scheduler}
    request = Request(prompt, negative, width=64, height=64, **sampling)
    loaded = load_scheduler(tiny.onnx / "scheduler", scheduler)
    expected = image_by_step_texts(
        tiny.pipeline, loaded, unwanted, parts, scale=scale, steps=STEPS, size=(64, 64), seed=3
    )
    [image] = pipeline.generate(request)
    [first_text] = pipeline.generate(replace(request, prompt=parts[0][0][0]))
    monkeypatch.setattr(pipeline.loop, "fits", lambda *_: False)
    [on_host] = pipeline.generate(request)
    assert expected.std() > 20
    assert min(psnr(each.pixels, expected) for each in (image, on_host)) >= ALIKE
    assert psnr(image.pixels, first_text.pixels) < OTHER


def test_prompts_that_change_share_calls(tiny: Tiny) -> None:
    prompts = ("[a|b] cat", "dog", "[x BREAK y:z:2]")
    requests = [Request(text, "[fog:rain:1]", steps=STEPS, seed=5) for text in prompts]
    together = list(opened(tiny.onnx).generate_all(requests))
    for request, image in zip(requests, together, strict=True):
        [alone] = opened(tiny.onnx).generate(request)
        assert psnr(image.pixels, alone.pixels) >= 60


@pytest.mark.parametrize(
    ("prompt", "negative", "message"),
    [
        ("[a:b:2] [c|d]", "[e::1]", ""),
        ("a | b [c]", "", ""),
        ("[a|b] c | d", "", "the prompt '[a|b] c | d' has a | outside of square brackets"),
        ("a", "[e:f:1] \\", "or a \\ at its end, so that as in A1111 its [...] are weights"),
        ("[a:b:9]", "", "the prompt '[a:b:9]' does not change within the 4 calls of the UNet"),
        ("a AND [b:c:0]", "", "the prompt ' [b:c:0]' does not change"),
    ],
)
def test_forms_without_effect_are_told(
    prompt: str, negative: str, message: str, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    first_conditions(opened(tiny.onnx), [Request(prompt, negative, steps=STEPS)])
    told = " ".join(capsys.readouterr().err.split())
    assert message in told
    assert told.count("warning:") == bool(message)


def test_an_image_of_changing_texts_is_drawn_again(tiny: Tiny, tmp_path: Path) -> None:
    settings: Any = {"provider": "cpu", "steps": 3, "seed": 2}
    prompt, kept = "[a:b:1] c AND [d|e]:0.5", tmp_path / "a.png"
    [first] = run(tiny.onnx, prompt, output=kept, **settings).images
    [again] = run(tiny.onnx, from_image=kept, provider="cpu", output=tmp_path / "b.png").images
    assert again.prompt == prompt
    np.testing.assert_array_equal(first.pixels, again.pixels)


@pytest.mark.parametrize(
    ("conditional", "samples", "copies", "first"),
    [(False, 6, 3, 0), (True, 6, 3, 2), (True, 4, 2, 2), (True, 2, 1, 0)],
)
def test_a_control_that_steers_the_prompt_steers_all_of_its_parts(
    conditional: bool, samples: int, copies: int, first: int
) -> None:
    net: Any = SimpleNamespace(conditional_only=conditional)
    assert running_controls._first(net, samples, copies) == first
