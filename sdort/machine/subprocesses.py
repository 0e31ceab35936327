"""Programs and workers that sdort starts: they, and all that they start, end with sdort, however it ends."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sdort.console import detail
from sdort.errors import SdortError
from sdort.machine.os_calls import os_calls
from sdort.tables import size_text

OUTPUT_LIMIT = 64 * 2**20
"""Upper bound in bytes of what a program prints; one that prints more is ended."""

_PATIENCE = 5.0
"""Seconds that a program may take to be killed; one that waits for a lost device takes forever."""

# With our own search path: -c would put the current folder before it, whatever lies there.
_WORK = """
import sys
function, task = sys.argv[1:3]
sys.path[:] = sys.argv[3:]
import importlib, json
module, name = function.split(":")
answer = getattr(importlib.import_module(module), name)(**json.loads(task))
print(flush=True)
print(json.dumps(answer), flush=True)
"""


class WorkerError(Exception):
    """A worker that ended without an answer."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"it ended with code {code} and said: {said}")
        self.code = code
        """Exit code; negative for the signal that ended it."""
        self.said = said
        """The last line on its stderr."""


def run_child(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    timeout: float | None = None,
    merge: bool = False,
    limit: int = OUTPUT_LIMIT,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without a terminal and without input.

    It and all its descendants are killed when this process ends, or when an exception (Ctrl-C too) breaks this call
    off.

    Args:
        environ: environment variables; by default this process's.
        timeout: seconds after which it is ended.
        merge: put its stderr into its stdout.
        limit: the most bytes that it may print.

    Raises:
        FileNotFoundError: there is no such program.
        subprocess.TimeoutExpired: it took longer than ``timeout``.
        SdortError: it printed more than ``limit``.
    """
    if not shutil.which(command[0], path=(os.environ if environ is None else environ).get("PATH")):
        raise FileNotFoundError(2, os.strerror(2), command[0])
    deadline = time.monotonic() + (math.inf if timeout is None else timeout)
    with _supervised(command, environ, merge) as process:
        printed = _read(process, command, deadline, limit)
        code = process.wait(_left(deadline))
    return subprocess.CompletedProcess([*command], code, *printed)


def run_worker(
    function: str,
    task: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Any:
    """Call a function of sdort's in a Python process of its own, as by :func:`run_child`.

    Args:
        function: its module and name, as ``sdort.module:name``.
        task: its arguments, as JSON values.
        environ: environment variables; by default this process's.
        timeout: seconds after which it is ended.

    Returns:
        What it returned, as JSON values.

    Raises:
        WorkerError: it raised, or the process ended.
        subprocess.TimeoutExpired: it took longer than ``timeout``.
    """
    command = [sys.executable, "-c", _WORK, function, json.dumps(task), *sys.path]
    done = run_child(command, environ=environ, timeout=timeout)
    try:
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):  # a library ended the process early, as if all was well
        pass
    said = next(iter(reversed(done.stderr.strip().splitlines())), "nothing")
    raise WorkerError(done.returncode, said)


@contextmanager
def _supervised(
    command: Sequence[str], environ: Mapping[str, str] | None, merge: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """A command's process, which runs no longer than the block."""
    process = None
    try:
        with os_calls.supervised(command, environ, merge) as process:
            yield process
    finally:
        if process is not None:
            _await_end(process, command)


def _await_end(process: subprocess.Popen[bytes], command: Sequence[str]) -> None:
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        detail(f"{command[0]} does not end although it was killed; it is left alone")
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def _read(process: subprocess.Popen[bytes], command: Sequence[str], deadline: float, limit: int) -> list[str]:
    """Output of a process on stdout and stderr until it closes both."""
    streams = [stream for stream in (process.stdout, process.stderr) if stream]
    printed = [bytearray() for _ in streams]
    for number, block in os_calls.blocks_of(streams, lambda: _left(deadline)):
        printed[number] += block
        if time.monotonic() >= deadline:
            break  # waiting for its end raises
        if sum(map(len, printed)) > limit:
            raise SdortError(f"{command[0]} was ended: it printed more than {size_text(limit)}")
    return [text.decode(errors="replace") for text in printed]


def _left(deadline: float) -> float | None:
    """Seconds to the deadline, None where there is none."""
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())
