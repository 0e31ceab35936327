"""Verify, then print or write what came of it."""

from __future__ import annotations

import os
from pathlib import Path

from sdort.console import detail, emit_json, say, show
from sdort.errors import OutputError
from sdort.staging import write_atomically
from sdort.verification.report.json_report import report_of
from sdort.verification.report.page import html_report
from sdort.verification.report.text import lines, tables
from sdort.verification.report.timesteps import timestep_lines
from sdort.verification.result import Verification, VerifyOptions
from sdort.verification.run import verify


def run_verify(candidate: Path, options: VerifyOptions, report: Path | None, *, as_json: bool) -> Verification:
    """Verify and say what came of it.

    Args:
        report: the HTML file, replaced if it exists; checked before anything is run.

    Raises:
        OutputError: the report cannot be written.
    """
    if report is not None and not (report.parent.is_dir() and os.access(report.parent, os.W_OK)):
        raise OutputError(f"cannot write to the folder {report.parent}", hint="Create it, or choose another.")
    result = verify(candidate, options)
    if report is not None:
        write_atomically(report, html_report(result))
    if as_json:
        emit_json(report_of(result))
    else:
        for table in tables(result):
            show(table)
        for line in timestep_lines(result.comparisons):
            detail(line)
        for line in lines(result):
            show(line)
    if report is not None:
        say(f"wrote {report}")
    return result
