"""Output folders and files that appear complete or not at all.

Work happens in a hidden folder or file beside OUT, which takes OUT's place in one rename. The worker holds a lock on
it; the kernel drops it when the process ends, however it ends, so the next run for the same OUT can tell the leftovers
of a killed process (not locked) from another run's work (locked) and removes them. Who removes holds the lock as well,
and who has just made a file or folder and does not get its lock makes another: nothing of a living process goes.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

from sdort.console import detail
from sdort.errors import OutputError
from sdort.machine.os_calls import os_calls

TEMPORARY_PREFIX = "sdort-tmp-"
"""Beginning of the names of :func:`temporary_folder`."""

WhyForeign = Callable[[Path], str | None]
"""Why a folder may hold more than a command made there, as the end of a sentence that begins with its name; else None.
It may raise OSError where another process changes the folder meanwhile."""

_WAIT_S = 0.1
"""Seconds between two looks at whether another process is done."""


def why_not_empty(folder: Path) -> str | None:
    """The :data:`WhyForeign` of a folder that is replaced only if it is empty."""
    return "is not empty" if any(folder.iterdir()) else None


@contextmanager
def staged_directory(
    out: Path, overwrite: bool, reads: Iterable[Path] = (), *, why_foreign: WhyForeign = why_not_empty
) -> Iterator[Path]:
    """A new folder to fill, which becomes ``out`` if the block succeeds and vanishes if it does not.

    Args:
        out: the folder to make; missing parents are made too.
        overwrite: replace an existing ``out``. It stays intact until the block succeeded.
        reads: files and folders that the block reads; ``out`` may not be or hold any of them.
        why_foreign: what keeps an existing ``out`` from being replaced.

    Raises:
        OutputError: ``out`` exists, cannot be written, holds what is not its own, or is or holds something that is
            read.
    """
    out = _target(out)
    _refuse_input(out, reads)
    _recover(out)
    _check_target(out, overwrite, why_foreign)
    made = _make_parents(out)
    try:
        stage, lock = _make_stage(out)
        try:
            with _writing(out, stage):
                yield stage
            _check_target(out, overwrite, why_foreign)
            _swap(stage, out, overwrite, why_foreign)
        finally:
            _remove(stage)
            os.close(lock)
    except BaseException:
        for parent in made:
            with suppress(OSError):  # not empty: somebody else uses it
                parent.rmdir()
        raise


@contextmanager
def _writing(out: Path, stage: Path) -> Iterator[None]:
    """A block whose failed writes are told as OUT's. Inputs' errors are none of these: who reads them names them."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not Path(os.fsdecode(error.filename)).is_relative_to(stage):
            raise
        raise OutputError(f"cannot write {out}: {error.strerror or error}") from error


def check_output(
    out: Path, overwrite: bool, reads: Iterable[Path] = (), *, why_foreign: WhyForeign = why_not_empty
) -> None:
    """Raise what :func:`staged_directory` would before it makes anything.

    Raises:
        OutputError: ``out`` exists, or is or holds something that is read.
    """
    out = _target(out)
    _refuse_input(out, reads)
    _check_target(out, overwrite, why_foreign)


@contextmanager
def staged_file(path: Path, *, overwrite: bool = True, regular: bool = False) -> Iterator[BinaryIO]:
    """A new file to write, which takes the place of ``path`` if the block succeeds and vanishes if it does not.

    Args:
        overwrite: it may replace what is there.
        regular: it may only replace a regular file.

    Raises:
        FileExistsError: ``overwrite`` is off, and ``path`` was there at the end.
        OutputError: ``regular``, and what was there at the end is something else.
        OSError: it cannot be written.
    """
    for leftover in _leftovers(path):
        if leftover.is_file():
            remove_abandoned(leftover)
    stage, descriptor = _open_stage(path)
    with open(descriptor, "wb") as file:
        try:
            yield file
            file.flush()
            # While it is locked: nobody takes it for a leftover.
            if overwrite:
                if regular:
                    refuse_odd(path)
                os_calls.replace(stage, path)
            else:
                _name_new(stage, path)
        finally:
            stage.unlink(missing_ok=True)


def _name_new(stage: Path, path: Path) -> None:
    """Give a file another name, which no file has: not even one that came a moment ago."""
    try:
        os.link(stage, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(stage, path)


def temporary_folder(name: str) -> AbstractContextManager[Path]:
    """A :func:`scratch_folder` in the system's folder for temporary files; it removes those of all names."""
    return scratch_folder(Path(tempfile.gettempdir()), TEMPORARY_PREFIX, f"{name}-")


@contextmanager
def scratch_folder(parent: Path, prefix: str, name: str = "") -> Iterator[Path]:
    """A new folder ``PREFIX NAME ...`` that is this user's alone, gone after the block; a killed process leaves it.

    Leftovers of this user's killed processes, whatever their names, go before: they hold no lock.

    Raises:
        OSError: it cannot be made.
    """
    for leftover in parent.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError):  # another process was faster
            if os_calls.is_own(leftover.lstat()):
                remove_abandoned(leftover)
    folder, lock = _locked_folder(lambda: parent / f"{prefix}{name}{secrets.token_hex(8)}", 0o700)
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A lock on a folder that processes share while the block runs: it is no leftover (:func:`is_abandoned`)."""
    descriptor = os_calls.open_lock(folder)
    try:
        with suppress(OSError):  # a file system without locks: nothing will be cleaned there either
            os_calls.lock(descriptor, shared=True, wait=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, waiting: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[None]:
    """A block that no other process runs meanwhile for the same file, which is made, and removed in the end.

    Args:
        waiting: makes what surrounds the time in which another process holds it.

    Raises:
        OSError: the file cannot be made.
    """
    descriptor = _try_lock(path)
    if descriptor is None:
        with waiting():
            while (descriptor := _try_lock(path)) is None:
                time.sleep(_WAIT_S)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock on a file; None where another process does."""
    descriptor = os_calls.open_file(path, os.O_RDWR | os.O_CREAT, links=False)
    try:
        os_calls.lock(descriptor)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # a file system without locks
        return descriptor
    with suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return descriptor
    os.close(descriptor)  # who held it removed it
    return None


@contextmanager
def staged_output(path: Path, *, overwrite: bool = True) -> Iterator[BinaryIO]:
    """A :func:`staged_file` that a user asked for; where ``path`` is a link, the file that it leads to.

    Raises:
        FileExistsError: as :func:`staged_file`.
        OutputError: it cannot be written, or would replace what is no regular file.
    """
    try:
        with staged_file(_linked(path) if overwrite else path, overwrite=overwrite, regular=True) as file:
            yield file
    except FileExistsError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _linked(path: Path) -> Path:
    return real(path) if path.is_symlink() else path


def refuse_odd(path: Path) -> None:
    """Refuse to replace a named pipe, a socket, a device or a folder: something else than a result is there.

    Raises:
        OutputError: it is none of the regular files.
    """
    if os.path.isdir(path):
        raise OutputError(f"{path} is a folder", hint="Name a file.")
    if os.path.lexists(path) and not os.path.isfile(path) and not _is_dangling(path):
        raise OutputError(f"{path} is no regular file, so it is not replaced", hint="Choose another name.")


def _is_dangling(path: Path) -> bool:
    """Whether it is a link to nothing; a link in a circle is none."""
    return os.path.islink(path) and not os.path.lexists(real(path))


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to a :func:`staged_output`.

    Raises:
        OutputError: it cannot be written.
    """
    with staged_output(path) as file:
        file.write(text.encode())


def check_output_file(path: Path, overwrite: bool, reads: Iterable[Path] = ()) -> None:
    """Refuse a file that cannot be written, or that exists, before the work for it begins.

    Args:
        overwrite: a file may be replaced.
        reads: files and folders that the work reads; none of their files is replaced.

    Raises:
        OutputError: it exists and may not be replaced, is no regular file, belongs to what is read, or its folder is
            missing or not writable.
    """
    refuse_odd(path)
    check_writable(path)
    if os.path.lexists(path) and not overwrite:
        raise OutputError(f"{path} exists", hint="Choose another name, or replace it with --overwrite.")
    for source in reads:
        if path.exists() and _belongs_to(real(path), real(source)):
            raise OutputError(f"{path} belongs to the input {source}", hint="Choose another name.")


def check_output_folder(path: Path, overwrite: bool) -> None:
    """Refuse a folder for files that cannot be written, or that holds something, before the work for it begins.

    Args:
        overwrite: files in it may be replaced.

    Raises:
        OutputError: it holds something that may not be replaced, is a file, or cannot be made or written.
    """
    if os.path.lexists(path) and not path.is_dir():
        raise OutputError(f"{path} is not a folder", hint="Name a folder.")
    check_writable(path / "file" if os.path.isdir(path) else path)
    if not overwrite and os.path.isdir(path) and any(path.iterdir()):
        raise OutputError(f"{path} is not empty", hint="Choose another folder, or replace its files with --overwrite.")


def check_writable(path: Path) -> None:
    """Make a hidden file beside ``path``, or what it links to, and remove it: what else would fail after the work.

    Raises:
        OutputError: it cannot be made, as its folder is missing, or for another reason.
    """
    if not path.parent.is_dir() and not os.path.lexists(path.parent):
        raise OutputError(
            f"cannot write to the folder {path.parent}: it does not exist",
            hint=f"Create it:\n    mkdir -p {shlex.quote(str(path.parent))}",
        )
    try:
        stage, descriptor = _open_stage(_linked(path))
        stage.unlink(missing_ok=True)
        os.close(descriptor)
    except OSError as error:
        hint = "Choose another name or folder."
        raise OutputError(f"cannot write {path}: {error.strerror or error}", hint=hint) from error


def _belongs_to(path: Path, source: Path) -> bool:
    """Whether a file is, or is in, an input; images and pages there are results of earlier runs."""
    return path == source or (path.is_relative_to(source) and path.suffix.lower() not in (".png", ".html", ".csv"))


def _open_stage(path: Path) -> tuple[Path, int]:
    while True:
        stage = _stage_name(path)
        descriptor = os_calls.open_file(stage, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        if _is_locked(stage, descriptor):
            return stage, descriptor
        os.close(descriptor)


def real(path: Path) -> Path:
    """``path`` without links; of links in a circle itself, where Path.resolve raises RuntimeError."""
    return Path(os.path.realpath(path))


def _target(out: Path) -> Path:
    """The absolute path of ``out``, or of what a link there points to."""
    out = Path(out).absolute()
    try:
        return real(out) if out.is_symlink() else out
    except OSError as error:  # a name that is too long
        hint = "Choose another output folder."
        raise OutputError(f"cannot write {out}: {error.strerror or error}", hint=hint) from error


def _refuse_input(out: Path, reads: Iterable[Path]) -> None:
    target = real(out)
    for path in reads:
        if real(path).is_relative_to(target):
            raise OutputError(
                f"{out} is the input, or holds it ({path})", hint="Choose an output folder apart from the input."
            )


def _check_target(out: Path, overwrite: bool, why_foreign: WhyForeign) -> None:
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise OutputError(f"{out} exists and is not a folder", hint="Choose another output folder.")
    kept = _why_kept(out, why_foreign)
    if not overwrite:
        hint = "Choose another output folder" + (", or replace it with --overwrite." if kept is None else ".")
        raise OutputError(f"{out} exists" + (f" and {kept}" if kept else ""), hint=hint)
    if kept:
        raise _not_replaced(out, kept)


def _not_replaced(out: Path, kept: str) -> OutputError:
    hint = "Choose another output folder; or look what is in it, and remove it yourself."
    return OutputError(f"{out} is not replaced: it {kept}", hint=hint)


def _why_kept(out: Path, why_foreign: WhyForeign) -> str | None:
    """Why ``out`` is not replaced; None if all in it is what was made there, also where OUT is mistyped."""
    precious = {"the home folder": Path(os.path.expanduser("~")), "the folder that one works in": Path.cwd()}
    for name, path in precious.items():
        if path.is_relative_to(real(out)):
            return f"is or holds {name}"
    if os.path.ismount(out):
        return "is a mount point"
    while True:
        before = _identity(out)
        try:
            kept = why_foreign(out)
        except OSError as error:
            kept = f"cannot be read ({error.strerror or error})"
        if kept is None or _identity(out) == before:
            return kept
        # Another run put its result there meanwhile, so what was looked for in one folder may be in the other.


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


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


def _stage_name(out: Path) -> Path:
    return out.with_name(f"{_prefix(out)}new-{secrets.token_hex(4)}")


def _leftovers(out: Path) -> Iterator[Path]:
    return out.parent.glob(f"{glob.escape(_prefix(out))}*")


def _is_locked(stage: Path, descriptor: int) -> bool:
    """Lock what was just made; False if another process took it for a leftover before it was locked."""
    try:
        os_calls.lock(descriptor)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing will be cleaned there either
        return True
    return stage.exists()


def _locked_folder(name: Callable[[], Path], mode: int) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        folder = name()
        folder.mkdir(mode)
        with suppress(FileNotFoundError):  # taken for a leftover
            lock = os_calls.open_lock(folder)
            if _is_locked(folder, lock):
                return folder, lock
            os.close(lock)


def _make_stage(out: Path) -> tuple[Path, int]:
    """A new hidden folder beside ``out``, and the descriptor that holds its lock."""
    try:
        return _locked_folder(lambda: _stage_name(out), 0o777)
    except OSError as error:
        raise OutputError(f"cannot write in {out.parent}: {error.strerror or error}") from error


def _recover(out: Path) -> None:
    """Clean up after runs for the same ``out`` that were killed."""
    for leftover in _leftovers(out):
        if "sdort-old-" in leftover.name and not out.exists():
            with suppress(OSError), abandoned(leftover) as free:
                if free:
                    leftover.rename(out)  # killed between the two renames of _swap
        elif leftover.is_dir():
            remove_abandoned(leftover)


def remove_abandoned(path: Path) -> bool:
    """Remove a file or folder that no process holds, and tell it under ``-v``; False if one does, or it is gone."""
    with abandoned(path) as free:
        if free:
            detail(f"removing {path}: the process that made it was killed")
            if path.is_dir():
                _remove(path)
            else:
                with suppress(OSError):
                    path.unlink()
    return free


def is_abandoned(path: Path) -> bool:
    """Whether no process holds the lock on a file or folder; False if it is gone, a link, or without locks."""
    with abandoned(path) as free:
        return free


@contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """:func:`is_abandoned`; no process can make it its own until the block ends."""
    try:
        descriptor = os_calls.open_lock(path)
    except OSError:
        yield False
        return
    try:
        try:
            os_calls.lock(descriptor)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _swap(stage: Path, out: Path, overwrite: bool, why_foreign: WhyForeign) -> None:
    """Put ``stage`` in the place of ``out``; what ``out`` was, if anything, is removed or lies at ``stage``."""
    try:
        if not overwrite or not out.exists():
            stage.rename(out)  # fails where another run has put its result in this very moment
        elif os_calls.exchange(stage, out):
            # Nobody puts anything there by its name any more: what came since it was looked at is seen now.
            if kept := why_foreign(stage):
                os_calls.exchange(stage, out)
                raise _not_replaced(out, kept)
        else:
            _swap_in_two(stage, out, why_foreign)
    except OSError as error:
        _check_target(out, overwrite, why_foreign)
        raise OutputError(f"cannot put the result at {out}: {error.strerror or error}") from error


def _swap_in_two(stage: Path, out: Path, why_foreign: WhyForeign) -> None:
    """Replace ``out`` where a file system cannot exchange two folders: it is away for a moment."""
    old = out.with_name(f"{_prefix(out)}old-{secrets.token_hex(4)}")
    out.rename(old)
    try:
        if kept := why_foreign(old):
            raise _not_replaced(out, kept)
        stage.rename(out)
    except (OSError, OutputError):
        old.rename(out)
        raise
    _remove(old)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
