r"""The language of prompts: weights, where chunks begin, and names of files.

Two readings, by the programs that people know:

- ``a1111``: ``(word)`` weighs 1.1, ``[word]`` 1/1.1, ``(word:1.3)`` 1.3, all multiplied where they nest; ``\(`` and
  ``\[`` are brackets of the text, an unclosed bracket reaches to the end; ``BREAK`` begins a new chunk, but with a
  weight around it is a word of minus that weight: A1111 marks it by the weight -1, which the brackets multiply.
  https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/Features#attentionemphasis
- ``comfyui``: ``(word)`` multiplies with 1.1, ``(word:1.3)`` is 1.3 wherever it stands; ``\(`` is a bracket of the
  text. A ``)`` without a ``(``, as in ``:)``, takes the next ``(`` with it, which is text then. Square brackets and
  ``BREAK`` are text. https://github.com/comfyanonymous/ComfyUI, comfy/sd1_clip.py

``none`` takes the text as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from sdort.errors import UsageError, did_you_mean
from sdort.errors.plain_text import cut, one_line
from sdort.options.number_ranges import DECIMAL

WEIGHTINGS = ("a1111", "comfyui", "none")
"""The ways to read a prompt; the first is the default."""

_ROUND, _SQUARE = 1.1, 1 / 1.1
_DEEPEST = 64
"""Brackets within each other: 1.1^64 is 446."""
HEAVIEST = 100.0
"""Largest weight of a word, and smallest with a minus: usual are 0.5 to 1.5, and fp16 ends at 65504."""

_A1111 = re.compile(
    rf"\\(?P<escaped>[^:]?)|(?P<open>[(\[])|:\s*(?P<weight>{DECIMAL})\s*\)|(?P<close>[)\]])|(?P<text>[^\\()\[\]:]+|:)",
    re.DOTALL,
)
_HEAVY = re.compile(rf"\([^()\[\]:]*:\s*{DECIMAL}\s*\)")
_BREAK = re.compile(r"\bBREAK\b")
_NETWORK = re.compile(r"<(lora|lyco|lycoris|locon|hypernet|hypernetwork):([^<>]+)>")
_COMFYUI_ESCAPED = re.compile(r"\\([()])")
_EMBEDDING = re.compile(r"embedding:([^\s,()\[\]:]+)")


@dataclass(frozen=True)
class Segment:
    """Text of one weight."""

    text: str
    weight: float = 1.0


@dataclass(frozen=True)
class Prompt:
    """A prompt as it was read."""

    parts: tuple[tuple[Segment, ...], ...]
    """Segments, divided where a new chunk begins whatever is left of the last one."""

    @property
    def weighted(self) -> bool:
        """Whether any text has a weight of its own."""
        return any(segment.weight != 1.0 for part in self.parts for segment in part)


@dataclass(frozen=True)
class NamedFiles:
    """Files that a prompt asks for."""

    networks: tuple[str, ...]
    """In angle brackets, such as ``<lora:name:0.8>``."""
    embeddings: tuple[str, ...]
    """Textual inversion embeddings that it names as ComfyUI does, ``embedding:name``; their names are in the text."""


def heavy_text(text: str) -> str | None:
    """The first words of a text with a weight in numbers, such as ``(word:1.2)``; None if there are none."""
    found = _HEAVY.search(text)
    return found[0] if found else None


def check_weighting(name: object) -> None:
    """Refuse what is none of :data:`WEIGHTINGS`.

    Raises:
        UsageError: it is none.
    """
    if name not in WEIGHTINGS:
        raise UsageError(
            f"there is no prompt weighting {one_line(str(name)[:40])!r}; there are: {', '.join(WEIGHTINGS)}",
            hint=did_you_mean(str(name)[:40], WEIGHTINGS),
        )


def read_prompt(text: str, weighting: str) -> Prompt:
    """A prompt, read by one of :data:`WEIGHTINGS`.

    Raises:
        UsageError: a weight is too large, or brackets are nested too deep.
    """
    check_weighting(weighting)
    if weighting == "none":
        return Prompt(((Segment(text),),))
    if weighting == "a1111":
        parts = _read_a1111(plain_names(text))
    else:
        parts = [list(_read_comfyui(_EMBEDDING.sub(r"\1", text), 1.0, 0))]
    for part in parts:
        for segment in part:
            _check_weight(segment)
    return Prompt(tuple(tuple(_merged(part)) for part in parts))


def named_files(text: str, weighting: str) -> NamedFiles:
    """The files that a prompt asks for."""
    embeddings = () if weighting == "none" else tuple(found[1] for found in _EMBEDDING.finditer(text))
    return NamedFiles(tuple(network_texts(text)), embeddings)


def network_texts(text: str) -> list[str]:
    """The networks that a text asks for, as they are written."""
    return [found[0] for found in _NETWORK.finditer(text)]


def plain_names(text: str) -> str:
    """A text of A1111's without the networks that it asks for, whose embeddings are words."""
    return _EMBEDDING.sub(r"\1", _NETWORK.sub("", text))


def _check_weight(segment: Segment) -> None:
    if not abs(segment.weight) <= HEAVIEST:
        raise UsageError(
            f"the prompt gives {cut(one_line(segment.text.strip()), 40)!r} the weight {segment.weight:.3g}; "
            f"weights are from -{HEAVIEST:g} to {HEAVIEST:g}",
            hint=r"Usual are 0.5 to 1.5. A bracket that is text is written \( or \).",
        )


def _merged(part: Sequence[Segment]) -> Iterator[Segment]:
    """Neighbours of one weight are one text: tokens do not end at an escaped bracket."""
    for weight, segments in groupby(part or [Segment("")], lambda segment: segment.weight):
        yield Segment("".join(segment.text for segment in segments), weight)


@dataclass
class _Piece:
    text: str
    weight: float = 1.0


_END_OF_CHUNK = "BREAK", -1.0
"""The text and the weight of a piece that ends a chunk."""


def _read_a1111(text: str) -> list[list[Segment]]:
    pieces: list[_Piece] = []
    opened: dict[str, list[int]] = {"(": [], "[": []}  # the first piece in each open bracket
    for found in _A1111.finditer(text):
        kind, value = found.lastgroup, found[0]
        if kind == "escaped":
            pieces.append(_Piece(found["escaped"]))
        elif kind == "open":
            opened[value].append(len(pieces))
            check_depth(sum(map(len, opened.values())))
        elif kind == "weight" and opened["("]:
            _multiply(pieces, opened["("].pop(), float(found["weight"]))
        elif value == ")" and opened["("]:
            _multiply(pieces, opened["("].pop(), _ROUND)
        elif value == "]" and opened["["]:
            _multiply(pieces, opened["["].pop(), _SQUARE)
        else:
            pieces += _broken(value)
    for factor, kind in ((_ROUND, "("), (_SQUARE, "[")):
        for first in opened[kind]:
            _multiply(pieces, first, factor)
    return _divided(pieces)


def _multiply(pieces: list[_Piece], first: int, factor: float) -> None:
    for piece in pieces[first:]:
        piece.weight *= factor


def _broken(text: str) -> Iterator[_Piece]:
    """The texts between the breaks, without the space beside these."""
    first, *others = _BREAK.split(text)
    yield _Piece(first.rstrip() if others else first)
    for number, part in enumerate(others, 1):
        yield _Piece(*_END_OF_CHUNK)
        yield _Piece(part.strip() if number < len(others) else part.lstrip())


def _divided(pieces: list[_Piece]) -> list[list[Segment]]:
    parts: list[list[Segment]] = [[]]
    for piece in pieces:
        if (piece.text, piece.weight) == _END_OF_CHUNK:
            parts.append([])
        elif piece.text:
            parts[-1].append(Segment(piece.text, piece.weight))
    return parts


def check_depth(depth: int) -> None:
    """Refuse brackets that are nested too deep.

    Raises:
        UsageError: they are.
    """
    if depth > _DEEPEST:
        raise UsageError(
            f"the prompt has more than {_DEEPEST} brackets within each other",
            hint=r"A bracket that is text is written \( or \[; --prompt-weighting none takes all of them as text.",
        )


def _read_comfyui(text: str, weight: float, depth: int) -> Iterator[Segment]:
    """Segments of ComfyUI's language: text and groups in round brackets, each read again."""
    check_depth(depth)
    for item in _items(text):
        # An escaped bracket at the end is text.
        if not item.startswith("(") or not item.endswith(")") or item.endswith(r"\)"):
            yield Segment(_COMFYUI_ESCAPED.sub(r"\1", item), weight)
            continue
        head, _, tail = item[1:-1].rpartition(":")
        number = _number(tail) if head else None
        if number is None:
            yield from _read_comfyui(item[1:-1], weight * _ROUND, depth + 1)
        else:
            yield from _read_comfyui(head, number, depth + 1)


def _number(text: str) -> float | None:
    """A weight as Python reads it, as ComfyUI does; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _items(text: str) -> Iterator[str]:
    """The texts between the outermost round brackets, and those with these around them; an unmatched ``)`` counts."""
    depth = start = 0
    for found in re.finditer(r"\\[()]|[()]", text):
        if found[0] == "(":
            if depth == 0 and start < found.start():
                yield text[start : found.start()]
                start = found.start()
            depth += 1
        elif found[0] == ")":
            depth -= 1
            if depth == 0:
                yield text[start : found.end()]
                start = found.end()
    if start < len(text):
        yield text[start:]
