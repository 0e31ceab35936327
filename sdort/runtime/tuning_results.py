"""Bundles filled from sessions that have run: what was tuned is kept for the shapes that were fed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdort.console import detail, warn
from sdort.errors import SdortError
from sdort.pipelines.folder import image_channels
from sdort.runtime.session import Session
from sdort.tuning.bundle import TUNABLE
from sdort.tuning.key import InputDims, Key, make_key
from sdort.tuning.store import Filling, Store
from sdort.tuning.working_folder import working_folder
from sdort.workload.cases import Case, feed_shapes, make_feeds


def keep_case(session: Session, case: Case, factor: int, tokens: int) -> None:
    """Keep what was tuned on a case.

    Args:
        factor: pixels a latent.
        tokens: of a prompt, as the component takes them.
    """
    if not is_tuned(session):
        return
    feeds = make_feeds(case, session.inputs, factor, image_channels(session.path, case.component), tokens)
    keep_shapes(session, feed_shapes(feeds))


def is_tuned(session: Session) -> bool:
    """Whether kernels are searched for in a session."""
    return session.options.tuning and session.provider.on_gpu


def keep_shapes(session: Session, shapes: InputDims) -> None:
    """Keep what was tuned on inputs of ``shapes``; nothing without ``--tuning``."""
    if not is_tuned(session):
        return
    if session.weights.as_inputs:
        detail(f"{session.component}: programs that take weights as inputs are not kept")
        return
    if session.provider.programs:  # a process of its own has compiled and kept them
        return
    try:
        place = keep(session, shapes)
    except SdortError as error:
        warn(f"what was tuned is lost: {error.message}")
    else:
        detail(f"kept what was tuned: {place}")


def results_of(session: Session) -> list[dict[str, Any]]:
    """``get_tuning_results()`` of a session and of what runs before its steps, as one, without execution providers that
    found nothing; empty where there is no such call."""
    parts = [session.ort, *(part.ort for part in session.preparation.parts)] if session.preparation else [session.ort]
    found: dict[str, dict[str, Any]] = {}
    for result in [each for ort in parts if hasattr(ort, "get_tuning_results") for each in ort.get_tuning_results()]:
        known = found.setdefault(result["ep"], {**result, "results": {}})["results"]
        for operator, kernels in result["results"].items():
            known[operator] = {**known.get(operator, {}), **kernels}
    return [result for result in found.values() if result["results"]]


def keep(session: Session, shapes: InputDims, store: Store | None = None) -> Path:
    """Store what was tuned in a session, for inputs of ``shapes``.

    Returns:
        The bundle's folder.

    Raises:
        OutputError: the cache cannot be written.
        ProviderError: the driver does not tell what GPU there is.
    """
    store = store or Store()
    key = session_key(session, shapes)
    with filling(session, key, store):
        pass
    return store.folder / key.name


def session_key(session: Session, shapes: InputDims) -> Key:
    """The key of what a session finds for inputs of ``shapes``."""
    return make_key(session.path, session.component, session.provider, session.options, shapes)


@contextmanager
def filling(session: Session, key: Key, store: Store) -> Iterator[Filling]:
    """The bundle of a session that has run, filled; the block may add seconds."""
    results = results_of(session)
    with store.filling(key) as made:
        if results:
            (made.folder / TUNABLE).write_text(json.dumps(results, indent=1, sort_keys=True), encoding="utf-8")
        if session.provider.on_gpu:
            working_folder().copy_to(key.programs, made.folder)
        yield made
