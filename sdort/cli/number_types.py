"""Types of options that are numbers: their ranges are those of :mod:`sdort.errors.number_ranges`."""

from __future__ import annotations

import re
from typing import Any

import click

from sdort.errors.number_ranges import BATCH_SIZE, SIZE_SIDE, Range
from sdort.errors.plain_text import cut


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


class SizeList(click.ParamType[tuple[tuple[int, int], ...]]):
    """``512x512,768x512``: height x width in pixels."""

    name = "HxW,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, int], ...]:
        if isinstance(value, tuple):
            return value
        sizes = [re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", part) for part in str(value).split(",")]
        if not all(sizes):
            self.fail(f"{shortened(value)} is not a list of sizes like 512x512,768x512", param, ctx)
        sides = ([_convert(self, SIZE_SIDE, side, param, ctx) for side in size.groups()] for size in sizes if size)
        return tuple(dict.fromkeys((height, width) for height, width in sides))


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


def shortened(value: object) -> str:
    """A refused value as messages repeat it."""
    return cut(repr(value))
