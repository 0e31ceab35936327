"""The table of ``sdort run -v``: where each second of a run went."""

from __future__ import annotations

from collections.abc import Mapping

from sdort.generation.denoising.step_progress import three_digits
from sdort.generation.result import Generation
from sdort.tables import Table, share_text

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
