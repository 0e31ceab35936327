"""Types of options that are numbers: their ranges are those of :mod:`sdort.options.number_ranges`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from sdort.errors import SdortError
from sdort.errors.plain_text import cut
from sdort.options.number_ranges import BATCH_SIZE, Range, parse_size, size_words


class Whole(click.IntRange):
    """A whole number within a range; click's own type takes ``1_0`` and other scripts' digits too."""

    name = "integer"

    def __init__(self, limits: Range[int]) -> None:
        super().__init__(limits.low, limits.high)
        self.limits = limits

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return int(_convert(self, self.limits, value, param, ctx))


class Real(click.FloatRange):
    """A finite number within a range; click's own type takes NaN, and without bounds infinity."""

    name = "number"

    def __init__(self, limits: Range[float]) -> None:
        super().__init__(limits.low, limits.high)
        self.limits = limits

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return float(_convert(self, self.limits, value, param, ctx))


def _convert(
    kind: click.ParamType[Any],
    limits: Range[Any],
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> Any:
    number = limits.parse(value) if isinstance(value, str) else value
    problem = limits.problem(number)
    if problem:
        kind.fail(problem, param, ctx)
    return limits.check(number)


class NumberList(click.ParamType[tuple[int, ...]]):
    """``1,2,4``."""

    name = "N,N,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", str(value)):
            self.fail(f"{shortened(value)} is not a list of numbers like 1,2,4", param, ctx)
        parts = dict.fromkeys(str(value).split(","))
        return tuple(_convert(self, BATCH_SIZE, part, param, ctx) for part in parts)


USUAL_SIZES = ("512x512", "512x768", "768x512", "768x768", "832x1216", "1024x1024", "1216x832")
"""Sizes that the shell completes: sizes that SD 1.x, 2.x and SDXL were trained on."""


class Size(click.ParamType[str]):
    """``768x512``: width x height in pixels."""

    name = "WxH"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return size_words(_size(self, value, param, ctx))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(size) for size in USUAL_SIZES if size.startswith(incomplete)]


class SizeList(click.ParamType[tuple[tuple[int, int], ...]]):
    """``512x512,768x512``: width x height in pixels; the values are pairs of height and width.

    Commands with this option once read the height first. Which is which is told where that changes something, and
    ``hxw:512x768`` still reads the height first.
    """

    name = "WxH,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, int], ...]:
        if isinstance(value, tuple):
            return value
        text = str(value)
        turned = text[: len(_OLD_ORDER)].lower() == _OLD_ORDER
        sizes = [_size(self, part, param, ctx) for part in text[turned * len(_OLD_ORDER) :].split(",")]
        sizes = [size[::-1] for size in sizes] if turned else sizes
        _tell_order(sizes, turned)
        return tuple(dict.fromkeys(sizes))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{size}") for size in USUAL_SIZES if size.startswith(last)]


_OLD_ORDER = "hxw:"


def _tell_order(sizes: Sequence[tuple[int, int]], turned: bool) -> None:
    """Warn where a size is not square, and where the old order is asked for."""
    from sdort.console import warn

    odd = next(((height, width) for height, width in sizes if height != width), None)
    written = ",".join(map(size_words, sizes))
    if turned:
        warn(f"--size {_OLD_ORDER} reads the height first, as sdort did once: write --size {written}")
    elif odd:
        height, width = odd
        warn(
            f"--size {width}x{height} is {width} wide and {height} high, as in sdort run; this command once read the "
            f"height first, which is --size {_OLD_ORDER}{width}x{height} now"
        )


def _size(
    kind: click.ParamType[Any], value: object, param: click.Parameter | None, ctx: click.Context | None
) -> tuple[int, int]:
    try:
        return parse_size(value)
    except SdortError as error:
        kind.fail(f"{error.message.removeprefix('--size ')}. {error.hint or ''}".strip(), param, ctx)


class Duration(click.ParamType[float]):
    """``90s``, ``30m``, ``12h`` or ``30d``, in seconds."""

    name = "TIME"

    def __init__(self, limits: Range[float]) -> None:
        self.limits = limits

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([smhd])", str(value))
        if not match:
            self.fail(f"{shortened(value)} is not a time like 90s, 30m, 12h or 30d", param, ctx)
        seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
        return float(_convert(self, self.limits, seconds, param, ctx))


class ByteSize(click.ParamType[int]):
    """``20GB``, in bytes."""

    name = "SIZE"

    def __init__(self, limits: Range[int]) -> None:
        self.limits = limits

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?([kmgt]?)b?", str(value), re.IGNORECASE | re.ASCII)
        if not match:
            self.fail(f"{shortened(value)} is not a size like 20GB or 500MB", param, ctx)
        number = round(float(match[1]) * 1000 ** " kmgt".index(match[2].lower() or " "))
        return int(_convert(self, self.limits, number, param, ctx))


def shortened(value: object) -> str:
    """A refused value as messages repeat it."""
    return cut(repr(value))
