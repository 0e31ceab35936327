"""The JSON of an error, apart from what reports errors: that is imported for ``--help`` too, which takes no console."""

from __future__ import annotations

from dataclasses import dataclass

from sdort.console import document


@document("error", 1, is_open=True)
@dataclass(frozen=True)
class ErrorReport:
    """A command's failure under ``--json``; beside these fields it holds the result as far as the command came."""

    error: str
    """The error, in words."""
    type: str
    """The class of the error, as from Python: ``BadModelError``."""
    exit_code: int
    """The command's exit code."""
    component: str | None = None
    """The component of the pipeline that it happened in."""
    node: str | None = None
    """The ONNX node or tensor that it happened at."""
    hint: str | None = None
    """The next step, in words; commands to copy stand on lines that begin with four spaces."""
