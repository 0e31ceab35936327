"""Sessions are made at the same time, after all that touches the process, and one by one where its log is read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sdort.errors import ProviderError
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import side_by_side
from sdort.runtime.side_by_side import open_side_by_side

NAMES = ("text_encoder", "unet", "vae_decoder")


def opened(
    monkeypatch: pytest.MonkeyPatch, create: Callable[[str], Any], logged: frozenset[str] = frozenset()
) -> tuple[Any, Any]:
    """The sessions, and what happened in which order: preparations, and components that are open."""
    events: list[str] = []

    def prepare(path: Path, name: str, *_: Any) -> Callable[[], Any]:
        events.append("prepared")
        return lambda: create(name)

    monkeypatch.setattr(side_by_side, "prepare_session", prepare)
    monkeypatch.setattr(side_by_side, "is_logged", lambda _, options: options.profile in logged)
    asked = {name: (Path(name), RuntimeOptions("cpu", profile=name)) for name in NAMES}
    return open_side_by_side(asked, CPU, events.append), events


def test_every_session_is_made_while_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(len(NAMES), timeout=30)

    def create(name: str) -> str:
        together.wait()
        return name.upper()

    sessions, events = opened(monkeypatch, create)
    assert sessions == {name: (name.upper(), None) for name in NAMES}
    assert list(sessions) == list(NAMES)
    assert events[:3] == ["prepared"] * 3
    assert sorted(events[3:]) == sorted(NAMES)


@pytest.mark.parametrize(
    "logged", [frozenset(NAMES), *(frozenset({name}) for name in NAMES)], ids=lambda names: "+".join(sorted(names))
)
def test_where_one_is_logged_sessions_are_made_one_by_one(
    logged: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is the process's: another session that is made meanwhile would write into it."""
    alone, wrong = threading.Lock(), []

    def create(name: str) -> str:
        if not alone.acquire(blocking=False):
            wrong.append(name)
            return name
        threading.Event().wait(0.02)
        alone.release()
        return name

    sessions, _ = opened(monkeypatch, create, logged)
    assert (list(sessions), wrong) == (list(NAMES), [])


def test_the_first_refusal_is_raised_when_all_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[str] = []

    def create(name: str) -> str:
        over.append(name)
        if name != "text_encoder":
            raise ProviderError(f"{name} is refused")
        return name

    with pytest.raises(ProviderError, match="unet is refused"):
        opened(monkeypatch, create)
    assert sorted(over) == sorted(NAMES)


@pytest.mark.parametrize("refused", NAMES)
def test_what_is_refused_before_a_session_is_made_falls_back_as_one_that_fails(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends none of the others."""
    asked = {name: (Path(name), RuntimeOptions("cpu")) for name in NAMES}

    def prepare(path: Path, name: str, *_: Any) -> Callable[[], Any]:
        if name == refused:
            raise ProviderError("it has no kernel")
        return lambda: name.upper()

    def open_or_fall_back(path: Path, name: str, provider: Any, options: Any, opening: Callable[[], Any]) -> Any:
        try:
            return opening(), None
        except ProviderError as error:
            return "on the CPU", error.message

    monkeypatch.setattr(side_by_side, "prepare_session", prepare)
    monkeypatch.setattr(side_by_side, "open_or_fall_back", open_or_fall_back)
    events: list[str] = []
    sessions = open_side_by_side(asked, CPU, events.append)
    ends: dict[str, Any] = {
        name: ("on the CPU", "it has no kernel") if name == refused else (name.upper(), None) for name in NAMES
    }
    assert sessions == ends
    assert sorted(events) == sorted({*NAMES} - {refused})
