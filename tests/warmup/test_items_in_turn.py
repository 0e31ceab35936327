"""Items of a warm-up are taken in turn: what each becomes, when none is begun any more, and how often one runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.errors import BadModelError, MemoryShortageError, OutputError, ProviderError, SdortError
from sdort.generation.latents.decode import Plan
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.opener import NotLoadedError
from sdort.warmup import command as warm
from sdort.warmup.items import Decode, Item
from sdort.workload.cases import Case


def item(component: str, name: str, *decodes: Decode) -> Item:
    key: Any = SimpleNamespace(name=name, programs=f"programs of {component}")
    return Item(Case(component, 2, 64, 96), Path(component), {}, key, list(decodes))


def decode(images: int, component: str = "vae_decoder") -> Decode:
    return Decode(Case(component, images, 64, 96), Plan())


class Machine:
    """A warm-up of stubs, whose clock stands still but for runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, budget: float | None = None) -> None:
        self.clock = 1000.0
        self.told: list[tuple[str, str]] = []
        self.kept: dict[str, Any] = {}
        self.smaller: dict[str, list[Item]] = {}
        self.ran: list[str] = []
        self.outcomes: dict[str, float | SdortError] = {}
        monkeypatch.setattr(time, "monotonic", lambda: self.clock)
        for name in ("say", "warn", "detail"):
            monkeypatch.setattr(warm, name, lambda text, name=name: self.told.append((name, text)))
        store: Any = SimpleNamespace(names=lambda: [*self.kept], find=lambda key: self.kept.get(key.name))
        runtime = SimpleNamespace(tuning=True)
        target: Any = SimpleNamespace(runtime=runtime, smaller=lambda each: self.smaller.get(each.key.name, []))
        self.warmer = warm._Warmer(store, target, budget)
        monkeypatch.setattr(self.warmer, "run", self.run)

    def run(self, each: Item) -> tuple[float, float | None]:
        self.ran.append(each.key.name)
        outcome = self.outcomes.get(each.key.name, 8.0)
        if isinstance(outcome, SdortError):
            raise outcome
        self.clock += outcome
        return outcome, outcome / 4


@pytest.mark.parametrize(
    ("error", "component", "status"),
    [
        (MemoryShortageError("short"), "vae_decoder", "too large"),
        (MemoryShortageError("short"), "unet", "failed"),  # nothing of it comes in parts
        (BadModelError("short"), "vae_decoder", "failed"),
        (ProviderError("short"), "unet", "failed"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_what_becomes_of_an_item_that_does_not_run(
    error: SdortError, component: str, status: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the end of the time broke off has not failed."""
    machine = Machine(monkeypatch, 30.0)
    each = item(component, "a", *([decode(1)] if component == "vae_decoder" else []))

    def run(_: Item) -> Any:
        machine.clock += 30.0 if late else 29.0
        raise error

    monkeypatch.setattr(machine.warmer, "run", run)
    done = machine.warmer.warm_item(each)
    assert (done.status, done.problem) == (("left", None) if late else (status, "short"))
    assert (done.component, done.batch, done.height, done.width, done.bundle) == (component, 2, 64, 96, "a")
    assert done.decodes == ([f"1 of 96x64 {Plan()}"] if component == "vae_decoder" else [])
    assert (done.before_s, done.after_s) == (None, None)
    assert machine.warmer.durations == {}
    assert machine.told == ([] if late else [("detail", "short")])


@pytest.mark.parametrize("error", [OutputError("full"), NotLoadedError(CPU, "gone")], ids=["cache", "provider"])
def test_what_every_item_would_say_is_raised(error: SdortError, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.outcomes["a"] = error
    with pytest.raises(type(error)):
        machine.warmer.warm_item(item("unet", "a"))


def test_what_is_kept_by_now_is_not_run_even_where_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 0.0)
    machine.kept["a"] = SimpleNamespace(first_run_s=7.5)
    kept, left = (machine.warmer.warm_item(item("unet", name)) for name in ("a", "b"))
    assert (kept.status, kept.before_s, kept.after_s) == ("kept", 7.5, None)
    assert (left.status, left.before_s) == ("left", None)
    assert machine.ran == []


def test_an_item_that_would_not_end_in_time_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as those of its component took on average, to the last second."""
    machine = Machine(monkeypatch, 100.0)
    machine.outcomes = {"a": 10.0, "b": 30.0, "c": 5.0}
    for name in "ab":
        done = machine.warmer.warm_item(item("unet", name))
        assert (done.status, done.before_s, done.after_s) == (
            "new", machine.outcomes[name], machine.warmer.durations["unet"][-1] / 4,
        )  # fmt: skip
    assert machine.warmer.durations == {"unet": [10.0, 30.0]}
    assert machine.warmer.estimate(item("unet", "x")) == 20.0
    assert machine.warmer.estimate(item("vae_decoder", "x")) is None
    assert machine.warmer.left() == 60.0
    machine.clock = 1080.0
    assert machine.warmer.warm_item(item("unet", "c")).status == "left"
    machine.clock = 1079.0
    assert machine.warmer.warm_item(item("unet", "c")).status == "new"
    machine.clock = 1099.0
    assert machine.warmer.warm_item(item("vae_decoder", "d")).status == "new"  # nothing is known of these
    assert machine.warmer.warm_item(item("vae_decoder", "e")).status == "left"
    assert machine.ran == [*"abcd"]
    assert Machine(monkeypatch).warmer.left() == float("inf")


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_an_item_that_is_too_large_goes_on_as_smaller_ones(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    name = f"vae_{half}"
    large, small = item(name, "large", decode(1, name), decode(2, name)), item(name, "small", decode(2, name))
    other = item(name, "there", decode(1, name))
    machine.smaller["large"] = [small, other]
    machine.outcomes["large"] = MemoryShortageError("short")
    machine.kept["there"] = SimpleNamespace(first_run_s=1.0)
    done = machine.warmer.warm_all([large, item("unet", "u"), item(name, "there", decode(3, name)), item("unet", "v")])
    assert [(each.bundle, each.status) for each in done] == [
        ("large", "too large"), ("u", "new"), ("there", "kept"), ("v", "new"), ("small", "new"),
    ]  # fmt: skip
    assert machine.ran == ["large", "u", "v", "small"]
    # It joins those that wait: what they decode is told together.
    assert done[2].decodes == [f"3 of 96x64 {Plan()}", f"1 of 96x64 {Plan()}"]
    warned = [text for kind, text in machine.told if kind == "warn"]
    assert warned == [f"{large}: the {half} ran out of memory; it goes on {Plan()}"]


def test_an_item_that_was_taken_is_not_taken_again_for_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    first, large = item("vae_decoder", "first", decode(1)), item("vae_decoder", "large", decode(4))
    machine.smaller["large"] = [item("vae_decoder", "first", decode(4))]
    machine.outcomes["large"] = MemoryShortageError("short")
    done = machine.warmer.warm_all([first, large])
    assert [(each.bundle, each.status) for each in done] == [("first", "new"), ("large", "too large")]
    assert machine.ran == ["first", "large"]


def test_an_item_without_a_smaller_form_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    large = item("vae_decoder", "large", decode(1))
    machine.outcomes["large"] = MemoryShortageError("short")
    (done,) = machine.warmer.warm_all([large])
    assert (done.status, done.problem) == ("failed", "short")
    assert ("warn", f"{large}: short") in machine.told


def test_the_time_to_go_counts_what_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.kept["b"] = SimpleNamespace(first_run_s=1.0)
    seen: list[tuple[list[str], float | None, int]] = []
    advanced: list[int] = []

    @contextmanager
    def progress(text: str, total: int = 0, remaining: Any = None) -> Iterator[Callable[[int], None]]:
        if text == "warming up":
            assert (total, remaining) == (4, machine.warmer.remaining)
            yield advanced.append
        else:
            seen.append(([each.key.name for each in machine.warmer.todo], machine.warmer.remaining(), total))
            yield advanced.append

    monkeypatch.setattr(warm, "progress", progress)
    machine.warmer.warm_all([item("unet", "a"), item("unet", "b"), item("unet", "c"), item("unet", "d")])
    assert seen == [(["a", "c", "d"], None, 0), (["c", "d"], 16.0, 0), (["d"], 8.0, 0)]
    assert advanced == [1, 1, 1, 1]
    assert machine.warmer.todo == []


@pytest.mark.parametrize(
    ("found", "tuning", "runs"),
    [
        ([1], True, 2),
        ([1, 2, 2, 3], True, 3),
        ([1, 2, 3, 4, 5, 6, 7], True, 5),
        ([1, 2, 3], False, 1),
    ],
)
def test_an_item_runs_until_nothing_new_is_found(
    found: list[int], tuning: bool, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most five times, and once more with what is kept, without looking for more."""
    sessions: list[tuple[Any, list[str]]] = []
    states = iter([*found, *[found[-1]] * 9])
    asked: list[str] = []
    card: Any = SimpleNamespace(programs="")

    def opened(path: Path, component: str, provider: Any, options: Any) -> Any:
        assert (path, component, provider) == (Path("unet"), "unet", card)
        calls: list[str] = []
        sessions.append((options, calls))
        outputs = {"good": np.arange(3.0), "bad": np.full(3, np.nan)}
        binding = SimpleNamespace(run=lambda: calls.append("run"), outputs=lambda: outputs)
        return SimpleNamespace(bind=lambda feeds: binding if feeds == {"x": 1} else None, stop=lambda: None)

    def state(session: Any, model: str) -> int:
        asked.append(model)
        return next(states)

    made = SimpleNamespace(first_run_s=None)

    @contextmanager
    def filling(session: Any, key: Any, store: Any) -> Iterator[Any]:
        assert (key.name, store) == ("a", "store")
        assert sessions[0][1] == ["run"] * runs
        yield made

    monkeypatch.setattr(warm, "open_session", opened)
    monkeypatch.setattr(warm, "tuning_state", state)
    monkeypatch.setattr(warm, "filling", filling)
    warned: list[str] = []
    monkeypatch.setattr(warm, "warn", warned.append)
    ticks = iter([10.0, 12.25, 20.0, 20.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    runtime = RuntimeOptions("rocm", tuning=tuning, device_id=3)
    target: Any = SimpleNamespace(runtime=runtime, provider=card)
    store: Any = "store"
    each = item("unet", "a")
    each.feeds["x"] = 1  # type: ignore[assignment]
    before, after = warm._Warmer(store, target, None).run(each)
    assert (before, after, made.first_run_s) == (2.25, 0.5 if tuning else None, 2.25)
    assert warned == [f"{each}: on random inputs its output bad has NaN or infinite values (100 % of it)"]
    assert sessions[0][0] == runtime
    assert set(asked) == {"programs of unet"}
    if tuning:
        assert [options.tuning for options, _ in sessions] == [True, False]
        assert sessions[1][0].device_id == 3
        assert sessions[1][1] == ["run"]
    else:
        assert len(sessions) == 1


@pytest.mark.parametrize("left", [None, 50.0, 0.0])
def test_a_run_is_given_up_when_the_budget_is_spent(left: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Timer:
        def __init__(self, seconds: float, call: Any) -> None:
            self.seconds, self.call, self.state, self.daemon = seconds, call, "new", False
            made.append(self)

        def start(self) -> None:
            assert self.daemon
            self.state = "started"

        def cancel(self) -> None:
            self.state = "over"

    session: Any = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(warm, "open_session", lambda *_: session)
    machine = Machine(monkeypatch, left)
    machine.warmer.target.provider = "card"  # type: ignore[misc, assignment]
    options: Any = None
    if left == 0:
        with pytest.raises(ProviderError, match="the time was up"), machine.warmer.opened(item("unet", "a"), options):
            pass
        assert made == []
        return

    def fail() -> None:
        with machine.warmer.opened(item("unet", "a"), options) as given:
            assert given is session
            (timer,) = made
            assert (timer.state, timer.call) == ("started", session.stop)
            assert timer.seconds == (threading.TIMEOUT_MAX if left is None else left)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert made[0].state == "over"


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_tuning_has_found_is_of_the_session_its_model_and_the_kernels(
    on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {"results": 1, "files": [("a", 1)], "kernels": ["k"]}
    folder = SimpleNamespace(contents=lambda model: (model, found["files"]), ops=lambda: found["kernels"])
    monkeypatch.setattr(warm, "working_folder", lambda: folder)
    monkeypatch.setattr(warm, "results_of", lambda session: found["results"])
    session: Any = SimpleNamespace(provider=SimpleNamespace(on_gpu=on_gpu))
    states = [warm.tuning_state(session, "one"), warm.tuning_state(session, "two")]
    for name in list(found):
        found[name] = name
        states.append(warm.tuning_state(session, "one"))
    assert len({repr(state) for state in states}) == (5 if on_gpu else 1)
