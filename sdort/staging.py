"""Output folders that appear complete or not at all.

Work happens in a hidden folder beside OUT, which takes OUT's place in one rename. The worker holds a lock on the hidden
folder; the kernel drops it when the process ends, however it ends, so the next run for the same OUT can tell the
leftovers of a killed process (not locked) from another run's work (locked) and removes them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sdort.errors import OutputError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h


@contextmanager
def staged_directory(out: Path, overwrite: bool, reads: Iterable[Path] = ()) -> Iterator[Path]:
    """A new folder to fill, which becomes ``out`` if the block succeeds and vanishes if it does not.

    Args:
        out: the folder to make; missing parents are made too.
        overwrite: replace an existing ``out``. It stays intact until the block succeeded.
        reads: files and folders that the block reads; ``out`` may not be or hold any of them.

    Raises:
        OutputError: ``out`` exists, cannot be written, or is or holds something that is read.
    """
    out = Path(out).absolute()
    if out.is_symlink():
        out = out.resolve()
    _refuse_input(out, reads)
    _recover(out)
    _check_target(out, overwrite)
    made = _make_parents(out)
    try:
        stage, lock = _make_stage(out)
        try:
            yield stage
            _check_target(out, overwrite)
            _swap(stage, out)
        finally:
            _remove(stage)
            os.close(lock)
    except BaseException:
        for parent in made:
            with suppress(OSError):  # not empty: somebody else uses it
                parent.rmdir()
        raise


def _refuse_input(out: Path, reads: Iterable[Path]) -> None:
    target = out.resolve()
    for path in reads:
        if Path(path).resolve().is_relative_to(target):
            raise OutputError(
                f"{out} is the input, or holds it ({path})", hint="Choose an output folder apart from the input."
            )


def _check_target(out: Path, overwrite: bool) -> None:
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise OutputError(f"{out} exists and is not a folder", hint="Choose another output folder.")
    if not overwrite:
        raise OutputError(f"{out} exists", hint="Choose another output folder, or replace it with --overwrite.")
    if not _replaceable(out):
        raise OutputError(
            f"{out} holds no ONNX pipeline, so it is not replaced", hint="Remove it yourself, or choose another folder."
        )


def _replaceable(out: Path) -> bool:
    """Whether deleting ``out`` loses no more than a pipeline: a mistyped OUT must not cost a home folder."""
    precious = [Path(os.path.expanduser("~")), Path.cwd()]
    if any(path.is_relative_to(out.resolve()) for path in precious) or os.path.ismount(out):
        return False
    entries = list(out.iterdir())
    marks = ("*.onnx", "*/*.onnx", "model_index.json")
    return not entries or any(next(out.glob(mark), None) for mark in marks)


def _make_parents(out: Path) -> list[Path]:
    """Missing parents, made; deepest first."""
    missing = [parent for parent in out.parents if not parent.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {out.parent}: {error.strerror or error}") from error
    return missing


def _prefix(out: Path) -> str:
    return f".{out.name}.sdort-"


def _make_stage(out: Path) -> tuple[Path, int]:
    """A new hidden folder beside ``out``, and the descriptor that holds its lock."""
    while True:
        stage = out.with_name(f"{_prefix(out)}new-{secrets.token_hex(4)}")
        try:
            stage.mkdir()
            lock = os.open(stage, os.O_RDONLY)
        except OSError as error:
            raise OutputError(f"cannot write in {out.parent}: {error.strerror or error}") from error
        with suppress(OSError):  # a file system without locks: nothing will be cleaned there either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stage.exists():
            return stage, lock
        # Another run saw it between mkdir and the lock, and took it for a leftover.
        os.close(lock)


def _recover(out: Path) -> None:
    """Clean up after runs for the same ``out`` that were killed."""
    for leftover in out.parent.glob(f"{glob.escape(_prefix(out))}*"):
        if not _is_abandoned(leftover):
            continue
        if "sdort-old-" in leftover.name and not out.exists():
            with suppress(OSError):
                leftover.rename(out)  # killed between the two renames of _swap
        else:
            _remove(leftover)


def _is_abandoned(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _swap(stage: Path, out: Path) -> None:
    """Put ``stage`` in the place of ``out``; what ``out`` was lies at ``stage`` afterwards."""
    try:
        if not out.exists():
            stage.rename(out)
        elif not exchange(stage, out):
            old = out.with_name(f"{_prefix(out)}old-{secrets.token_hex(4)}")
            out.rename(old)
            stage.rename(out)
            _remove(old)
    except OSError as error:
        raise OutputError(f"cannot put the result at {out}: {error.strerror or error}") from error


def exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step; False if the system or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    names = os.fsencode(first), os.fsencode(second)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
