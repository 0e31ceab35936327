"""Prompts about scenes: their grammar, what they ask for, and the list that the demo model was not trained on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sdort.demo.scenes import BACKGROUNDS, RGB, SHAPES, SIZES
from sdort.errors import UsageError

HELD_OUT = Path(__file__).parent / "prompts.txt"

POSITIONS = {
    (row, column): phrases
    for (row, column), phrases in {
        ("top", "left"): ("at the top left", "in the top left corner"),
        ("top", "center"): ("at the top", "at the top center"),
        ("top", "right"): ("at the top right", "in the top right corner"),
        ("center", "left"): ("on the left", "at the left"),
        ("center", "center"): ("in the center", "in the middle"),
        ("center", "right"): ("on the right", "at the right"),
        ("bottom", "left"): ("at the bottom left", "in the bottom left corner"),
        ("bottom", "center"): ("at the bottom", "at the bottom center"),
        ("bottom", "right"): ("at the bottom right", "in the bottom right corner"),
    }.items()
}
RELATION_PHRASES = {
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
AND = "and"
BACKGROUND = ("on {}", "on a {} background")


@dataclass(frozen=True)
class ExpectedShape:
    """A shape that a prompt asks for; None stands for what the prompt leaves open."""

    shape: str
    colour: str
    size: str | None = None


@dataclass(frozen=True)
class ExpectedScene:
    """The scene that a prompt asks for: one shape, perhaps with a position, or two, perhaps with a relation."""

    shapes: tuple[ExpectedShape, ...]
    position: tuple[str, str] | None = None
    """Row and column."""
    relation: str | None = None
    background: str | None = None


def _one_of(words: object) -> str:
    # Longest first: "at the top" is the beginning of "at the top left".
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))  # type: ignore[call-overload]


_SHAPE = rf"an? (?:({_one_of(w for w in SIZES if w != 'medium')}) )?({_one_of(RGB)}) ({_one_of(SHAPES)})"
_PLACES = {phrase: place for place, phrases in POSITIONS.items() for phrase in phrases}
_WORDS = {phrase: relation for relation, phrases in RELATION_PHRASES.items() for phrase in phrases}
_PROMPT = re.compile(
    rf"{_SHAPE}(?: ({_one_of(_PLACES)})| ({_one_of([*_WORDS, AND])}) {_SHAPE})?"
    rf"(?: on (?:a )?({_one_of(BACKGROUNDS)})(?: background)?)?"
)


def parse(prompt: str) -> ExpectedScene:
    """The scene that a prompt asks for.

    Raises:
        UsageError: it is no prompt of this grammar.
    """
    match = _PROMPT.fullmatch(" ".join(prompt.lower().split()))
    if match is None:
        raise UsageError(
            f"the judge does not know what {prompt!r} asks for",
            hint='It knows prompts such as "a small red circle left of a blue square on white".',
        )
    size, colour, shape, place, word, second_size, second_colour, second_shape, background = match.groups()
    shapes = [ExpectedShape(shape, colour, size)]
    if word:
        shapes.append(ExpectedShape(second_shape, second_colour, second_size))
    return ExpectedScene(tuple(shapes), _PLACES.get(place), _WORDS.get(word), background)


def held_out() -> list[str]:
    """The prompts that the demo model is scored with; no image of its training shows any of them."""
    lines = HELD_OUT.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
