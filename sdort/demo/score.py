"""The score of a pipeline on the demo's prompts: the judge's verdicts counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from sdort.demo.judge import PromptVerdict, judge_scene
from sdort.demo.prompt_language import parse

# The shares of right images that the demo model was trained to reach, with guidance 5 and 30 steps.
SINGLE_BAR, PAIR_BAR = 0.90, 0.75
GUIDANCE, STEPS = 5.0, 30


@dataclass(frozen=True)
class Score:
    """Right pictures out of those judged, as (right, judged).

    ``single`` and ``pair``: shape and colour of one shape; shapes, colours and relation of two. The others count what
    is not needed for that: whether the place, the sizes and the background are those that a prompt names.
    """

    single: tuple[int, int]
    pair: tuple[int, int]
    position: tuple[int, int]
    size: tuple[int, int]
    background: tuple[int, int]

    @property
    def passed(self) -> bool:
        """Whether both bars are reached; a kind of which there is none does not count."""
        return all(right >= bar * judged for (right, judged), bar in ((self.single, SINGLE_BAR), (self.pair, PAIR_BAR)))


@dataclass(frozen=True)
class JudgedImage:
    """A prompt, the number of shapes that it asks for, and the verdict on its image."""

    prompt: str
    shape_count: int
    verdict: PromptVerdict


def score(pictures: Iterable[tuple[str, npt.NDArray[Any]]]) -> Score:
    """Judge prompts and their pictures [height, width, 3], uint8.

    Raises:
        UsageError: a prompt is none that the judge knows.
    """
    return count([judge_picture(prompt, image) for prompt, image in pictures])


def judge_picture(prompt: str, image: npt.NDArray[Any]) -> JudgedImage:
    """Judge one image; arguments and errors as for :func:`score`."""
    expected = parse(prompt)
    return JudgedImage(prompt, len(expected.shapes), judge_scene(image, expected))


def count(judged: Sequence[JudgedImage]) -> Score:
    """The verdicts counted."""
    return Score(
        single=_count(image.verdict.right for image in judged if image.shape_count == 1),
        pair=_count(image.verdict.right for image in judged if image.shape_count == 2),
        position=_count(image.verdict.position for image in judged),
        size=_count(image.verdict.size for image in judged),
        background=_count(image.verdict.background for image in judged),
    )


def _count(results: Iterable[bool | None]) -> tuple[int, int]:
    judged = [result for result in results if result is not None]
    return sum(judged), len(judged)
