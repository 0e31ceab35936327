r"""Prompts that are drawn: every form against an independent list of what it may be, seeds, files, and what is told."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_pipeline import Tiny

from sdort import run
from sdort.errors import SdortError, UsageError
from sdort.generation.files.image_texts import read_texts
from sdort.generation.job import plan_jobs
from sdort.generation.prompts import wildcards
from sdort.generation.prompts.prompt_syntax import read_prompt
from sdort.generation.prompts.wildcards import Wildcards
from sdort.generation.requests import dynamic_prompts
from sdort.generation.requests.dynamic_prompts import draw_text, has_forms, unescaped

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

NONE = Wildcards(None)
WORDS = ("cat", "(dog:1.2)", "[a|b]", "a, b", "", "\\{x\\}", "\\|", "É", "1:2", "<lora:x:0.5>")


def template(random: np.random.Generator, depth: int = 0) -> tuple[str, set[str]]:
    """A text, and all that it may become, put together beside each other."""
    parts: list[tuple[str, set[str]]] = []
    for _ in range(int(random.integers(1, 3))):
        if depth < 2 and random.integers(2):
            parts.append(group(random, depth))
        else:
            word = WORDS[int(random.integers(len(WORDS)))]
            parts.append((word, {word}))
    texts = [text for text, _ in parts]
    return "".join(texts), {"".join(each) for each in itertools.product(*(found for _, found in parts))}


def group(random: np.random.Generator, depth: int) -> tuple[str, set[str]]:
    options = [template(random, depth + 1) for _ in range(int(random.integers(2, 4)))]
    written = "|".join(text if random.integers(2) else f"{random.integers(1, 5)}::{text}" for text, _ in options)
    least = int(random.integers(1, len(options) + 1))
    most = int(random.integers(least, len(options) + 1))
    form = int(random.integers(3))
    if form == 0:
        return f"{{{written}}}", set().union(*(found for _, found in options))
    count, joined = (f"{least}$$", ", ") if form == 1 else (f"{least}-{most}$$ + $$", " + ")
    found = set()
    for number in range(least, (least if form == 1 else most) + 1):
        for chosen in itertools.permutations(options, number):
            found |= {joined.join(each) for each in itertools.product(*(texts for _, texts in chosen))}
    return f"{{{count}{written}}}", found


@pytest.mark.parametrize("seed", range(60))
def test_what_is_drawn_is_one_of_what_it_may_be(seed: int) -> None:
    text, known = template(np.random.default_rng(seed))
    drawn = {draw_text(text, number, NONE) for number in range(30)}
    assert drawn <= known, (text, drawn - known)
    assert len(drawn) > 1 or len(known) == 1 or len(known) < 4


def test_each_is_as_likely_as_its_weight() -> None:
    counts = Counter(draw_text("{3::a|b|0::c|0.5::d}", seed, NONE) for seed in range(4500))
    assert set(counts) == {"a", "b", "d"}
    for text, share in (("a", 3 / 4.5), ("b", 1 / 4.5), ("d", 0.5 / 4.5)):
        assert abs(counts[text] - 4500 * share) < 5 * (4500 * share) ** 0.5
    pairs = Counter(draw_text("{a|b} {a|b}", seed, NONE) for seed in range(2000))
    assert min(pairs[f"{x} {y}"] for x in "ab" for y in "ab") > 400, "one form does not decide another"


def test_a_seed_draws_the_same_for_ever() -> None:
    """By the formula that stands here too: another version that draws others would change everybody's images."""

    def number(seed: int, count: int, stream: str = "") -> float:
        digest = hashlib.sha256(f"{stream}:{seed}:{count}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48

    for seed in (0, 1, 7, 12345, 2**63 - 1):
        first, second = (["red", "green", "blue"][int(number(seed, count) * 3)] for count in range(2))
        assert draw_text("{red|green|blue} {red|green|blue}", seed, NONE) == f"{first} {second}"
        assert draw_text("{a|b}", seed, NONE, "x") == "ab"[int(number(seed, 0, "x") * 2)]


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("no form", "no form"), ("{one}", "{one}"), ("{", "{"), ("a } b { c", "a } b { c"), ("{a|b", "{a|b"),
        ("{{x}}", "{{x}}"), (r"\{a|b\}", r"\{a|b\}"), (r"\__a__", r"\__a__"), (r"\_\_a\_\_", r"\_\_a\_\_"),
        ("snake_case a_b", "snake_case a_b"), ("____", "____"), ("a __ b __ c", "a __ b __ c"), ("[a|b]", "[a|b]"),
        ("{1$$a}", "a"), ("{0$$a|b}x", "x"), ("{|}x", "x"), ("{0::a|[b|c]}", "[b|c]"), (r"{0::a|x\|y}", r"x\|y"),
        ("{{0::a|b}}", "{b}"), ("{0::a|{{b}}}", "{{b}}"), ("a [b {0::c|d] e}", "a [b d] e"),
    ],
)  # fmt: skip
def test_what_is_text(text: str, drawn: str) -> None:
    assert {draw_text(text, seed, NONE) for seed in range(9)} == {drawn}
    assert has_forms(text) == any(mark in text for mark in ("{", "}", "__", r"\_\_"))


@pytest.mark.parametrize(("weighting", "escaped"), [("a1111", r"\{a|b\} \_\_c\_\_"), ("comfyui", r"\{a|b\} \_\_c\_\_")])
def test_an_escaped_brace_reaches_the_text_encoder_as_it_is(weighting: str, escaped: str) -> None:
    [request] = plan_jobs(escaped, {"prompt_weighting": weighting})[0].requests
    [[segment]] = read_prompt(request.prompt, weighting).parts
    assert segment.text == "{a|b} __c__"
    assert unescaped(escaped) == "{a|b} __c__"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "wildcards"
    (folder / "place").mkdir(parents=True)
    (folder / "animal.txt").write_text("# animals\ncat\n\n  2::dog \n{small|large} horse\n")
    (folder / "place" / "Indoor.txt").write_text("\ufeffa kitchen\n", encoding="utf-8")
    (folder / "place" / "outdoor.txt").write_text("a __colour__ field\n")
    (folder / "colour.txt").write_text("green\n")
    (folder / "circle.txt").write_text("a __circle__\n")
    (folder / "twice.txt").write_text("__twice__ __twice__\n")
    (folder / "empty.txt").write_text("# nothing\n")
    return folder


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("a __animal__", {"a cat", "a dog", "a small horse", "a large horse"}),
        ("__place/indoor__ or __place/outdoor__", {"a kitchen or a green field"}),
        ("__place/*__", {"a kitchen", "a green field"}),
        ("{__colour__|red} x__colour__y", {"green xgreeny", "red xgreeny"}),
    ],
)
def test_lines_of_files(text: str, known: set[str], files: Path) -> None:
    assert {draw_text(text, seed, Wildcards(files)) for seed in range(60)} == known


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("__anmal__", "there is no wildcard __anmal__ in"), ("__../secret__", "there is no wildcard"),
        ("__/etc/passwd__", "there is no wildcard"), ("__empty__", "has no lines"),
        ("__circle__", "more than 64 texts to draw within each other"), ("__twice__", "64 texts|10,000 texts"),
        ("{3$$a|b}", "takes 3 of 2 texts"), ("{2-1$$a|b}", "takes 2 of 2 texts"),
        ("${a=b} x", "the variable '\\${a=b}'"), ("{" * 70 + "a|b" + "}" * 70, "brackets within each other"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_in_words(text: str, words: str, files: Path) -> None:
    (files.parent / "secret.txt").write_text("secret\n")
    with pytest.raises(UsageError, match=words):
        draw_text(text, 1, Wildcards(files))


def test_a_wildcard_without_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    with pytest.raises(UsageError, match="asks for a line of __animal__, and there is no folder of wildcards"):
        plan_jobs("a __animal__", {})
    with pytest.raises(UsageError, match="is no folder"):
        plan_jobs("a __animal__", {"wildcards": tmp_path / "missing"})
    monkeypatch.setenv("SDORT_WILDCARDS", str(files))
    assert plan_jobs("a __colour__ __colour__", {})[0].requests[0].prompt == "a green green"


def prompts_of(prompt: Any, **options: Any) -> list[tuple[int, int, str]]:
    given: Any = options
    jobs = plan_jobs(prompt, given)
    return [(each.seed, each.num_images, each.prompt) for job in jobs for each in job.requests]


def test_each_image_is_drawn_by_its_own_seed(files: Path) -> None:
    """So that each can be made again alone, whatever stands beside it."""
    text, options = "{a|b|c|d|e|f}", {"wildcards": files}
    several = prompts_of(text, seed=7, num_images=4, **options)
    assert several == [(seed, 1, draw_text(text, seed, NONE)) for seed in range(7, 11)]
    assert several == prompts_of(text, seed="7-10", **options)
    assert several[2:3] == prompts_of(text, seed=9, **options)
    assert len({prompt for _, _, prompt in several}) > 1
    assert prompts_of("plain", seed=7, num_images=4) == [(7, 4, "plain")]
    mixed = prompts_of(["plain", text], seed=7, num_images=2)
    assert mixed == [(7, 2, "plain"), *several[:2]]
    # Variations are of one image.
    assert prompts_of(text, seed=7, num_images=4, variation_strength=0.1) == [(7, 4, several[0][2])]


def test_templates_and_weights_are_read_once_for_all_seeds(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "many.txt").write_text("".join(f"{number + 1}::word {number}\n" for number in range(50)))
    read: list[str] = []
    numbers: list[str] = []
    reader = dynamic_prompts._Reader.read

    def counted(self: dynamic_prompts._Reader) -> Any:
        read.append(self.text)
        return reader(self)

    def number(text: str) -> float:
        numbers.append(text)
        return float(text)

    monkeypatch.setattr(dynamic_prompts._Reader, "read", counted)
    for module in (dynamic_prompts, wildcards):
        monkeypatch.setattr(module, "float", number, raising=False)
    drawn = prompts_of("{2::a|b} __many__", seed="1-40", wildcards=files)
    assert len({prompt for _, _, prompt in drawn}) > 10
    assert [text for text in read if "{" in text] == ["{2::a|b} __many__"]
    assert sorted(numbers) == sorted(["2", *(str(number) for number in range(1, 51))])


def test_both_texts_of_a_prompt_are_drawn_alike_and_the_negative_one_by_itself() -> None:
    form = "{a|b|c|d|e|f|g|h}"
    found = plan_jobs(form, {"prompt_2": form, "negative_prompt": form, "negative_prompt_2": form, "seed": "1-20"})
    requests = [each for job in found for each in job.requests]
    assert all(each.prompt == each.prompt_2 and each.negative_prompt == each.negative_prompt_2 for each in requests)
    assert any(each.prompt != each.negative_prompt for each in requests)


@pytest.mark.parametrize(
    ("prompt", "options", "told"),
    [
        ("a {b} c", {}, "braces without | are text: {b}"), ("a } c", {}, "braces without | are text: }"),
        ("a {b|c}", {"prompt_weighting": "none"}, "with --prompt-weighting none {a|b} and __name__ in"),
        ("a {0::b|c}", {"seed": 5}, "seed 5 draws: a c"), ("a", {"negative_prompt": "{0::b|c}"}, "draws: c"),
        (r"a \{b\}", {}, ""), ("plain (word:1.2) [a|b] snake_case", {}, ""),
    ],
)  # fmt: skip
def test_nothing_is_taken_as_text_without_a_word(
    prompt: str, options: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_jobs(prompt, options)  # type: ignore[arg-type]
    said = " ".join(capsys.readouterr().err.split())
    assert told in said
    assert bool(told) == bool(said)


def test_lines_of_a_file_are_drawn_and_named(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("a\n{0::b|c}\n")
    assert [prompt for _, _, prompt in prompts_of((), prompts=file)] == ["a", "c"]
    file.write_text("a\n__b__\n")
    with pytest.raises(SdortError, match=r"line 2 of .*p\.txt: the prompt asks for a line of __b__"):
        plan_jobs((), {"prompts": file})


def test_what_was_drawn_is_in_the_file_and_drawn_again_as_it_is(tiny: Tiny, tmp_path: Path) -> None:
    text = "a {red|green|blue|white} {star|cat}"
    options: Any = {"provider": "cpu", "steps": 1, "seed": 3, "num_images": 2, "output": tmp_path / "a.png"}
    made = run(tiny.onnx, text, **options).images
    for number, image in enumerate(made):
        assert image.path
        texts = read_texts(image.path)
        kept = json.loads(texts["sdort"])
        assert image.prompt == kept["prompt"] == draw_text(text, 3 + number, NONE)
        assert kept["templates"] == {"prompt": text}
        assert f"Template: {text}" in texts["parameters"]
    again = run(tiny.onnx, from_image=made[1].path, provider="cpu", output=tmp_path / "b.png").images[0]
    np.testing.assert_array_equal(again.pixels, made[1].pixels)
    assert again.prompt == made[1].prompt
