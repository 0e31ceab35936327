"""Looking after the bundles: what there is, what is damaged, what can go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdort.errors import ProviderError, UsageError
from sdort.ops.library import AUTO
from sdort.tuning.bundle import Bundle, BundleError, check_files
from sdort.tuning.key import Key
from sdort.tuning.store import Store, age

USED, STALE, FOREIGN, BROKEN, UNUSED = "used", "stale", "foreign", "broken", "unused"


@dataclass(frozen=True)
class Finding:
    """A bundle and how it stands.

    ``state``: ``used`` by runs on this machine; ``stale``, made for its GPU with other software; ``foreign``, made for
    another GPU or provider; ``unused``, made with a library of custom operators where none is found here; ``broken``.
    ``why`` says what differs.
    """

    name: str
    state: str
    why: str = ""
    bundle: Bundle | None = None


def look(
    store: Store, names: Sequence[str] = (), *, thorough: bool = False, device_id: int = 0, custom_ops: str = AUTO
) -> list[Finding]:
    """All bundles, or those named.

    Args:
        thorough: also compare every file with its hash.
        custom_ops: the library of custom operators that runs here take.

    Raises:
        UsageError: there is no such bundle.
    """
    there = store.names()
    missing = [name for name in names if name not in there]
    if missing:
        raise UsageError(f"there is no tuning bundle {missing[0]}", hint="sdort tuning list shows what is kept.")
    with store.reading():
        return [_look(store, name, thorough, device_id, custom_ops) for name in names or there]


def _look(store: Store, name: str, thorough: bool, device_id: int, custom_ops: str) -> Finding:
    try:
        bundle = store.read(name)
        if thorough:
            check_files(bundle)
    except BundleError as error:
        return Finding(name, BROKEN, error.message)
    return Finding(name, *_standing(bundle.key, device_id, custom_ops), bundle)


def _standing(key: Key, device_id: int, custom_ops: str) -> tuple[str, str]:
    try:
        found = key.elsewhere(device_id, custom_ops)
    except ProviderError as error:
        return FOREIGN, error.message
    if found is None:
        return USED, ""
    name, there, here = found
    if name == "custom_ops" and here is None:
        return UNUSED, f"it was made with the custom operators {there}; --custom-ops PATH tells where they are"
    state = FOREIGN if name in ("architecture", "compute_units", "ep") else STALE
    return state, f"{name} is {there!r} there and {here!r} here"


def prune(
    store: Store,
    *,
    older_than: float | None = None,
    foreign: bool = False,
    dry_run: bool = False,
    custom_ops: str = AUTO,
) -> list[Finding]:
    """Remove broken and stale bundles, those older than so many seconds, and, if asked, those of other GPUs.

    Returns:
        What was removed, or would be.

    Raises:
        OutputError: the cache cannot be written.
    """
    going = [each for each in look(store, thorough=True, custom_ops=custom_ops) if _goes(each, older_than, foreign)]
    if not dry_run:
        for each in going:
            store.remove(each.name)
    return going


def _goes(finding: Finding, older_than: float | None, foreign: bool) -> bool:
    if finding.state in (BROKEN, STALE) or (foreign and finding.state == FOREIGN):
        return True
    return finding.bundle is not None and older_than is not None and age(finding.bundle) > older_than
