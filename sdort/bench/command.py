"""What ``sdort bench`` does around measuring: files are checked first, results are delivered, bad ones are errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.bench.ablation import Ablation, ablate
from sdort.bench.bench import Measurement, measure
from sdort.bench.plan import Options
from sdort.bench.report import refuse_failed, show_text, write_atomically
from sdort.bench.rows import Row
from sdort.console import say, show
from sdort.errors import OutputError, ParityError


@dataclass(frozen=True)
class Delivery:
    """Where results go.

    Attributes:
        form: ``table``, ``csv``, ``json`` or ``markdown``; a file gets a table as Markdown.
        output: a file for the result, instead of stdout.
    """

    form: str = "table"
    output: Path | None = None

    def check(self) -> None:
        """Find out before anything is measured what cannot be written.

        Raises:
            OutputError: a folder is missing or not writable.
        """
        for file in (self.output,):
            if file is not None and not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
                raise OutputError(f"cannot write to the folder {file.parent}", hint="Create it, or choose another.")


def run_bench(path: Path, options: Options, delivery: Delivery) -> list[Row]:
    """Measure a pipeline and deliver its rows.

    Raises:
        OutputError: a result cannot be written.
        ParityError: a row failed its check; everything is delivered first.
    """
    delivery.check()
    found = measure(path, options)
    _hand_over(found, delivery)
    refuse_failed(found.rows)
    return found.rows


def run_ablation(path: Path, options: Options, delivery: Delivery) -> Ablation:
    """Measure an ablation and deliver it.

    Raises:
        OutputError: a result cannot be written.
        ParityError: a step could not be made or a row failed its check; everything is delivered first.
    """
    delivery.check()
    found = ablate(path, options)
    _hand_over(found, delivery)
    problems = [stage for stage in found.stages if stage.problem]
    if problems:
        raise ParityError(f"the step {problems[0].name!r} could not be made: {problems[0].problem}")
    refuse_failed(found.measured.rows)
    return found


def _hand_over(found: Measurement | Ablation, delivery: Delivery) -> None:
    from sdort.bench import ablation_table, rows

    form = delivery.form
    if form == "table" and delivery.output is None:
        show(ablation_table.as_table(found) if isinstance(found, Ablation) else rows.as_table(found.rows))
        return
    form = "markdown" if form == "table" else form
    text = ablation_table.as_text(found, form) if isinstance(found, Ablation) else rows.as_text(found.rows, form)
    if delivery.output is None:
        show_text(text)
        return
    write_atomically(delivery.output, text)
    say(f"wrote {delivery.output}")


def measured_rows(found: Measurement | Ablation) -> Sequence[Row]:
    """The rows, each once."""
    return found.measured.rows if isinstance(found, Ablation) else found.rows
