"""The entries of sdort's caches. What has not the form of one is nobody's here, and is never touched."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from sdort.errors import BadModelError, OutputError
from sdort.files.staging import TEMPORARY_PREFIX, abandoned, is_abandoned
from sdort.files.user_folders import checked_folder, models_folder, schedules_folder, traces_folder, trials_folder
from sdort.files.verified_cache import is_entry
from sdort.machine.os_calls import os_calls
from sdort.machine.version import __version__
from sdort.operator_library.library import RECORD, libraries_folder, tuning_table
from sdort.pipelines.model_cache import KEPT, read_kept
from sdort.tuning.bundle import BundleError
from sdort.tuning.store import Store, age

_REMOVED = ".removed-"
"""Beginning of the name of a folder that is being removed; where that was killed, the next cleaning ends it."""

_LEFT_OF_MODELS = (
    rf"{re.escape(_REMOVED)}model-[0-9a-f]{{32}}|\.model-[0-9a-f]{{32}}\.(sdort-new-[0-9a-f]{{8}}|lock)"
    r"|\.making-[0-9a-f]{16}"
)
"""The names of what killed processes leave beside models."""

TRACES, SCHEDULES, CHECKED, MODELS, TUNING, OPS = "traces", "schedules", "checked", "models", "tuning", "ops"
TRIALS, TEMPORARY = "trials", "temporary"


@dataclass(frozen=True)
class CacheEntry:
    """A file or folder of a cache.

    Attributes:
        kind: the cache: ``traces``, ``schedules``, ``checked``, ``models``, ``tuning``, ``ops``, ``trials`` or
            ``temporary``.
        name: its name there.
        path: where it is.
        bytes: its size.
        age_s: seconds since it was made.
        in_use: whether a running command holds it, so that it is not removed.
        outdated: whether an earlier sdort made it, in a form that this one does not read.
        checkpoint: of ``models``: the name of the checkpoint that it was made of.
        provider: of ``models``: the execution provider that it was made for, by name.
        precision: of ``models``: ``fp32`` or ``fp16``.
        made: of ``models``: the day on which it was made, as YYYY-MM-DD.
        used_s: of ``models``: seconds since it was last used.
    """

    kind: str
    name: str
    path: Path
    bytes: int
    age_s: int
    in_use: bool = False
    outdated: bool = False
    checkpoint: str | None = None
    provider: str | None = None
    precision: str | None = None
    made: str | None = None
    used_s: int | None = None


def traces() -> Iterator[CacheEntry]:
    """Traces of architectures, defaults of their classes, and hashes of the sources that traced.

    A reader has read them whole before anything can go.
    """
    yield from _verified(TRACES, traces_folder(), r"\w+-[0-9a-f]{32}\.(trace|defaults|sources)")
    for path in _children(traces_folder()):
        if re.fullmatch(r"(AutoencoderKL|CLIP\w+|UNet\w+)-\d[\w.+]*\.json", path.name) and os.path.isfile(path):
            yield _entry(TRACES, path, outdated=True)


def schedules() -> Iterator[CacheEntry]:
    """Schedulers as numbers, hashes of the sources that computed them, and how long runs took."""
    yield from _verified(SCHEDULES, schedules_folder(), r"\w+-[0-9a-f]{32}\.(schedule|sources|speed)")


def checked() -> Iterator[CacheEntry]:
    """Records of folders whose files were compared with their ``sdort.json``, a file each."""
    yield from _verified(CHECKED, checked_folder(), r"files-[0-9a-f]{32}\.json")


def trials() -> Iterator[CacheEntry]:
    """Which operators of a provider were found to be right on a device, a file each."""
    yield from _verified(TRIALS, trials_folder(), r"\w+-[0-9a-f]{32}\.trials")


def _verified(kind: str, folder: Path, names: str) -> Iterator[CacheEntry]:
    """The entries of a folder of verified caches, by the pattern of their names, and what killed commands left."""
    for path in _children(folder):
        if re.fullmatch(names, path.name) and os.path.isfile(path):
            yield _entry(kind, path, outdated=not is_entry(path))
        elif re.fullmatch(r"\..+\.sdort-new-[0-9a-f]{8}", path.name) and os.path.isfile(path):
            yield _entry(kind, path, in_use=not is_abandoned(path))


def models() -> Iterator[CacheEntry]:
    """Checkpoints that were optimized on first use, a folder each, and what killed commands left of them.

    The process that uses one holds it (:func:`sdort.files.staging.held`).
    """
    for path in _children(models_folder()):
        if KEPT.fullmatch(path.name) and os.path.isdir(path):
            yield _model(path)
        elif re.fullmatch(_LEFT_OF_MODELS, path.name):
            yield _entry(MODELS, path, in_use=not is_abandoned(path))


def _model(path: Path) -> CacheEntry:
    entry = _entry(MODELS, path, in_use=not is_abandoned(path))
    try:
        kept = read_kept(path)
    except BadModelError:
        return replace(entry, outdated=True)
    day = datetime.fromtimestamp(kept.made).strftime("%Y-%m-%d")
    return replace(
        entry,
        outdated=kept.made_of.get("sdort") != __version__,
        checkpoint=kept.name,
        provider=kept.provider,
        precision=kept.precision,
        made=day,
        used_s=max(0, round(time.time() - kept.used)),
    )


def remove_model(folder: Path) -> bool:
    """Remove a model that was made on first use, unless a process holds it; whether it is gone.

    Raises:
        OutputError: it cannot be removed.
    """
    remove(_entry(MODELS, folder))
    return not folder.exists()


def tuning() -> Iterator[CacheEntry]:
    """Tuning bundles, and the table of sdort's own kernels."""
    store = Store()
    for name in store.names():
        if not re.fullmatch(r"\w+-[0-9a-f]{24}", name) or (store.folder / name).is_symlink():
            continue
        entry = _entry(TUNING, store.folder / name)
        with suppress(BundleError):
            entry = CacheEntry(TUNING, name, entry.path, entry.bytes, round(age(store.read(name))))
        yield entry
    if os.path.isfile(tuning_table()) and not tuning_table().is_symlink():
        yield _entry(TUNING, tuning_table())


def ops() -> Iterator[CacheEntry]:
    """Libraries of custom operators, one for each state of their sources: the folders with a record of a build."""
    for path in _children(libraries_folder()):
        is_named = re.fullmatch(rf"({re.escape(_REMOVED)})?[0-9a-f]{{16}}", path.name)
        if is_named and os.path.isdir(path) and (is_named[1] or os.path.isfile(path / RECORD)):
            yield _entry(OPS, path, in_use=not is_abandoned(path))


def temporary() -> Iterator[CacheEntry]:
    """Folders for temporary files of this user's commands; those without a running command are left by killed ones."""
    for path in _children(Path(tempfile.gettempdir())):
        is_ours = path.name.removeprefix(_REMOVED).startswith(TEMPORARY_PREFIX)
        with suppress(OSError):
            if is_ours and os.path.isdir(path) and os_calls.is_own(path.stat()):
                yield _entry(TEMPORARY, path, in_use=not is_abandoned(path))


KINDS: dict[str, Callable[[], Iterator[CacheEntry]]] = {
    TRACES: traces,
    SCHEDULES: schedules,
    CHECKED: checked,
    MODELS: models,
    TUNING: tuning,
    OPS: ops,
    TRIALS: trials,
    TEMPORARY: temporary,
}
"""The entries of each cache by its name."""


def remove(entry: CacheEntry) -> None:
    """Remove an entry; it vanishes at once.

    Raises:
        OutputError: it cannot be removed.
    """
    try:
        if entry.kind == TUNING and entry.path != tuning_table():
            Store().remove(entry.name)
        elif os.path.isdir(entry.path):
            with abandoned(entry.path) as free:
                if free:  # a command may have begun to use it since it was listed
                    gone = entry.path.with_name(f"{_REMOVED}{entry.path.name.removeprefix(_REMOVED)}")
                    entry.path.rename(gone)
                    shutil.rmtree(gone)
        else:
            entry.path.unlink(missing_ok=True)
    except FileNotFoundError:  # another cleaning was faster
        return
    except OSError as error:
        raise OutputError(f"cannot remove {entry.path}: {error.strerror or error}") from error


def _entry(kind: str, path: Path, *, in_use: bool = False, outdated: bool = False) -> CacheEntry:
    made = 0.0
    with suppress(OSError):  # another process cleans up
        made = max(0.0, time.time() - path.stat().st_mtime)
    return CacheEntry(kind, path.name, path, folder_bytes(path), round(made), in_use, outdated)


def folder_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links are not followed."""
    total = 0
    for file in path.rglob("*") if os.path.isdir(path) else [path]:
        with suppress(OSError):
            total += file.stat().st_size if os.path.isfile(file) and not file.is_symlink() else 0
    return total


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.is_symlink())
    except OSError:
        return []
