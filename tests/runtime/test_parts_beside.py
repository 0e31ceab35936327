"""On a GPU a step and the parts before it open side by side: each copies its weights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny_pipeline import Tiny

from sdort.errors import ProviderError
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import opener, session
from sdort.runtime.session import Session, open_logged, open_session

GPU = replace(CPU, vendor="nvidia")
"""The CPU as a provider that computes on a GPU, whose library is not loaded."""
OPTIONS = RuntimeOptions("cpu", custom_ops="off")


def unet(tiny: Tiny) -> Path:
    return open_folder(tiny.onnx).models["unet"]


def watched(monkeypatch: pytest.MonkeyPatch, on_create: Callable[[], object]) -> None:
    """Call ``on_create`` before each session is created."""
    create = opener.create_session

    def create_session(*arguments: Any, **options: Any) -> Any:
        on_create()
        return create(*arguments, **options)

    monkeypatch.setattr(session, "create_session", create_session)


def opened(tiny: Tiny, provider: Provider) -> Session:
    return open_session(unet(tiny), "unet", provider, OPTIONS)


def test_a_step_and_its_parts_open_at_the_same_time(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    together, threads = threading.Barrier(3, timeout=20), list[str]()

    def on_create() -> None:
        threads.append(threading.current_thread().name)
        together.wait()

    watched(monkeypatch, on_create)
    found = opened(tiny, GPU)
    assert found.preparation is not None
    assert all(part.is_open for part in found.preparation.parts)
    assert sum(name.startswith("sdort-parts") for name in threads) == 2
    assert threading.main_thread().name in threads, "the step opens where it is asked for, and has its device there"


def test_on_a_processor_they_open_one_after_the_other(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    watched(monkeypatch, lambda: threads.append(threading.current_thread().name))
    opened(tiny, CPU)
    assert threads == [threading.main_thread().name] * 3


def test_while_a_log_is_read_they_open_one_after_the_other(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    watched(monkeypatch, lambda: threads.append(threading.current_thread().name))
    open_logged(unet(tiny), "unet", GPU, OPTIONS)
    assert threads == [threading.main_thread().name] * 3


@pytest.mark.parametrize("broken", [1, 2, 3], ids=["the first part", "the second part", "the step"])
def test_the_error_is_that_of_the_first_that_does_not_open(
    broken: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if they opened one after the other; nothing is left that still opens."""
    start_graph, count = session._start_graph, iter(range(1, 4))
    started = Session.start

    def fail(number: int) -> None:
        if number >= broken:
            raise ProviderError(f"{number} does not open")

    numbers: dict[int, int] = {}

    def numbered(*arguments: Any, **options: Any) -> Session:
        number = next(count)
        if number == 3:
            fail(number)
        found = start_graph(*arguments, **options)
        numbers[id(found)] = number
        return found

    def start(self: Session) -> None:
        fail(numbers[id(self)])
        started(self)

    monkeypatch.setattr(session, "_start_graph", numbered)
    monkeypatch.setattr(Session, "start", start)
    with pytest.raises(ProviderError, match=f"{broken} does not open"):
        opened(tiny, GPU)
    assert not any(thread.name.startswith("sdort-parts") for thread in threading.enumerate())
