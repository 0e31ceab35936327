"""Maintenance of the tuning cache: the state of each bundle, and the removal of useless ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdort.errors import ProviderError
from sdort.operator_library.library import AUTO
from sdort.tuning.bundle import Bundle, BundleError, check_files
from sdort.tuning.key import Key
from sdort.tuning.store import Store, age

USED, STALE, FOREIGN, BROKEN, UNUSED = "used", "stale", "foreign", "broken", "unused"


@dataclass(frozen=True)
class BundleStatus:
    """A bundle and its state.

    ``state``: ``used`` by runs on this machine; ``stale``, made for its GPU with other software; ``foreign``, made for
    another GPU or provider; ``unused``, made with a library of custom operators where none is found here; ``broken``.
    ``why`` says what differs.
    """

    name: str
    state: str
    why: str = ""
    bundle: Bundle | None = None


def statuses(
    store: Store, names: Sequence[str] = (), *, thorough: bool = False, device_id: int = 0, custom_ops: str = AUTO
) -> list[BundleStatus]:
    """The states of all bundles, or of those named.

    Args:
        thorough: also compare every file with its hash.
        custom_ops: the library of custom operators that runs here take.

    Raises:
        UsageError: there is no such bundle.
    """
    resolved = store.resolve(names)
    with store.reading():
        return [_status(store, name, thorough, device_id, custom_ops) for name in resolved]


def _status(store: Store, name: str, thorough: bool, device_id: int, custom_ops: str) -> BundleStatus:
    try:
        bundle = store.read(name)
        if thorough:
            check_files(bundle)
    except BundleError as error:
        return BundleStatus(name, BROKEN, error.message)
    return BundleStatus(name, *_state(bundle.key, device_id, custom_ops), bundle)


def _state(key: Key, device_id: int, custom_ops: str) -> tuple[str, str]:
    try:
        difference = key.elsewhere(device_id, custom_ops)
    except ProviderError as error:
        return FOREIGN, error.message
    if difference is None:
        return USED, ""
    name, there, here = difference
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
) -> list[BundleStatus]:
    """Remove broken and stale bundles, those older than so many seconds, and, if asked, those of other GPUs.

    Returns:
        The bundles that were removed, or would be.

    Raises:
        OutputError: the cache cannot be written.
    """
    going = [
        status for status in statuses(store, thorough=True, custom_ops=custom_ops) if _goes(status, older_than, foreign)
    ]
    if not dry_run:
        for status in going:
            store.remove(status.name)
    return going


def _goes(status: BundleStatus, older_than: float | None, foreign: bool) -> bool:
    if status.state in (BROKEN, STALE) or (foreign and status.state == FOREIGN):
        return True
    return status.bundle is not None and older_than is not None and age(status.bundle) > older_than
