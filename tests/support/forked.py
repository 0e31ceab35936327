"""sdort commands as processes of their own that begin at once: forked from one that has imported everything.

What a kill may hit is the command's work; importing torch and diffusers takes ten times as long and changes nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import waiting_threads
from support.moments import strike
from support.processes import heed

from sdort.rewrite.fusion_names import fusion_names

OPTIMIZING = ("onnx.reference.ops._op_list", *(f"sdort.fusions.{name}" for name in fusion_names()))
"""What the first optimized model imports: two thirds of the time of a tiny one."""

PRELOADED = (
    *OPTIMIZING,
    "onnxruntime",
    "PIL.PngImagePlugin",
    "sdort.cli.export",
    "sdort.cli.ops",
    "sdort.cli.optimize",
    "sdort.cli.run",
    "sdort.cli.tuning",
    "sdort.cli.warm",
    "sdort.demo.random_pipeline",
    "sdort.exporter.command",
    "sdort.optimizer.command",
    "sdort.generation.command",
    "sdort.operator_library.command",
    "sdort.tuning.archive",
    "sdort.warmup.command",
    "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion",
    "diffusers.schedulers.scheduling_pndm",
    "transformers.models.clip.modeling_clip",
)

CHANGES = {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "ctypes.dlsym"}
"""Audit events just before the file system changes; ``renameat2`` is called through ctypes."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([*PRELOADED])


@dataclass
class Command:
    """A running command; its output goes to ``log``."""

    process: Any
    log: Path

    def finish(self) -> int:
        """Its exit status; minus the signal that ended it."""
        self.process.join()
        return int(self.process.exitcode)

    def send(self, how: signal.Signals) -> int:
        """Send it a signal, if it still runs; its exit status."""
        if self.process.is_alive():
            os.kill(self.process.pid, how)
        return self.finish()

    def said(self) -> str:
        return self.log.read_text()


def start(
    folder: Path,
    *args: str,
    dies_at: int | None = None,
    recorded: bool = False,
    moment: float | None = None,
    how: signal.Signals = signal.SIGKILL,
    log: str = "log",
    timer: int = signal.ITIMER_PROF,
) -> Command:
    """Run ``sdort ARGS`` in ``folder``, whose ``cache`` is its cache, whose ``tmp`` has its temporary files, and whose
    ``bin`` its programs.

    Args:
        dies_at: the number of the change of the file system, from 1 on, before which it kills itself.
        recorded: keep what the folder holds before each of these changes, see :func:`records`.
        moment: the processor's seconds (:mod:`moments`) after which it sends itself the signal ``how``.
        timer: ``signal.ITIMER_REAL`` for seconds of the clock, of a command that waits for others.
    """
    path = folder / log
    path.unlink(missing_ok=True)
    process = _context.Process(target=_main, args=(folder, args, path, dies_at, recorded, moment, how, timer))
    process.start()
    return Command(process, path)


def work(folder: Path, *args: str, timer: int = signal.ITIMER_PROF) -> float:
    """The seconds of ``timer`` that a command takes, which has to succeed."""
    command = start(folder, *args)
    assert command.finish() == 0, command.said()
    seconds: float = json.loads(_seconds(command.log).read_text())[timer == signal.ITIMER_REAL]
    return seconds


def _seconds(log: Path) -> Path:
    return log.with_name(f"{log.name}.seconds")


def _main(
    folder: Path,
    args: tuple[str, ...],
    log: Path,
    dies_at: int | None,
    recorded: bool,
    moment: float | None,
    how: signal.Signals,
    timer: int,
) -> None:
    os.environ.update(XDG_CACHE_HOME=str(folder / "cache"), HOME=str(folder), HF_HUB_OFFLINE="1")
    os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
    (folder / "tmp").mkdir(exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    os.chdir(folder)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if dies_at is not None:
        _before_changes(lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == dies_at else None)
    if recorded:
        _before_changes(lambda number: _record(folder, number))
    waiting_threads.stop_spinning()
    from sdort.cli import cli, interruption

    heed()
    interruption.install()  # as sdort's own main does; a strike by the clock takes SIGALRM from it
    began = time.process_time(), time.monotonic()
    if moment is not None:
        strike(moment, how, timer)
    try:
        cli.main(list(args), prog_name="sdort")
    finally:
        signal.setitimer(timer, 0)
        _seconds(log).write_text(json.dumps([time.process_time() - began[0], time.monotonic() - began[1]]))


def records(folder: Path) -> list[Path]:
    """The folder as it was before each change of a recorded command, which is what a kill there leaves on the disk."""
    return sorted((folder / _RECORDS).iterdir())


_RECORDS = "records"


def _record(folder: Path, number: int) -> None:
    ignored = shutil.ignore_patterns(_RECORDS, "cache", "log*", "tmp")
    shutil.copytree(folder, folder / _RECORDS / f"{number:04d}", ignore=ignored)


def _before_changes(act: Callable[[int], None]) -> None:
    """Call ``act`` with the number of each change of the file system, from 1 on, just before it; not for its own."""
    seen, acting = 0, False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen, acting
        if acting or event not in CHANGES or (event == "open" and not _writes(arguments)):
            return
        seen += 1
        acting = True
        act(seen)
        acting = False

    sys.addaudithook(hook)


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, mode, flags = arguments
    return isinstance(path, (str, bytes, os.PathLike)) and (
        bool(flags & (os.O_WRONLY | os.O_RDWR)) if mode is None else not set("wax+").isdisjoint(mode)
    )
