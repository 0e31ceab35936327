"""The tuning cache: :func:`sdort.list_tuning` and its kin, which ``sdort tuning`` calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.console import document
from sdort.operator_library.library import AUTO
from sdort.options.number_ranges import OLDER_THAN
from sdort.options.option_types import typed
from sdort.tuning.archive import export_bundles, import_bundles
from sdort.tuning.bundle import Bundle, BundleError
from sdort.tuning.maintenance import BROKEN, BundleStatus, prune, statuses
from sdort.tuning.store import Store, age


@dataclass(frozen=True)
class BundleReport:
    """A bundle of the cache; ``state`` and ``why`` as in :class:`sdort.tuning.maintenance.BundleStatus`."""

    name: str
    """The bundle's name."""
    state: str
    """``used``, or why runs here do not use it: ``stale``, ``foreign``, ``unused`` or ``broken``."""
    why: str
    """The reason in words; empty where it is used."""


@dataclass(frozen=True)
class ReadableBundleReport(BundleReport):
    """A bundle whose record can be read."""

    key: dict[str, Any]
    """The model, shapes, options, GPU and software that it was made for."""
    bytes: int
    """Size of its files."""
    files: int
    """Number of its files."""
    made: int
    """Unix time."""
    age_s: int
    """Seconds since it was made."""
    first_run_s: float | None
    """Seconds of the first run without the bundle."""


@document("tuning-list", 1)
@dataclass(frozen=True)
class TuningCache:
    """The folder of the tuning cache and its bundles."""

    folder: Path
    """The cache's folder."""
    bundles: list[BundleReport]
    """Its bundles."""


@document("tuning-export", 1)
@dataclass(frozen=True)
class TuningExport:
    """An archive that was written, and the names of its bundles."""

    file: Path
    """The archive."""
    bytes: int
    """Its size."""
    bundles: list[str]
    """Names of its bundles."""


@document("tuning-import", 1)
@dataclass(frozen=True)
class TuningImport:
    """Names of the bundles that were stored, and of those among them that this machine cannot use."""

    bundles: list[str]
    """Names of the bundles that were stored."""
    elsewhere: list[str]
    """Those among them that no run on this machine uses."""


@document("tuning-verify", 1)
@dataclass(frozen=True)
class TuningCheck:
    """Bundles whose files were compared with their hashes, all of them whole."""

    bundles: list[BundleReport]
    """The bundles that were checked."""


@document("tuning-prune", 1)
@dataclass(frozen=True)
class TuningPrune:
    """Bundles that were removed; with ``removed`` False those that would be."""

    removed: bool
    """Whether they were removed; False where they would be."""
    bundles: list[BundleReport]
    """The bundles."""


@typed
def list_tuning(*, custom_ops: str = AUTO) -> TuningCache:
    """List what is kept, and whether runs on this machine use it.

    Args:
        custom_ops: the library of custom operators that runs here take: ``auto``, ``on``, ``off`` or its path.

    Example:
        >>> [bundle.name for bundle in sdort.list_tuning().bundles if bundle.state == "used"]
        []
    """
    store = Store()
    return TuningCache(store.folder, [_report(status) for status in statuses(store, custom_ops=custom_ops)])


@typed
def export_tuning(file: str | Path, *, names: Sequence[str] = (), overwrite: bool = False) -> TuningExport:
    """Write bundles to a tar archive, to be imported on a machine of the same kind.

    Args:
        file: the archive.
        names: names of bundles; all of them if empty.
        overwrite: replace ``file`` if it exists.

    Raises:
        UsageError: there is no such bundle, or none at all.
        BadModelError: a bundle is damaged.
        OutputError: ``file`` exists, or cannot be written.
    """
    path = Path(file)
    bundles = export_bundles(Store(), names, path, overwrite=overwrite)
    return TuningExport(path, path.stat().st_size, [bundle.name for bundle in bundles])


@typed
def import_tuning(
    file: str | Path, *, any_machine: bool = False, device_id: int = 0, custom_ops: str = AUTO
) -> TuningImport:
    """Check an archive and keep its bundles, all of them or none.

    A bundle holds compiled kernels, which run on your GPU and in your processes: import what you trust.

    Args:
        file: an archive of :func:`export_tuning`.
        any_machine: store bundles of other machines too; no run here uses those.
        device_id: the number of the GPU that they have to fit.
        custom_ops: the library of custom operators that runs here take: ``auto``, ``on``, ``off`` or its path.

    Raises:
        BadModelError: the archive is damaged, unsafe, or of another format.
        ProviderError: a bundle is another machine's; it says in what the two differ.
        OutputError: the cache cannot be written.
    """
    done = import_bundles(Store(), Path(file), any_machine=any_machine, device_id=device_id, custom_ops=custom_ops)
    return TuningImport([bundle.name for bundle in done.bundles], done.elsewhere)


@typed
def verify_tuning(names: Sequence[str] = ()) -> TuningCheck:
    """Compare every file of bundles with its hash.

    Args:
        names: names of bundles; all of them if empty.

    Raises:
        BadModelError: a bundle is damaged. It is never used; :func:`prune_tuning` removes it.
        UsageError: there is no such bundle.
    """
    checked = statuses(Store(), names, thorough=True)
    broken = [status.why for status in checked if status.state == BROKEN]
    if broken:
        raise BundleError("; ".join(broken), hint="They are never used. sdort tuning prune removes them.")
    return TuningCheck([_report(status) for status in checked])


@typed
def prune_tuning(
    *, older_than: float | None = None, foreign: bool = False, dry_run: bool = False, custom_ops: str = AUTO
) -> TuningPrune:
    """Remove bundles that are damaged, or were made with other versions than are installed.

    Args:
        older_than: seconds; also remove bundles that were made longer ago.
        foreign: also remove bundles of other GPUs.
        dry_run: remove nothing, only say what would go.
        custom_ops: the library of custom operators that runs here take: ``auto``, ``on``, ``off`` or its path.

    Raises:
        OutputError: the cache cannot be written.
        UsageError: ``older_than`` is no time.
    """
    if older_than is not None:
        OLDER_THAN.check(older_than)
    gone = prune(Store(), older_than=older_than, foreign=foreign, dry_run=dry_run, custom_ops=custom_ops)
    return TuningPrune(not dry_run, [_report(status) for status in gone])


def _report(status: BundleStatus) -> BundleReport:
    bundle: Bundle | None = status.bundle
    if bundle is None:
        return BundleReport(status.name, status.state, status.why)
    return ReadableBundleReport(
        name=status.name,
        state=status.state,
        why=status.why,
        key=bundle.key.to_json(),
        bytes=bundle.bytes,
        files=len(bundle.files),
        made=bundle.made,
        age_s=round(age(bundle)),
        first_run_s=bundle.first_run_s,
    )
