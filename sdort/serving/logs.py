"""Structured logs: a line of JSON on stderr for each request and drawing. Prompts are in none, unless that is asked."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any

from sdort import console

logger = logging.getLogger("sdort.serving")
"""For messages of the server, with their fields as ``extra={"fields": {...}}``."""
request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that is being answered."""
_LOGGERS = ("sdort", "uvicorn.error")


def log(message: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Write a line: what happened, and its fields.

    Args:
        error: whose places in the code are written; its text may have words of a client.
    """
    if request_id.get():
        fields = {"request": request_id.get(), **fields}
    logger.log(level, message, exc_info=error, extra={"fields": fields})


class _Lines(logging.Formatter):
    """Records as lines of JSON."""

    def __init__(self, prompts: bool) -> None:
        super().__init__()
        self._prompts = prompts

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        entry |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0]:
            entry["error"] = record.exc_info[0].__name__
            if self._prompts:
                entry["reason"] = str(record.exc_info[1])
            entry["places"] = [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(record.exc_info[2])]
        return json.dumps(entry, default=str)


@contextmanager
def structured(prompts: bool, is_ready: Callable[[], bool]) -> Iterator[None]:
    """A block whose messages are lines of JSON on stderr. A program that imports sdort has logs of its own.

    Args:
        prompts: whether lines may have words of prompts.
        is_ready: whether the server is: from then on messages of sdort itself may be about prompts.
    """
    before = console.verbosity()
    if before == console.SILENT:
        yield
        return

    def is_shown(record: logging.LogRecord) -> bool:
        own = record.name != "sdort" or not (record.threadName or "").startswith("sdort-")
        return prompts or own or not is_ready()

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(prompts))
    handler.addFilter(is_shown)
    levels = {console.QUIET: logging.WARNING, console.NORMAL: logging.INFO}
    console.set_verbosity(console.SILENT)
    kept = [(found, found.level, found.propagate) for found in map(logging.getLogger, _LOGGERS)]
    for found, _, _ in kept:
        found.addHandler(handler)
        found.setLevel(levels.get(before, logging.DEBUG))
        found.propagate = False
    try:
        yield
    finally:
        for found, level, propagate in kept:
            found.removeHandler(handler)
            found.setLevel(level)
            found.propagate = propagate
        console.set_verbosity(before)
