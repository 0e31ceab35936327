"""The last lines of ``sdort run``: the files, what they show again, and what they took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sdort.errors.plain_text import one_line
from sdort.generation.denoising.step_progress import speed, three_digits
from sdort.generation.requests.record import GenerationRecord
from sdort.generation.result import Generation
from sdort.tables import Table, share_text, size_text

START, REST = "start of Python, command line", "rest"


def run_seconds(result: Generation, counted: Mapping[str, float], age: float, before: float) -> dict[str, float]:
    """Seconds by phase, which add up to ``age``, in their order.

    Args:
        counted: what :func:`sdort.machine.phases.counted` found, but for the stages.
        age: seconds of the process until now.
        before: those until the counting began.
    """
    seconds = result.seconds
    stages = {
        "text encoder": seconds.encode,
        "image encoder": seconds.encode_image,
        "first step": seconds.first_step,
        "other steps": seconds.denoise - seconds.first_step,
        "decoder": seconds.decode,
        "upscaler": seconds.upscale,
        "safety checker": seconds.judge,
    }
    files = {name: each for name, each in counted.items() if name == "image files"}
    opening = {name: each for name, each in counted.items() if name not in files}
    for each in result.opened:
        if each.times > 1 and (name := f"opening of {each.component}") in opening:
            opening = {f"{key}, {each.times} times" if key == name else key: value for key, value in opening.items()}
    found = {START: before} | opening | {name: each for name, each in stages.items() if each} | files
    return found | {REST: age - sum(found.values())}


def phase_table(seconds: Mapping[str, float]) -> Table:
    """The phases of a run, with their shares."""
    whole = sum(seconds.values())
    table = Table("Where the time went", ["phase", ">seconds", ">share"])
    for name, each in seconds.items():
        table.add_row(name, three_digits(each), share_text(max(each, 0.0) / whole))
    table.add_row("all", three_digits(whole), share_text(1.0), style="bold")
    return table


def summarize(result: Generation, age: float | None = None) -> str:
    """Two lines: files, seeds, size, steps, provider and memory; then the seconds of each stage.

    Args:
        age: seconds since the process began; None where that is not known.
    """
    if not result.images:
        return f"nothing to draw: {_files(result.done_before)} of an earlier run"
    images = result.images
    made = [
        _seeds([image.seed for image in images]),
        # Larger than what was asked for, after a second pass.
        _each("{1}x{0}".format(*image.pixels.shape) for image in images),
        f"{_each(str(image.record.steps) for image in images)} steps of "
        f"{_each(sampler_of(image.record) for image in images)} on {result.provider}",
        *([f"refined by {one_line(result.refiner)}"] if result.refiner else []),
        *([f"in fp32 at the second attempt: {', '.join(result.widened)}"] if result.widened else []),
        *_memory(result),
    ]
    before = f" ({len(result.done_before)} more of an earlier run)" if result.done_before else ""
    named = _files([image.path for image in images if image.path])
    return f"{named}{before}: {', '.join(made)}\n{_stages(result, age)}"


def _files(paths: Sequence[Path]) -> str:
    """``a.png``, or ``3 images, a.png to c.png``."""
    if not paths:
        return "no image is written"
    return str(paths[0]) if len(paths) == 1 else f"{len(paths)} images, {paths[0]} to {paths[-1]}"


def _stages(result: Generation, age: float | None) -> str:
    """The seconds of all and of each stage; ``start`` is Python and its libraries, ``rest`` checks and files."""
    seconds, opening = result.seconds, sum(each.seconds for each in result.opened)
    stages = {
        "load": three_digits(seconds.load) + " s",
        "text encoder": three_digits(seconds.encode) + " s",
        "denoise": f"{three_digits(seconds.denoise)} s ({speed(result.iterations_per_second)})",
        "decode": three_digits(seconds.decode) + " s",
        **({"upscale": three_digits(seconds.upscale) + " s"} if seconds.upscale else {}),
        **({"load in turn": three_digits(opening) + " s"} if opening else {}),
        **({"safety checker": three_digits(seconds.judge) + " s"} if seconds.judge else {}),
    }
    words = [f"{stage} {text}" for stage, text in stages.items()]
    known = seconds.load + seconds.encode + seconds.encode_image + seconds.denoise + seconds.decode
    known += seconds.upscale + seconds.judge + opening
    if result.elapsed > known:
        words.append(f"rest {three_digits(result.elapsed - known)} s")
    if age is not None and age > result.elapsed > 0:
        words = [f"{three_digits(age)} s: start {three_digits(age - result.elapsed)} s", *words]
    return ", ".join(words)


def sampler_of(record: GenerationRecord) -> str:
    """The scheduler as it was asked for; the class of the pipeline's own."""
    return one_line(record.scheduler_name or record.scheduler.removesuffix("Scheduler"))


def _each(values: Iterable[str]) -> str:
    """The values of all images, each once and with its number: ``64x64``, or ``64x64 (1) and 96x64 (2)``; lines of a
    file may ask for many."""
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    *first, last = (f"{value} ({count})" for value, count in counts.items())
    return f"{', '.join(first[:3])}{', ...' if len(first) > 3 else ''} and {last}"


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
