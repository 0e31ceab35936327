"""Ranges of the numbers that a user gives, each at its edges, and what a refusal says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sdort.benchmark.bench_options import BenchOptions, BenchResults
from sdort.errors import UsageError
from sdort.exporter.export_options import ExportedOptions
from sdort.generation.requests.typed_options import GENERATION
from sdort.generation.upscale_options import UpscaleOptions
from sdort.options import number_ranges
from sdort.options.declared_options import ranges_of
from sdort.options.number_ranges import Range, check_fields, check_sizes, shown
from sdort.verification.verify_options import ComparisonOptions, SemanticOptions
from sdort.warmup.warm_options import WarmupOptions

BOUNDS: dict[str, tuple[Any, Any]] = {
    "STEPS": (1, 1000),
    "GUIDANCE_SCALE": (0.0, 1000.0),
    "ETA": (0.0, 1.0),
    "PREVIEW_EVERY": (1, 1000),
    "REFINER_START": (0.0, 1.0),
    "AESTHETIC_SCORE": (0.0, 10.0),
    "NEGATIVE_AESTHETIC_SCORE": (0.0, 10.0),
    "HEIGHT": (1, 16384),
    "WIDTH": (1, 16384),
    "SIZE_SIDE": (1, 16384),
    "CONTROL_SCALE": (-10.0, 10.0),
    "CONTROL_START": (0.0, 1.0),
    "CONTROL_END": (0.0, 1.0),
    "IP_ADAPTER_SCALE": (-10.0, 10.0),
    "ADAPTER_SCALE": (-100.0, 100.0),
    "SEED": (0, 2**63 - 1),
    "VARIATION_SEED": (0, 2**63 - 1),
    "VARIATION_STRENGTH": (0.0, 1.0),
    "STRENGTH": (0.0, 1.0),
    "MASK_BLUR": (0, 256),
    "MASK_PADDING": (0, 16384),
    "HIRES": (1.0, 8.0),
    "TILE": (64, 4096),
    "UPSCALE_BY": (0.1, 32.0),
    "SCALE": (0.1, 32.0),
    "HIRES_STRENGTH": (0.0, 1.0),
    "HIRES_STEPS": (1, 1000),
    "QUALITY": (1, 100),
    "NUM_IMAGES": (1, 10_000),
    "IMAGES_AT_ONCE": (1, 1024),
    "BATCH_SIZE": (1, 1024),
    "WARMUP": (0, 100_000),
    "REPEAT": (1, 100_000),
    "SEEDS": (1, 10_000),
    "SEMANTIC_PROMPTS": (1, 120),
    "MARGIN": (0.0, 1000.0),
    "OPSET": (18, 25),
    "STATIC_BATCH": (1, 1024),
    "STATIC_SIDE": (1, 16384),
    "DEVICE_ID": (0, 1023),
    "THREADS": (0, 4096),
    "WORKERS": (1, 10_000),
    "CLIP_SKIP": (1, 12),
    "EXPECT": (0, 1_000_000),
    "BUDGET": (0.0, 366 * 86400.0),
    "OLDER_THAN": (0.0, 100 * 366 * 86400.0),
    "CACHE_LIMIT": (0, 2**60),
    "DEEP_CACHE": (1, 1000),
    "DEEP_CACHE_DEPTH": (1, 100),
    "SHIFT": (0.001, 100.0),
    "PATCHES": (2, 16),
    "EXACT_STEPS": (1, 1000),
}
NAMES = {"SIZE_SIDE": "size", "ADAPTER_SCALE": "lora", "CACHE_LIMIT": "limit"}
"""Parameters that are not called as their range."""
NAMES |= dict.fromkeys(("CONTROL_SCALE", "CONTROL_START", "CONTROL_END"), "control")
NAMES |= {**dict.fromkeys(("STATIC_BATCH", "STATIC_SIDE"), "static"), "IP_ADAPTER_SCALE": "ip_adapter_image"}

DECLARED = (
    *GENERATION,
    BenchOptions,
    BenchResults,
    ComparisonOptions,
    SemanticOptions,
    WarmupOptions,
    ExportedOptions,
    UpscaleOptions,
)

LIMITS: dict[str, Range[Any]] = {name: value for name, value in vars(number_ranges).items() if isinstance(value, Range)}
LIMITS |= {name.upper(): limits for name, limits in ranges_of(*DECLARED).items()}


def test_every_range_is_here() -> None:
    assert LIMITS.keys() == BOUNDS.keys()


@pytest.mark.parametrize("name", BOUNDS)
def test_both_bounds_are_within_and_what_lies_beyond_is_refused(name: str) -> None:
    limits = LIMITS[name]
    low, high = BOUNDS[name]
    assert limits.name == NAMES.get(name, name.lower())
    assert (limits.check(low), limits.check(high)) == (low, high)
    if isinstance(low, int):
        beyond: tuple[Any, ...] = (low - 1, high + 1, low + 0.5, float(low), "1", None)
        assert type(limits.check(np.int64(low))) is int
    else:
        beyond = (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.nan, math.inf, "1", None)
        assert type(limits.check(np.float32(high))) is float
        assert type(limits.check(int(high))) is float
    for value in (*beyond, True, False, [low]):
        option = f"--{limits.name.replace('_', '-')}"
        with pytest.raises(UsageError) as caught:
            limits.check(value)
        assert str(caught.value).startswith(f"{option} ")
        assert str(caught.value).endswith(f": {limits.reason}")


def test_a_refusal_names_the_value_and_the_bounds() -> None:
    problems = {
        ("STEPS", 0): "0 is not a whole number from 1 to 1,000: ",
        ("SEED", -1): "-1 is not a whole number from 0 to 2^63 - 1: ",
        ("ETA", 1.5): "1.5 is not a number from 0 to 1: ",
        ("OLDER_THAN", "a"): "'a' is not a number from 0 to 3,162,240,000: ",
        ("THREADS", True): "True is not a whole number from 0 to 4,096: ",
    }
    for (name, value), words in problems.items():
        assert (LIMITS[name].problem(value) or "").startswith(words)
    assert shown(10**5000) == "a number of thousands of digits"
    assert shown("x" * 100) == "'" + "x" * 36 + "..."
    assert shown(np.float32(0.5)) == "0.5"


@pytest.mark.parametrize(
    ("text", "whole", "number"),
    [
        ("12", 12, 12.0),
        ("+12", 12, 12.0),
        ("-3", -3, -3.0),
        ("9" * 40, 10**40 - 1, 1e40),
        ("9" * 41, None, 1e41),
        ("1.5", None, 1.5),
        (".5", None, 0.5),
        ("-1.", None, -1.0),
        ("1e3", None, 1000.0),
        ("1E-3", None, 0.001),
        ("INF", None, math.inf),
        ("-inf", None, -math.inf),
        ("", None, None),
        (".", None, None),
        ("1_000", None, None),
        (" 1", None, None),
        ("1 ", None, None),
        ("\u0661", None, None),  # a digit that is not ASCII's
        ("infinity", None, None),
        ("0x10", None, None),
        ("1e", None, None),
    ],
)
def test_texts_of_numbers(text: str, whole: int | None, number: float | None) -> None:
    """A text that is no number stays what it is, and is refused by the range."""
    assert number_ranges.STEPS.parse(text) == (text if whole is None else whole)
    found = LIMITS["ETA"].parse(text)
    assert found == (text if number is None else pytest.approx(number))
    assert math.isnan(LIMITS["ETA"].parse("NaN"))  # type: ignore[arg-type]


def test_lists_are_checked_one_by_one() -> None:
    assert number_ranges.BATCH_SIZE.check_all(np.array([1, 4])) == (1, 4)
    for values, words in (("12", "is not a list of numbers"), (3, "is not a list of numbers"), ([1, 0], "0 is not a")):
        with pytest.raises(UsageError, match=f"--batch-size .*{words}"):
            number_ranges.BATCH_SIZE.check_all(values)  # type: ignore[arg-type]


def test_sizes_are_heights_and_widths() -> None:
    assert check_sizes([(64, 96), [512, 768], np.array([8, 16])]) == ((64, 96), (512, 768), (8, 16))
    assert check_sizes([]) == ()
    for sizes, words in (
        ("64x64", "--size '64x64' is not a list of pairs of height and width"),
        (64, "--size 64 is not a list of pairs"),
        ([64, 96], "--size 64 is not a pair of height and width"),
        ([(64, 96), (64,)], "is not a pair of height and width"),
        ([(64, 96, 3)], "is not a pair of height and width"),
        (["ab"], "--size 'ab' is not a pair"),
        ([(64, 0)], "--size 0 is not a whole number"),
        ([(16385, 64)], "--size 16385 is not a whole number"),
    ):
        with pytest.raises(UsageError) as caught:
            check_sizes(sizes)  # type: ignore[arg-type]
        assert words in str(caught.value)


@dataclass(frozen=True)
class Options:
    steps: Any = 20
    eta: Any = None


def test_fields_become_pythons_numbers() -> None:
    options = Options(np.int32(7), np.float16(0.5))
    check_fields(options, LIMITS["STEPS"], LIMITS["ETA"])
    assert (type(options.steps), type(options.eta)) == (int, float)
    check_fields(Options(), LIMITS["STEPS"], LIMITS["ETA"])
    for wrong in (Options(None), Options(0), Options(20, 1.5)):  # None only where it is the default
        with pytest.raises(UsageError):
            check_fields(wrong, LIMITS["STEPS"], LIMITS["ETA"])
