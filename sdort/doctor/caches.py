"""The caches: :func:`sdort.list_cache` and :func:`sdort.clean_cache`, which ``sdort cache`` calls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sdort.console import document
from sdort.doctor.cache_entries import KINDS, CacheEntry, remove
from sdort.errors import UsageError
from sdort.files.user_folders import cache_folder
from sdort.options.number_ranges import OLDER_THAN
from sdort.options.option_types import typed


@document("cache", 1)
@dataclass(frozen=True)
class CacheReport:
    """The caches: everything that sdort keeps between runs.

    Attributes:
        folder: the folder of all caches.
        entries: everything that is kept, by cache.
    """

    folder: Path
    entries: list[CacheEntry]


@document("cache-clean", 1)
@dataclass(frozen=True)
class CacheCleaning:
    """The outcome of a cleaning.

    Attributes:
        removed: False where nothing was to be removed, only to be shown.
        entries: what was removed, or would be.
        kept: what a running command holds.
        bytes: the size of ``entries``.
    """

    removed: bool
    entries: list[CacheEntry]
    kept: list[CacheEntry]
    bytes: int


@typed
def list_cache(kinds: Collection[str] = ()) -> CacheReport:
    """List what sdort keeps between runs.

    Args:
        kinds: ``traces`` (of architectures, by :func:`sdort.export`), ``schedules`` (schedulers as numbers, by
            :func:`sdort.run`), ``checked`` (which files were compared with their ``sdort.json``), ``models``
            (checkpoints that were made ready on first use), ``tuning`` (bundles of :func:`sdort.warm` and of tuning
            runs), ``ops`` (built operator libraries), ``trials`` (which kernels of a provider are right),
            ``temporary`` (left by killed commands); all if empty.

    Raises:
        UsageError: there is no such cache.

    Example:
        >>> sum(entry.bytes for entry in sdort.list_cache(["traces"]).entries)
        0
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise UsageError(f"there is no cache {unknown[0]!r}", hint=f"There are: {', '.join(KINDS)}.")
    entries = [entry for kind, entries in KINDS.items() if kind in (kinds or KINDS) for entry in entries()]
    return CacheReport(cache_folder(), entries)


@typed
def clean_cache(
    kinds: Collection[str] = (), *, older_than: float | None = None, dry_run: bool = False
) -> CacheCleaning:
    """Remove what sdort keeps between runs. What a running command holds stays, and so does what is not sdort's.

    Args:
        kinds: as for :func:`list_cache`; all if empty.
        older_than: seconds; only what was made longer ago.
        dry_run: remove nothing, only say what would go.

    Raises:
        UsageError: there is no such cache.
        OutputError: something cannot be removed.
    """
    if older_than is not None:
        OLDER_THAN.check(older_than)
    entries = [entry for entry in list_cache(kinds).entries if older_than is None or entry.age_s > older_than]
    going = [entry for entry in entries if not entry.in_use]
    if not dry_run:
        for entry in going:
            remove(entry)
    kept = [entry for entry in entries if entry.in_use]
    return CacheCleaning(not dry_run, going, kept, sum(entry.bytes for entry in going))
