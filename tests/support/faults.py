"""Commands whose file system fails at the n-th call: a full disk, a broken one, a write that does half of it.

A process that has imported everything, with ``faults.c`` preloaded, forks one child for each command.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("faults.c")

KINDS = {"full": (errno.ENOSPC, 1), "full once": (errno.ENOSPC, 0), "broken": (errno.EIO, 0), "short": (0, 2)}
"""Name -> error number, and how: 0 that call alone, 1 it and all later ones, 2 half of what it should write."""

PRELOADED = (
    "PIL.PngImagePlugin", "onnx", "onnxruntime", "sdort.benchmark.command", "sdort.benchmark.report.benchmark_page",
    "sdort.cli.bench", "sdort.cli.cache", "sdort.cli.doctor", "sdort.cli.export", "sdort.cli.optimize", "sdort.cli.run",
    "sdort.cli.tuning", "sdort.cli.verify", "sdort.cli.warm", "sdort.demo.random_pipeline", "sdort.doctor.command",
    "sdort.exporter.command", "sdort.generation.command", "sdort.optimizer.command", "sdort.tuning.archive",
    "sdort.verification.command", "sdort.warmup.command",
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        calls: write-like calls of the process, up to its end.
        place: the call that failed, with its path; empty if none did.
        said: stdout and stderr.
    """

    code: int
    calls: int
    place: str
    said: str


def build(folder: Path) -> Path:
    """The library to preload."""
    library = folder / "faults.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"], check=True)
    return library


class Faults:
    """The process that forks commands; a context manager."""

    def __init__(self, folder: Path, modules: tuple[str, ...] = PRELOADED) -> None:
        paths = [str(Path(__file__).parents[1]), *sys.path]
        environment = {**os.environ, "LD_PRELOAD": str(build(folder)), "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "support.faults", *modules]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, root: Path, *args: str, at: int = 0, kind: str = "full") -> Ended:
        """Run ``sdort ARGS`` in the folder ``root``, which holds its cache and temporary files too.

        Args:
            at: the number of the call below ``root`` that fails, from 1 on; 0 for none.
            kind: one of :data:`KINDS`.
        """
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([str(root), args, at, *KINDS[kind]]) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


@cache
def _library() -> Any:
    library = ctypes.CDLL(None)
    library.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    library.fault_count.restype = ctypes.c_long
    library.fault_place.restype = ctypes.c_char_p
    return library


def _child(root: str, args: list[str], at: int, error: int, how: int, answer: int, said: int) -> None:
    os.dup2(said, 1)
    os.dup2(said, 2)
    faulthandler.dump_traceback_later(100, exit=True, file=2)
    os.environ.update(XDG_CACHE_HOME=f"{root}/cache", HOME=root, TMPDIR=f"{root}/tmp", HF_HUB_OFFLINE="1")
    os.chdir(root)
    import tempfile

    tempfile.tempdir = None
    from sdort.cli import cli, streams

    streams.install()
    code: Any = 70
    _library().fault_arm(root.encode(), at, error, how)
    try:
        cli.main(args, prog_name="sdort")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    library = _library()
    told = {"code": code, "calls": library.fault_count(), "place": library.fault_place().decode()}
    library.fault_arm(b"", 0, 0, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(answer, json.dumps(told).encode())
    os._exit(0)


def _serve() -> None:
    import importlib
    import tempfile

    answers = os.dup(1)
    os.dup2(2, 1)
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        reader, writer = os.pipe()
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                root, args, at, error, how = json.loads(line)
                _child(root, args, at, error, how, writer, said.fileno())
            os.close(writer)
            _, status = os.waitpid(child, 0)
            told = os.read(reader, 1 << 16)
            os.close(reader)
            said.seek(0)
            text = said.read().decode(errors="replace")
        ended = json.loads(told) if told else {"code": -status, "calls": 0, "place": ""}
        os.write(answers, (json.dumps({**ended, "said": text}) + "\n").encode())


if __name__ == "__main__":
    _serve()
