"""``sdort verify --semantic``: which pictures are wrong, what is in them, and what the original draws there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sdort.cli import cli
from sdort.console import to_json
from sdort.demo.judge import describe_image
from sdort.demo.prompt_language import POSITIONS, held_out, parse
from sdort.demo.scenes import Scene, SceneShape, render
from sdort.errors import BadModelError
from sdort.generation.pictures.images import Generated
from sdort.generation.requests.request import Request
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification import semantic_score
from sdort.verification.command_line import VerifyOptions
from sdort.verification.outcome import Verification
from sdort.verification.report.text import notes
from sdort.verification.report.verification_page import verification_page
from sdort.verification.runners import RunConfiguration
from sdort.verification.semantic import semantic_requests
from sdort.verification.semantic_score import score_candidate

PLACES = {"left of": (16, 32), "right of": (48, 32), "above": (32, 16), "below": (32, 48)}
RADII = {"small": 8, "large": 14, None: 10}
CENTRES = {place: (16 + 16 * (n % 3), 16 + 16 * (n // 3)) for n, place in enumerate(POSITIONS)}
CONFIGURATION = RunConfiguration(CPU, RuntimeOptions("cpu"))


def right_picture(prompt: str) -> Any:
    """What a held-out prompt asks for."""
    wanted = parse(prompt)
    first = PLACES[wanted.relation] if wanted.relation else CENTRES[wanted.position or ("center", "center")]
    centres = [first, (64 - first[0], 64 - first[1])]
    things = [SceneShape(each.shape, each.colour, *at, RADII[each.size])
              for each, at in zip(wanted.shapes, centres, strict=False)]  # fmt: skip
    return render(Scene(wanted.background or "white", tuple(things)))


class Painter:
    """A pipeline that draws every prompt right but some, and knows what it was asked for."""

    def __init__(self, wrong: tuple[str, ...] = ()) -> None:
        self.wrong, self.asked = wrong, list[str]()

    def generate(self, request: Request, on_step: Callable[[float], None]) -> Iterator[Generated]:
        self.asked.append(request.prompt)
        picture = right_picture(request.prompt)
        yield Generated(request.seed, picture[:, :, ::-1] if request.prompt in self.wrong else picture, None)


class Broken(Painter):
    def generate(self, request: Request, on_step: Callable[[float], None]) -> Iterator[Generated]:
        raise BadModelError("it has a hole")


EVERY = held_out()


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verification]:
    monkeypatch.setattr(semantic_score, "open_text_to_image", lambda painter, configuration: painter)

    def call(candidate: Any, original: Any, **asked: Any) -> Verification:
        result = Verification(Path("fast"), None, None, "cpu", 8)
        score_candidate(candidate, CONFIGURATION, original, VerifyOptions(**asked), result)
        return result

    return call


def changed_by_swapping_channels() -> tuple[str, str]:
    """A single shape and a pair whose colours change when red and blue do."""
    found = [p for p in EVERY if any(t.colour in ("red", "blue") for t in parse(p).shapes)]
    return found[0], found[-1]


def test_what_is_seen_is_told_as_a_prompt_would() -> None:
    assert describe_image(right_picture("a small red circle left of a large blue square on white")) == (
        "large blue square and small red circle on white"
    )
    assert describe_image(np.full((64, 64, 3), 255, np.uint8)) == "nothing on white"


def test_the_pictures_of_this_file_are_right() -> None:
    assert not [p for p in EVERY if describe_image(right_picture(p)).startswith("nothing")]
    single, pair = changed_by_swapping_channels()
    assert (len(parse(single).shapes), len(parse(pair).shapes)) == (1, 2)


def test_the_original_draws_what_came_out_wrong_and_is_told(judge: Callable[..., Verification]) -> None:
    single, pair = changed_by_swapping_channels()
    candidate, original = Painter((single, pair)), Painter((pair,))
    result = judge(candidate, (original, CONFIGURATION), semantic=True)
    assert candidate.asked == EVERY
    assert original.asked == [single, pair]
    found = result.semantic
    assert found is not None
    assert (found.counts["single"], found.counts["pair"], found.passed) == ((59, 60), (59, 60), True)
    assert found.original is None
    assert [(miss.prompt, miss.seed, miss.wrong, miss.original_right) for miss in found.misses] == [
        (single, EVERY.index(single), ("colours",), True),
        (pair, EVERY.index(pair), ("colours",), False),
    ]
    assert found.misses[0].seen == describe_image(right_picture(single)[:, :, ::-1])
    assert found.misses[0].original == describe_image(right_picture(single))
    told = notes(result)
    assert told[0].startswith("semantic score: single 59 of 60, pair 59 of 60")
    assert told[0].endswith("(wanted: 90 % of single shapes, 75 % of pairs): ok")
    assert told[1] == "semantic score: 2 wrong, 1 of them by the original too"
    assert f"{single!r} shows {found.misses[0].seen}; the original, right, " in told[2]
    assert f"{pair!r} shows {found.misses[1].seen}; the original, wrong too, " in told[3]


def test_the_record_and_the_page_have_every_wrong_picture(judge: Callable[..., Verification]) -> None:
    wrong = tuple(p for p in EVERY if any(t.colour in ("red", "blue") for t in parse(p).shapes))
    assert len(wrong) > 20
    result = judge(Painter(wrong), (Painter(), CONFIGURATION), semantic=True)
    assert result.failed == ["semantic score"]
    kept = json.loads(json.dumps(to_json(result)["semantic"]))
    assert [miss["prompt"] for miss in kept["misses"]] == list(wrong)
    assert set(kept["misses"][0]) == {"prompt", "seed", "wrong", "seen", "original", "original_right"}
    page = verification_page(result)
    assert all(f"<h3><bdi>{prompt}</bdi>" in page for prompt in wrong)
    assert page.count("<figure>") == 2 * len(wrong)
    assert f"and {len(wrong) - 8} more wrong images" in " ".join(notes(result))


def test_the_original_gets_a_score_where_that_is_asked_for(judge: Callable[..., Verification]) -> None:
    single, pair = changed_by_swapping_channels()
    original = Painter((pair,))
    result = judge(Painter((single,)), (original, CONFIGURATION), semantic=True, semantic_original=True)
    assert original.asked == EVERY
    assert result.semantic is not None
    assert result.semantic.original is not None
    assert (result.semantic.original["single"], result.semantic.original["pair"]) == ((60, 60), (59, 60))
    assert "semantic score of the original: single 60 of 60, pair 59 of 60" in " ".join(notes(result))
    assert "<td>59 of 60</td><td>60 of 60</td><td>90 %</td>" in verification_page(result)


def test_an_original_that_draws_nothing_is_told_and_is_missing_only_if_asked_for(
    judge: Callable[..., Verification],
) -> None:
    single, _ = changed_by_swapping_channels()
    result = judge(Painter((single,)), (Broken(), CONFIGURATION), semantic=True)
    assert (result.notes, result.missing) == (["semantic score of the original: it has a hole"], [])
    assert result.semantic is not None
    assert result.semantic.misses[0].original is None
    result = judge(Painter((single,)), (Broken(), CONFIGURATION), semantic=True, semantic_original=True)
    assert result.missing == ["semantic score of the original: it has a hole"]
    result = judge(Broken(), (Painter(), CONFIGURATION), semantic=True)
    assert (result.semantic, result.missing) == (None, ["semantic score: it has a hole"])


def test_a_checkpoint_draws_in_torch(judge: Callable[..., Verification], monkeypatch: pytest.MonkeyPatch) -> None:
    single, _ = changed_by_swapping_channels()

    def paint(checkpoint: Path, requests: list[Request]) -> dict[tuple[str, int], Generated]:
        assert checkpoint == Path("checkpoint")
        return {(r.prompt, r.seed): Generated(r.seed, right_picture(r.prompt), None) for r in requests}

    monkeypatch.setattr(semantic_score, "generate_in_torch", paint)
    result = judge(Painter((single,)), Path("checkpoint"), semantic=True)
    assert result.semantic is not None
    assert [miss.original_right for miss in result.semantic.misses] == [True]


def test_a_few_prompts_are_of_both_kinds_with_their_own_noise() -> None:
    few = semantic_requests(6)
    assert [len(parse(each.prompt).shapes) for each in few] == [1] * 3 + [2] * 3
    assert all(EVERY[each.seed] == each.prompt for each in few)
    assert semantic_requests(1000) == semantic_requests()


@pytest.mark.parametrize("option", [["--semantic-prompts", "4"], ["--semantic-original"]])
def test_how_to_judge_wants_a_judge(option: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["verify", str(tmp_path), *option])
    assert result.exit_code == 2
    assert "they want --semantic" in result.stderr
