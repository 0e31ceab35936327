"""Sessions of several components, made side by side: each reads its weights and copies them to the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sdort.console import detail
from sdort.errors import SdortError
from sdort.machine.phases import phase
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.memory_pool import open_pool
from sdort.runtime.session import Session, is_logged, open_or_fall_back, prepare_session


def open_side_by_side(
    asked: Mapping[str, tuple[Path, RuntimeOptions]], provider: Provider, on_open: Callable[[str], None]
) -> dict[str, tuple[Session, str | None]]:
    """:func:`sdort.runtime.session.open_or_fall_back` of several components, each in a thread.

    What sdort does itself comes first, one component after the other: it sets variables of the process, which libraries
    read when a session is made. Where the log of sessions is read, they are made one after the other. What memory a
    session needs only while it is made, all of them need at the same time.

    Args:
        asked: component -> its file and options.
        on_open: called in some thread with each component that is open on ``provider``.

    Raises:
        BadModelError, ProviderError: as ``open_or_fall_back``, for the first component that neither takes.
    """
    # Before there are threads: the kernel's list of libraries has gaps while these map memory.
    pools = [open_pool(provider, options) for _, options in asked.values() if options.pool]
    with phase("preparation of graphs"):
        calls = {name: _prepared(path, name, provider, options) for name, (path, options) in asked.items()}

    def opened(name: str) -> Session:
        begun = time.perf_counter()
        session = calls[name]()
        detail(f"{name} is open after {time.perf_counter() - begun:.2f} s")
        on_open(name)
        return session

    logged = any(is_logged(provider, options) for _, options in asked.values())
    with phase("sessions"), ThreadPoolExecutor(1 if logged else len(asked), "sdort-open") as threads:
        opening = {name: threads.submit(opened, name) for name in asked}
    del pools  # the sessions hold them
    return {
        name: open_or_fall_back(path, name, provider, options, opening[name].result)
        for name, (path, options) in asked.items()
    }


def _prepared(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> Callable[[], Session]:
    """As :func:`sdort.runtime.session.prepare_session`; what is refused now, the call raises."""
    try:
        return prepare_session(path, component, provider, options)
    except SdortError as error:
        refusal = error

    def refuse() -> Session:
        raise refusal

    return refuse
