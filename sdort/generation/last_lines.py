"""The last lines of ``sdort run``: the files, what they show again, and what they took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sdort.errors.plain_text import one_line
from sdort.generation.result import Generation
from sdort.generation.step_progress import speed, three_digits
from sdort.tables import size_text


def summarize(result: Generation) -> str:
    """Two lines: files, seeds, size, steps, provider and memory; then the seconds of each stage."""
    seconds, images = result.seconds, result.images
    files = [str(image.path) for image in images if image.path]
    made = [
        _seeds([image.seed for image in images]),
        # Larger than what was asked for, after a second pass.
        _each("{1}x{0}".format(*image.pixels.shape) for image in images),
        f"{_each(str(image.record.steps) for image in images)} steps on {result.provider}",
        *([f"refined by {one_line(result.refiner)}"] if result.refiner else []),
        *_memory(result),
    ]
    stages = {
        "load": three_digits(seconds.load) + " s",
        "text encoder": three_digits(seconds.encode) + " s",
        "denoise": f"{three_digits(seconds.denoise)} s ({speed(result.iterations_per_second)})",
        "decode": three_digits(seconds.decode) + " s",
        **({"upscale": three_digits(seconds.upscale) + " s"} if seconds.upscale else {}),
        **({"safety checker": three_digits(seconds.judge) + " s"} if seconds.judge else {}),
    }
    return f"{_named(files)}: {', '.join(made)}\n{', '.join(f'{stage} {text}' for stage, text in stages.items())}"


def _named(files: Sequence[str]) -> str:
    if len(files) > 1:
        return f"{len(files)} images, {files[0]} to {files[-1]}"
    return files[0] if files else "no image is written"


def _each(values: Iterable[str]) -> str:
    """The values of all images, each once: ``64x64`` or ``64x64 and 96x64``; lines of a file may ask for many."""
    *first, last = dict.fromkeys(values)
    return f"{', '.join(first[:3])}{', ...' if len(first) > 3 else ''} and {last}" if first else last


def _seeds(seeds: Sequence[int]) -> str:
    distinct = sorted(set(seeds))
    first, last = distinct[0], distinct[-1]
    if first == last:
        return f"seed {first}"
    if distinct == list(range(first, last + 1)):
        return f"seeds {first} to {last}"
    return f"seeds {', '.join(map(str, distinct))}" if len(distinct) <= 5 else f"{len(distinct)} seeds"


def _memory(result: Generation) -> list[str]:
    peak = result.peak_memory
    where = {"": peak.host, " on the GPU": peak.device}
    known = [f"{size_text(number)}{place}" for place, number in where.items() if number is not None]
    return [f"peak memory {' and '.join(known)}"] if known else []
