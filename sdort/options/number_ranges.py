"""Ranges of the numbers that a user gives, one for the command line and for the function behind it.

A number outside of its range is refused before anything is read or loaded. Bounds are those beyond which no model gives
anything of use, or beyond which a request has no end; each says why. The range of a number that is one command's alone
stands at its option (:mod:`sdort.options.declared_options`).
"""

from __future__ import annotations

import numbers
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, cast

from sdort.errors import UsageError
from sdort.errors.plain_text import cut

N = TypeVar("N", int, float)
DECIMAL = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
"""The pattern of a decimal number. There is one way to read each, so that a text of digits alone is read once."""
_SHOWN = 40
"""Characters of a refused value that a message repeats."""


def flag_of(name: str) -> str:
    """A parameter as the command line names it: ``--init-image``."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Range(Generic[N]):
    """The values that a parameter takes: finite numbers from ``low`` to ``high``, without booleans and texts."""

    name: str
    """The parameter, as a function names it."""
    low: N
    high: N
    reason: str
    """Why there are these bounds."""

    @property
    def option(self) -> str:
        """The parameter as an option of the command line."""
        return flag_of(self.name)

    @property
    def whole(self) -> bool:
        """Whether it takes whole numbers only."""
        return isinstance(self.low, int)

    def check(self, value: object) -> N:
        """``value`` as a Python number; numpy's scalars become one.

        Raises:
            UsageError: it is no number, not finite or out of range.
        """
        problem = self.problem(value)
        if problem:
            raise UsageError(f"{self.option} {problem}")
        return cast("N", operator.index(cast("Any", value)) if self.whole else float(cast("Any", value)))

    def problem(self, value: object) -> str | None:
        """The reason why ``value`` is refused, to be put after the parameter's name; None if it is not."""
        kind: Any = numbers.Integral if self.whole else numbers.Real
        # A comparison with NaN is false, so that NaN is refused too.
        if isinstance(value, kind) and not isinstance(value, bool) and self.low <= cast("Any", value) <= self.high:
            return None
        what = "a whole number" if self.whole else "a number"
        return f"{shown(value)} is not {what} from {_text(self.low)} to {_text(self.high)}: {self.reason}"

    def parse(self, text: str) -> object:
        """The number that ``text`` says, in ASCII digits; ``text`` itself if none, which :meth:`check` refuses."""
        if self.whole:
            return int(text) if re.fullmatch(r"[+-]?[0-9]{1,40}", text) else text
        pattern = rf"{DECIMAL}(?:e[+-]?[0-9]+)?|[+-]?(?:nan|inf)"
        return float(text) if re.fullmatch(pattern, text, re.IGNORECASE) else text

    def check_all(self, values: Iterable[object]) -> tuple[N, ...]:
        """Each of ``values``, checked.

        Raises:
            UsageError: as :meth:`check`, or it is no list of numbers.
        """
        return tuple(map(self.check, _listed(values, f"{self.option} {shown(values)} is not a list of numbers")))


def _text(bound: float) -> str:
    return "2^63 - 1" if bound == (1 << 63) - 1 else f"{bound:,}".removesuffix(".0")


def shown(value: object) -> str:
    """A refused value as a message repeats it."""
    try:
        text = str(value) if isinstance(value, numbers.Number) and not isinstance(value, bool) else repr(value)
    except ValueError:  # Python writes out no number of more than 4,300 digits
        text = "a number of thousands of digits"
    return cut(text, _SHOWN)


def _listed(values: object, problem: str) -> Sequence[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UsageError(problem)
    return tuple(values)


_SIZE = re.compile(r"\s*([0-9]{1,20})\s*[xX\u00d7*]\s*([0-9]{1,20})\s*")


def parse_size(text: object) -> tuple[int, int]:
    """Height and width in pixels of ``WxH``: ``768x512`` is 768 wide and 512 high, as people write sizes of images.

    Raises:
        UsageError: it has another form, or a side is out of its range.
    """
    sides = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if not sides:
        raise UsageError(f"--size {shown(text)} is no size", hint="Write WIDTHxHEIGHT in pixels, such as 768x512.")
    width, height = (SIZE_SIDE.check(SIZE_SIDE.parse(side)) for side in sides.groups())
    return height, width


def size_words(size: tuple[int, int]) -> str:
    """``WxH`` of a height and a width in pixels."""
    return "{1}x{0}".format(*size)


def check_sizes(sizes: Iterable[object]) -> tuple[tuple[int, int], ...]:
    """Heights and widths in pixels, checked.

    Raises:
        UsageError: something else than pairs of numbers within :data:`SIDE`.
    """
    pairs = _listed(sizes, f"--size {shown(sizes)} is not a list of pairs of height and width")
    problem = "--size {} is not a pair of height and width"
    checked = (SIZE_SIDE.check_all(_listed(pair, problem.format(shown(pair)))) for pair in pairs)
    found = []
    for pair, sides in zip(pairs, checked, strict=True):
        if len(sides) != 2:
            raise UsageError(problem.format(shown(pair)))
        found.append((sides[0], sides[1]))
    return tuple(found)


def check_fields(options: Any, *ranges: Range[int] | Range[float]) -> None:
    """Check the fields that ``ranges`` name of a dataclass that is being made; numpy's scalars become Python's.

    Raises:
        UsageError: a value is refused; None where that is the field's default is not.
    """
    optional = {field.name for field in fields(options) if field.default is None}
    for limits in ranges:
        value = getattr(options, limits.name)
        if not (value is None and limits.name in optional):
            object.__setattr__(options, limits.name, limits.check(value))


STEPS = Range("steps", 1, 1000, "models are trained on 1,000 timesteps")
_LARGEST = "larger images are made by upscaling smaller ones"
HEIGHT = Range("height", 1, 16384, _LARGEST)
WIDTH = Range("width", 1, 16384, _LARGEST)
SIZE_SIDE = Range("size", 1, 16384, _LARGEST)
CONTROL_SCALE = Range("control", -10.0, 10.0, "1 is a ControlNet as it was trained, and 0 is nothing")
CONTROL_START = Range("control", 0.0, 1.0, "it is a share of the steps")
CONTROL_END = Range("control", 0.0, 1.0, "it is a share of the steps")
IP_ADAPTER_SCALE = Range("ip_adapter_image", -10.0, 10.0, "1 is an adapter as it was trained, and 0 is nothing")
ADAPTER_SCALE = Range("lora", -100.0, 100.0, "1 is an adapter as it was trained, and 0 is nothing")
SEED = Range("seed", 0, (1 << 63) - 1, "torch's generator takes 64 bits, and a negative seed is another name of one")
QUALITY = Range("quality", 1, 100, "100 is the best that JPEG and WebP have")
NUM_IMAGES = Range("num_images", 1, 10_000, "all images of a run are numbered and kept until its end")
BATCH_SIZE = Range("batch_size", 1, 1024, "larger batches gain no speed")
STATIC_BATCH = Range("static", 1, 1024, "larger batches gain no speed")
STATIC_SIDE = Range("static", 1, 16384, _LARGEST)
DEVICE_ID = Range("device_id", 0, 1023, "it is the number of a GPU of this machine")
WORKERS = Range("workers", 1, 10_000, "each is a process with a pipeline of its own")
THREADS = Range("threads", 0, 4096, "0 lets ONNX Runtime choose")
CLIP_SKIP = Range("clip_skip", 1, 12, "1 skips no layer of the text encoder, 2 the last; it has 12 or more")
EXPECT = Range("expect", 0, 1_000_000, "it is a number of nodes")
OLDER_THAN = Range("older_than", 0.0, 100 * 366 * 86400.0, "it is in seconds, a century at most")
CACHE_LIMIT = Range("limit", 0, 1 << 60, "it is in bytes, and no disk has as many as that")

RANGES: dict[str, Range[Any]] = {
    limits.name: limits for limits in list(globals().values()) if isinstance(limits, Range)
}
"""All of these by their parameters."""
