"""The arguments and the clock that scripts share; no program of its own."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sdort.demo.shapes import SHAPES
from sdort.providers import AUTO, PROVIDER_NAMES, find_provider
from sdort.runtime.environment import device_name, versions

Row = TypeVar("Row")

_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "pipeline": {"type": Path, "help": "an exported or optimized pipeline"},
    "--work": {"type": Path, "required": True, "help": "models are made here, once"},
    "--provider": {"default": AUTO, "choices": [AUTO, *PROVIDER_NAMES]},
    "--family": {"default": "sd15", "choices": [*SHAPES], "help": "a shape of sdort export random:NAME"},
    "--checkpoint": {"type": Path, "help": "a diffusers folder in place of random weights"},
    "--custom-ops": {"default": "auto", "help": "as of sdort run: auto, off, or libsdort_ops.so"},
    "--graph": {"action": "store_true", "help": "record and replay CUDA or HIP graphs"},
    "--fp16": {"action": "store_true"},
    "--static": {"action": "store_true", "help": "a graph that is exported for its size"},
    "--size": {"default": "512x512", "help": "of images: width x height in pixels"},
    "--steps": {"type": int, "default": 20},
    "--images": {"type": int, "default": 5},
    "--repeat": {"type": int, "default": 30, "help": "timed calls of each row"},
    "--json": {"type": Path, "help": "write the rows to this file too"},
}

_STEADY = 16
"""Images that say a rate."""


class Arguments(argparse.ArgumentParser):
    """The arguments of a script: those of the table that it names, with defaults of its own, and more."""

    def __init__(self, description: str | None, names: str = "", providers: str = "", **defaults: Any) -> None:
        """
        Args:
            description: the script's docstring.
            names: keys of the table with spaces in between, such as ``pipeline --provider --json``.
            providers: those that the script runs on, its default first; by default any, and ``auto``.
            defaults: by the names that the parsed arguments have.
        """
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        for name in names.split():
            argument = dict(_ARGUMENTS[name])
            if name == "--provider" and providers:
                argument |= {"choices": providers.split(), "default": providers.split()[0]}
            self.add_argument(name, **argument)
        self.set_defaults(**defaults)


def environment(provider: str) -> dict[str, str]:
    """The device that a provider computes on, versions, and the date."""
    return {"device": device_name(find_provider(provider)), **versions(), "date": time.strftime("%Y-%m-%d")}


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    started = time.perf_counter()
    return call(), time.perf_counter() - started


def steady_rate(times: Sequence[float], edge: int) -> float | None:
    """Images a second while all that draws is busy, by least squares; None where too few images are left.

    Args:
        times: seconds at which images were done, in any order.
        edge: images at either end that are left out.
    """
    middle = np.sort(np.asarray(times, np.float64))[edge : len(times) - edge]
    if len(middle) < _STEADY or middle[0] == middle[-1]:
        return None
    return float(np.polyfit(middle - middle[0], np.arange(len(middle)), 1)[0])


def in_turns(
    calls: Mapping[Row, Callable[[], Any]], rounds: int, *, warmup: int = 0, wait: Callable[[], object] = lambda: None
) -> dict[Row, list[float]]:
    """Seconds of each call, one after the other in each round, so that a slow moment is every row's.

    Args:
        wait: returns when the device has nothing more to do; it counts for what was called before.
    """
    seconds: dict[Row, list[float]] = {name: [] for name in calls}
    for number in range(warmup + rounds):
        for name, call in calls.items():
            wait()
            took = timed(lambda call=call: (call(), wait()))[1]  # type: ignore[misc]
            if number >= warmup:
                seconds[name].append(took)
    return seconds


def why(error: Exception) -> str:
    """The text of a row that has no times."""
    return f"{type(error).__name__}: {error}"[:400]


def refuse_unknown(texts: str, known: Sequence[str], option: str, parser: argparse.ArgumentParser) -> None:
    """End the script with a sentence if an option that takes several by commas has one that is not known."""
    if unknown := sorted({*texts.split(",")} - {*known}):
        parser.error(f"{option} knows {', '.join(known)}, and not {', '.join(unknown)}")
