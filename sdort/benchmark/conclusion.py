"""The sentence that a benchmark ends with."""

from __future__ import annotations

from collections.abc import Sequence

from sdort.benchmark.digits import digits, time_ratio
from sdort.benchmark.labels import contender_label, varying_case
from sdort.benchmark.rows import Row
from sdort.families.known_families import DENOISERS
from sdort.tables import counted
from sdort.workload.cases import WHOLE_PIPELINE


def conclusion(rows: Sequence[Row]) -> str:
    """Time of an image and of a step, or which share of the baseline's time, and whether the outputs are right."""
    timed = [row for row in headline_rows(rows) if row.median_ms is not None]
    contenders = [contender for contender in by_contender(timed, rows) if any(row.ratio for row in contender[1])]
    if contenders:
        several = len(contenders) > 1
        parts = [_compared(mine, name if several else "") for name, mine in contenders]
    else:
        parts = [_alone(mine, name if len({contender_label(r, rows) for r in rows}) > 1 else "")
                 for name, mine in by_contender(timed, rows)]  # fmt: skip
    case = ", ".join(varying_case(timed[0], rows)) if timed else ""
    text = "; ".join([*([f"{case}: {parts[0]}", *parts[1:]] if case else filter(None, parts)), outputs(rows)])
    return text if len(parts) > 1 else capitalized(text)  # names stay as they are


def by_contender(chosen: Sequence[Row], rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows by the pipeline or engine they ran in, in their order."""
    groups: dict[str, list[Row]] = {}
    for row in chosen:
        groups.setdefault(contender_label(row, rows), []).append(row)
    return list(groups.items())


def headline_rows(rows: Sequence[Row]) -> list[Row]:
    """The UNet's and the pipeline's rows at the first batch and size; every component's where neither was measured."""
    chosen = [row for name in (*DENOISERS, WHOLE_PIPELINE) for row in rows if row.component == name] or list(rows)
    first: dict[tuple[str, str], Row] = {}
    for row in chosen:
        first.setdefault((contender_label(row, rows), row.component), row)
    return list(first.values())


def _compared(rows: Sequence[Row], name: str) -> str:
    phrases = []
    for row in rows:
        if row.ratio is None:
            continue
        _, low, high = row.ratio
        if low is not None and high is not None and low <= 1 <= high:
            words = f"no difference measurable ({digits(low)} to {digits(high)})"
            phrases.append(f"{subject(row)}: {words}")
        elif any("takes" in phrase for phrase in phrases):
            phrases.append(f"{subject(row)} {time_ratio(*row.ratio)}")
        else:
            phrases.append(f"{subject(row)} takes {time_ratio(*row.ratio)} of the baseline's time")
    text = ", ".join(phrases)
    return f"{name}: {text}" if name and text else text


def _alone(rows: Sequence[Row], name: str) -> str:
    phrases = []
    for row in reversed(rows):  # the image first
        rate = f" ({digits(row.images_per_s)} images/s)" if row.images_per_s else ""
        phrases.append(f"{subject(row)} takes {digits(row.median_ms or 0)} ms{rate}")
    text = ", ".join(phrases)
    return f"{name}: {text}" if name and text else text


def headline(rows: Sequence[Row]) -> tuple[str, str]:
    """The one number of a benchmark, and what it is; empty where nothing was timed.

    That of an image, else of a UNet step, else of the first component: the share of the baseline's time, or
    milliseconds where there is no baseline or no difference from it is measurable.
    """
    timed = [row for row in headline_rows(rows) if row.median_ms is not None]
    row = max(timed, key=lambda row: (row.ratio is not None, row.component == WHOLE_PIPELINE), default=None)
    if row is None:
        return "", ""
    time, words = f"{digits(row.median_ms or 0)} ms", f"for {subject(row)}"
    if row.ratio is None:
        return time, words
    ratio, low, high = row.ratio
    interval = "" if low is None or high is None else f" ({digits(low)} to {digits(high)} with 95 % confidence)"
    if low is not None and high is not None and low <= 1 <= high:
        return time, f"{words}: no difference from the baseline is measurable{interval.replace('(', '(ratio ')}"
    return digits(ratio), f"of the baseline's time for {subject(row)}{interval}"


def share_words(ratio: float, low: float | None, high: float | None) -> str:
    """``0.86 (0.83 to 0.89) of the time``, or that no difference can be measured."""
    text = time_ratio(ratio, low, high)
    return text.replace("difference", "difference measurable") if text.startswith("no") else f"{text} of the time"


def subject(row: Row) -> str:
    """One call of a row in words: ``an image of 20 steps``, ``a UNet step``."""
    if row.component == WHOLE_PIPELINE:
        image = "an image" if row.batch_size == 1 else f"a batch of {row.batch_size} images"
        return f"{image} of {counted(row.steps or 0, 'step')}"
    denoiser = DENOISERS.get(row.component)
    return f"a {denoiser.title} step" if denoiser else f"the {row.component.replace('_', ' ')}"


def outputs(rows: Sequence[Row]) -> str:
    """Whether the outputs are right, in words."""
    failed = [row for row in rows if row.failed]
    if failed:
        return f"{len(failed)} of {len(rows)} outputs failed their check"
    if not any(row.was_compared for row in rows):
        return "there was no reference to compare outputs with"
    return "every output is within its tolerance"


def capitalized(text: str) -> str:
    """The text as a sentence: a capital at the beginning."""
    return text[:1].upper() + text[1:]
