r"""Prompts that change from step to step, and prompts of several parts, as A1111 writes them.

- ``[from:to:when]``, ``[to:when]``, ``[from::when]``: one text up to a step, another one from then on. ``when`` is a
  share of the steps where it has a point, and else a number of steps.
- ``[a|b|c]``: another text at every step, in turns.
- ``a AND b:0.5``: parts that each guide on their own, with weights (composable diffusion,
  https://arxiv.org/abs/2206.01714).

They nest, and weights may stand inside of them. What is no whole form is text. Steps are counted as A1111 counts them:
in calls of the UNet, from 0 on, and a text holds up to and with the call of its number.

https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/Features#prompt-editing, and modules/prompt_parser.py
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from sdort.errors import UsageError
from sdort.errors.plain_text import cut, one_line
from sdort.generation.prompts.prompt_syntax import HEAVIEST, WEIGHTINGS, check_depth, plain_names, read_prompt
from sdort.options.number_ranges import DECIMAL

MAX_TEXTS = 64
"""Texts that a prompt may change between: all of them are encoded and kept before the first step."""
MAX_PIECES = 4_000_000
"""Pieces, of text and of forms, that the texts of all calls are put together from: 1,000 calls of 4,000 pieces."""
MAX_PARTS = 16
"""Parts of a prompt: the UNet runs on one sample more for each."""

_WHEN = re.compile(rf":\s*(?P<when>{DECIMAL}(?:[eE][+-]?[0-9]+)?)\s*\]")
_PLAIN = re.compile(r"(?:[^\\\[\]():|]|\\.)+")
_AND = re.compile(r"\bAND\b")


@dataclass(frozen=True)
class Clock:
    """How the calls of the UNet in a pass are counted."""

    steps: int
    """Calls of the whole pass, of which shares are taken."""
    begun: int = 0
    """Calls of the pass that another model took before."""
    earlier: int = 0
    """Calls of the first pass, where this is the second: numbers go on from there, and shares from 1."""

    def call_of(self, when: str) -> int:
        """The last call with the text before ``when``; below 1 there is none."""
        number = float(when)
        call = (number - (1.0 if self.earlier else 0.0)) * self.steps if "." in when else number - self.earlier
        return int(max(min(call, self.steps), 0))


@dataclass(frozen=True)
class _Change:
    """``[before:after:when]``."""

    before: _Text
    after: _Text
    when: str


@dataclass(frozen=True)
class _Turns:
    """``[a|b]``."""

    texts: tuple[_Text, ...]


_Text = tuple["str | _Change | _Turns", ...]


class _Reader:
    """Reads the forms in a text; each bracket once, whatever becomes of those around it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._brackets: dict[int, tuple[_Text, int] | None] = {}

    def whole(self) -> _Text | None:
        """The whole text, in which brackets and colons that are parts of no form stand for themselves.

        None where a ``|`` stands outside of square brackets, or nothing after a backslash: A1111 then reads no form.
        """
        first, place = self._some(0, 0)
        parts = list(first)
        while place < len(self.text):
            if self.text[place] not in "[]():":
                return None
            more, end = self._some(place + 1, 0)
            parts += [self.text[place], *more]
            place = end
        return tuple(parts)

    def _some(self, place: int, depth: int) -> tuple[_Text, int]:
        """The text from a place on up to what is no part of it, and where that is."""
        parts: list[str | _Change | _Turns] = []
        while place < len(self.text):
            plain = _PLAIN.match(self.text, place)
            if plain:
                parts.append(plain[0])
                place = plain.end()
                continue
            found = self._bracket(place, depth + 1)
            if found is None:
                break
            parts += found[0]
            place = found[1]
        return tuple(parts), place

    def _bracket(self, place: int, depth: int) -> tuple[_Text, int] | None:
        """Contents and end of the bracket that opens at a place; None if there is no such bracket."""
        if self.text[place] not in "([":
            return None
        if place not in self._brackets:
            check_depth(depth)
            read = self._round if self.text[place] == "(" else self._square
            self._brackets[place] = read(place, depth)
        return self._brackets[place]

    def _round(self, place: int, depth: int) -> tuple[_Text, int] | None:
        inside, end = self._some(place + 1, depth)
        if self._at(end) == ":":
            weight, end = self._some(end + 1, depth)
            inside = (*inside, ":", *weight)
        return (("(", *inside, ")"), end + 1) if self._at(end) == ")" else None

    def _square(self, place: int, depth: int) -> tuple[_Text, int] | None:
        first, end = self._some(place + 1, depth)
        mark = self._at(end)
        if mark == "]":
            return ("[", *first, "]"), end + 1
        if mark == "|":
            texts = [first]
            while self._at(end) == "|":
                text, end = self._some(end + 1, depth)
                texts.append(text)
            return ((_Turns(tuple(texts)),), end + 1) if self._at(end) == "]" else None
        if mark != ":":
            return None
        before: _Text = ()
        when = _WHEN.match(self.text, end)
        if when is None:
            before = first
            first, end = self._some(end + 1, depth)
            when = _WHEN.match(self.text, end)
        return ((_Change(before, first, when["when"]),), when.end()) if when else None

    def _at(self, place: int) -> str:
        return self.text[place : place + 1]


@dataclass(frozen=True)
class Schedule:
    """A text that may change from call to call."""

    text: str
    """As it was written."""
    parts: _Text
    is_whole: bool = True
    """Whether its forms were read; a ``|`` outside of square brackets makes all of them text."""

    @cached_property
    def changes(self) -> bool:
        """Whether any form stands in it."""
        return any(not isinstance(part, str) for part in self.parts)

    def texts(self, clock: Clock, calls: int) -> list[str]:
        """The text of every call of a pass.

        Raises:
            UsageError: there are more than :data:`MAX_TEXTS`, or they have more than :data:`MAX_PIECES`.
        """
        if not self.changes:
            return ["".join(map(str, self.parts))] * calls
        pieces = list(_pieces(self.parts))
        takes_turns = any(isinstance(piece, _Turns) for piece in pieces)
        changes = (clock.call_of(piece.when) for piece in pieces if isinstance(piece, _Change))
        ends = sorted({clock.steps, *(range(1, clock.steps + 1) if takes_turns else filter(None, changes))})
        chosen = [ends[min(bisect_left(ends, clock.begun + call), len(ends) - 1)] for call in range(calls)]
        different_ends = dict.fromkeys(chosen)
        self._check_pieces(len(pieces), len(different_ends))
        by_end = {end: _at(self.parts, end, clock) for end in different_ends}
        different = len(set(by_end.values()))
        if different > MAX_TEXTS:
            raise UsageError(
                f"the prompt {cut(one_line(self.text), 60)!r} changes between {different} texts, at most {MAX_TEXTS} "
                "are taken",
                hint="Take fewer [a|b] of different lengths in one prompt.",
            )
        return [by_end[end] for end in chosen]

    def _check_pieces(self, pieces: int, calls: int) -> None:
        if pieces * calls > MAX_PIECES:
            raise UsageError(
                f"the prompt {cut(one_line(self.text), 60)!r} has {pieces:,} pieces and changes at {calls:,} calls of "
                f"the UNet; at most {MAX_PIECES:,} pieces are read for all calls",
                hint="Take fewer [a|b], [a:b:1] and brackets in one prompt, or fewer steps.",
            )


def _pieces(text: _Text) -> Iterator[str | _Change | _Turns]:
    """The pieces of a text, and those of its forms' texts."""
    for part in text:
        yield part
        if not isinstance(part, str):
            for inside in (part.before, part.after) if isinstance(part, _Change) else part.texts:
                yield from _pieces(inside)


def _at(text: _Text, call: int, clock: Clock) -> str:
    def chosen(part: str | _Change | _Turns) -> str:
        if isinstance(part, str):
            return part
        if isinstance(part, _Turns):
            return _at(part.texts[(call - 1) % len(part.texts)], call, clock)
        return _at(part.before if call <= clock.call_of(part.when) else part.after, call, clock)

    return "".join(map(chosen, text))


@lru_cache(maxsize=256)
def read_schedule(text: str, weighting: str) -> Schedule:
    """The forms of a prompt; in any other weighting than A1111's there are none.

    Raises:
        UsageError: brackets are nested too deep.
    """
    if weighting != WEIGHTINGS[0]:
        return Schedule(text, (text,))
    named = plain_names(text)
    parts = _Reader(named).whole()
    return Schedule(text, (named,) if parts is None else parts, parts is not None)


def read_parts(prompt: str, weighting: str) -> list[tuple[str, float]]:
    """The parts of a prompt and their weights: one of weight 1 without ``AND``.

    A1111 also takes the number at the end of a prompt without ``AND`` for a weight; here ``ratio 16:9`` is text.

    Raises:
        UsageError: there are more than :data:`MAX_PARTS`, or a weight is too large.
    """
    texts = _AND.split(prompt) if weighting == WEIGHTINGS[0] else [prompt]
    if len(texts) == 1:
        return [(prompt, 1.0)]
    if len(texts) > MAX_PARTS:
        raise UsageError(
            f"the prompt has {len(texts)} parts with AND between them, at most {MAX_PARTS} are taken",
            hint="Each makes every step longer; and in small letters is text.",
        )
    parts = []
    for text in texts:
        head, _, tail = text.rpartition(":")
        weighted = ":" in text and re.fullmatch(DECIMAL, tail.strip())
        weight = float(tail) if weighted else 1.0
        text = (head if weighted else text).rstrip()
        if not abs(weight) <= HEAVIEST:
            raise UsageError(
                f"the prompt gives the part {cut(one_line(text.strip()), 40)!r} the weight {weight:.3g}; weights are "
                f"from -{HEAVIEST:g} to {HEAVIEST:g}",
                hint="Usual are 0.5 to 1.5.",
            )
        parts.append((text, weight))
    return parts


def check_prompt(prompt: str, weighting: str, steps: int, *, divided: bool) -> None:
    """Refuse a prompt one of whose texts cannot be read.

    Args:
        steps: of the schedule.
        divided: whether ``AND`` divides it; in negative prompts it is text, as in A1111.

    Raises:
        UsageError: a weight is too large, brackets are nested too deep, or it has too many parts or texts.
    """
    for part, _ in read_parts(prompt, weighting) if divided else [(prompt, 1.0)]:
        for text in dict.fromkeys(read_schedule(part, weighting).texts(Clock(steps), steps)):
            read_prompt(text, weighting)
