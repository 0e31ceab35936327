"""Sessions are made at the same time, after all that touches the process, and one by one where its log is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class Small:
    """A session that says when it runs ahead, and does ``work`` then."""

    def __init__(self, component: str, events: list[str], work: Callable[[], object]) -> None:
        self.component, self._events, self._work = component, events, work

    def run_ahead(self, feeds: Any) -> None:
        self._events.append(f"{self.component} begins with {feeds}")
        self._work()
        self._events.append(f"{self.component} ends")


def run_ahead(
    monkeypatch: pytest.MonkeyPatch,
    create: Callable[[str, list[str]], Any],
    logged: frozenset[str] = frozenset(),
    names: tuple[str, ...] = ("text_encoder", "vae_decoder"),
) -> tuple[Any, list[str]]:
    """As :func:`opened`, with small models that run ahead."""
    events: list[str] = []

    def prepare(path: Path, name: str, *_: Any) -> Callable[[], Any]:
        return lambda: create(name, events)

    monkeypatch.setattr(side_by_side, "prepare_session", prepare)
    monkeypatch.setattr(side_by_side, "is_logged", lambda _, options: options.profile in logged)
    asked = {name: (Path(name), RuntimeOptions("cpu", profile=name)) for name in NAMES}
    feeds: Any = {name: f"what {name} takes" for name in names}
    return open_side_by_side(asked, CPU, lambda _: None, feeds), events


def test_small_models_run_by_turns_while_the_large_one_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    both, count, alone = threading.Event(), iter(range(2)), threading.Lock()

    def work() -> None:
        assert alone.acquire(blocking=False), "two run at once, each in memory of its own"
        threading.Event().wait(0.02)
        alone.release()
        if next(count):
            both.set()

    def create(name: str, events: list[str]) -> Any:
        if name == "unet":
            assert both.wait(30), "the small ones wait for the large one"
            events.append("unet is open")
            return name
        return Small(name, events, work)

    sessions, events = run_ahead(monkeypatch, create)
    assert list(sessions) == list(NAMES)
    ran = {name: events.index(f"{name} begins with what {name} takes") for name in ("text_encoder", "vae_decoder")}
    for name, begun in ran.items():
        assert events[begun + 1] == f"{name} ends"
    assert max(ran.values()) < events.index("unet is open")


def test_all_first_runs_are_over_when_sessions_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step may record a graph of the device then, while no other thread may use the driver."""

    def create(name: str, events: list[str]) -> Any:
        return Small(name, events, lambda: threading.Event().wait(0.05))

    before = threading.active_count()
    _, events = run_ahead(monkeypatch, create)
    assert sum(event.endswith("ends") for event in events) == 2
    assert threading.active_count() == before


def test_what_fails_in_a_first_run_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fails again where it counts."""

    def fail() -> None:
        raise ProviderError("out of memory")

    sessions, events = run_ahead(monkeypatch, lambda name, events: Small(name, events, fail))
    assert {name: session.component for name, (session, _) in sessions.items()} == {name: name for name in NAMES}
    assert sorted(events) == [f"{name} begins with what {name} takes" for name in ("text_encoder", "vae_decoder")]


def test_a_mistake_in_a_first_run_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake() -> None:
        raise AttributeError("no such thing")

    with pytest.raises(AttributeError, match="no such thing"):
        run_ahead(monkeypatch, lambda name, events: Small(name, events, mistake))


def test_what_does_not_open_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def create(name: str, events: list[str]) -> Any:
        if name == "text_encoder":
            raise ProviderError("text_encoder is refused")
        return Small(name, seen, lambda: None)

    with pytest.raises(ProviderError, match="text_encoder is refused"):
        run_ahead(monkeypatch, create)
    assert seen == ["vae_decoder begins with what vae_decoder takes", "vae_decoder ends"]


def test_nothing_runs_while_a_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = run_ahead(monkeypatch, lambda name, events: Small(name, events, lambda: None), frozenset({"unet"}))
    assert events == []


def test_after_an_interrupt_no_other_first_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    leave = threading.Event()

    @contextmanager
    def interrupted(name: str) -> Iterator[None]:
        yield
        if name == "sessions":
            threading.Timer(0.1, leave.set).start()
            raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side, "phase", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_ahead(monkeypatch, lambda name, _: Small(name, seen, lambda: leave.wait(30)))
    assert len(seen) == 2, "one was running, the other one waited for its turn"
    assert not any("ahead" in thread.name for thread in threading.enumerate())
