"""The warm-up of a pipeline: :func:`sdort.warm`, which ``sdort warm`` calls.

An item is a component at a size and a batch. Its bundle is the mark that it is finished, so an interrupted warm-up goes
on where it stopped, and two at once do no harm.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any

from sdort.console import detail, progress, say, warn
from sdort.errors import MemoryShortageError, OutputError, ProviderError, SdortError
from sdort.families.component_names import ENCODER
from sdort.files.disk import WritePlan
from sdort.first_use.find_pipeline import pipeline_folder, ready_folder
from sdort.options.declared_options import made_of
from sdort.options.option_types import typed, with_options
from sdort.pipelines.content_check import checked
from sdort.pipelines.folder import open_folder
from sdort.providers.runtime_options import ExecutionOptions, RuntimeOptions
from sdort.providers.session_settings import can_tune
from sdort.runtime.compiled_programs import Programs, compile_apart
from sdort.runtime.opener import NotLoadedError
from sdort.runtime.probe import choose_provider
from sdort.runtime.provider_message import announce
from sdort.runtime.session import Binding, Session, open_session
from sdort.runtime.tuning_results import filling, results_of
from sdort.tuning.store import Store
from sdort.tuning.working_folder import working_folder
from sdort.warmup.bundle_sizes import plan_space
from sdort.warmup.items import Item, WarmupTarget, add, plan
from sdort.warmup.warm_options import WarmKeywords, WarmupOptions
from sdort.warmup.warm_report import FAILED, KEPT, LEFT, NEW, TOO_LARGE, Warmed, Warmup
from sdort.workload.judgement import unfit

if TYPE_CHECKING:
    from typing_extensions import Unpack

_RUNS = 5
"""How often an item runs at most until nothing new is found: the first run finds nearly all."""


@with_options(WarmupOptions, ExecutionOptions)
@typed
def warm(pipeline: str | Path, **options: Unpack[WarmKeywords]) -> Warmup:
    """Compile and tune a pipeline ahead of time, for every size and batch, and keep it.

    Every component runs until nothing new is found. What is kept already is not done again, so an interrupted warm-up
    goes on where it stopped. Kernels are searched for, without ``tuning`` too, where the provider can tune; ``graph``
    is off in any case, as a graph cannot be recorded while kernels are tried.

    Args:
        pipeline: a folder of ONNX components, one ``.onnx`` file, or a checkpoint as for :func:`sdort.load`.
        options: what is warmed up, and where and how the models run.

    Returns:
        What became of each item. A failed one is not raised: see :meth:`Warmup.raise_if_failed`.

    Raises:
        OutputError: the cache cannot be written.
        ProviderError: the provider does not load, and ``fallback`` is not True.
        UsageError: a size, a batch or a component that the pipeline cannot do.
        BadModelError: there is no pipeline.

    Example:
        >>> warmup = sdort.warm("fast", provider="rocm", sizes=[(512, 512)], budget=1800)
        >>> warmup.raise_if_failed()
    """
    asked = _options(options)
    return _warm(pipeline_folder(pipeline, asked.runtime), asked)


@with_options(WarmupOptions, ExecutionOptions)
@typed
def plan_warm(pipeline: str | Path, **options: Unpack[WarmKeywords]) -> WritePlan:
    """Say what :func:`warm` would keep, and whether it fits; nothing is run or written.

    Args:
        pipeline: as for :func:`warm`.
        options: what would be warmed up, and where and how the models run.

    Returns:
        A bound of the size of each item, free disk space, and an estimate of the peak memory.
        See :meth:`sdort.files.disk.WritePlan.raise_if_short`.

    Raises:
        SdortError: as :func:`warm`.

    Example:
        >>> sdort.plan_warm("fast", provider="cpu").fits
        True
    """
    asked = _options(options)
    return plan_space(*_planned(ready_folder(pipeline, asked.runtime), asked))


def _options(options: WarmKeywords) -> WarmupOptions:
    return made_of(WarmupOptions, options, runtime=made_of(RuntimeOptions, options))


def _warm(path: Path, options: WarmupOptions) -> Warmup:
    announce(options.runtime)
    items, store, target = _planned(path, options)
    if not target.runtime.tuning:
        say(f"there is nothing to tune on {target.provider.name}: every shape is run once, to see that it runs")
    plan_space(items, store, target).raise_if_short()
    with store.hidden():  # a cache that cannot be written is known before hours of work
        pass
    done = _Warmer(store, target, options.budget).warm_all(items)
    return Warmup(done, sum(item.status == LEFT for item in done))


def _planned(path: Path, options: WarmupOptions) -> tuple[list[Item], Store, WarmupTarget]:
    provider, _ = choose_provider(options.runtime)
    # A graph cannot be recorded while kernels are tried, and is not part of the key.
    runtime = replace(options.runtime, tuning=can_tune(provider, options.runtime), graph=False)
    with checked(path, runtime.check) as content:
        target = WarmupTarget(open_folder(path, ()), provider, runtime)
        content.reads(target.folder.models.values())
    return plan(target, options), Store(), target


class _Warmer:
    """Takes items one by one and learns how long each component's take."""

    def __init__(self, store: Store, target: WarmupTarget, budget: float | None) -> None:
        self.store = store
        self.target = target
        self.runtime = target.runtime
        self.deadline = None if budget is None else time.monotonic() + budget
        self.durations: dict[str, list[float]] = {}
        self.todo: list[Item] = []

    def warm_all(self, items: list[Item]) -> list[Warmed]:
        there = set(self.store.names())
        waiting = {item.key.name: item for item in items}
        done: dict[str, Warmed] = {}
        self.todo = [item for name, item in waiting.items() if name not in there]
        with progress("warming up", len(items), self.remaining) as advance:
            while waiting:
                count, name = len(waiting), next(iter(waiting))
                done[name] = self.warm_item(waiting[name])
                for item in self.smaller_items(waiting.pop(name), done[name]):
                    if item.key.name not in done:
                        add(waiting, item)
                self.todo = [item for other, item in waiting.items() if other not in there]
                self.announce(done[name])
                advance(count - len(waiting))
        return list(done.values())

    def smaller_items(self, item: Item, outcome: Warmed) -> list[Item]:
        """The items that replace one that is too large for the memory; it has failed if there are none."""
        if outcome.status != TOO_LARGE:
            return []
        smaller = self.target.smaller(item)
        if smaller:
            forms = dict.fromkeys(str(decode.form) for part in smaller for decode in part.decodes)
            half = "encoder" if item.case.component == ENCODER else "decoder"
            warn(f"{item}: the {half} ran out of memory; it goes on {' and '.join(forms)}")
        else:
            outcome.status = FAILED
        return smaller

    def warm_item(self, item: Item) -> Warmed:
        """Take one item. Whatever goes wrong in it costs that item alone, but for what all items need."""
        case = item.case
        outcome = Warmed(case.component, case.batch, case.height, case.width, LEFT, item.key.name)
        outcome.decodes = [str(decode) for decode in item.decodes]
        # Looked for now, not while planning: another process may have finished it meanwhile.
        kept = self.store.find(item.key)
        if kept:
            outcome.status, outcome.before_s = KEPT, kept.first_run_s
            return outcome
        if self.left() <= (self.estimate(item) or 0):
            return outcome
        started = time.monotonic()
        try:
            with progress(str(item)):
                outcome.before_s, outcome.after_s = self.run(item)
        except (OutputError, NotLoadedError):  # of either, every other item would say the same
            raise
        except SdortError as error:
            if self.left() > 0:
                detail(str(error))
                short = isinstance(error, MemoryShortageError) and item.decodes
                outcome.status, outcome.problem = TOO_LARGE if short else FAILED, error.message
            return outcome
        outcome.status = NEW
        self.durations.setdefault(case.component, []).append(time.monotonic() - started)
        return outcome

    def run(self, item: Item) -> tuple[float, float | None]:
        """Tune and keep; seconds of the first run without what is kept and with it."""
        before = self.compile(item) if self.target.provider.programs else self.search(item)
        if not self.runtime.tuning:
            return before, None
        started = time.perf_counter()
        with self.opened(item, replace(self.runtime, tuning=False)) as session:
            binding = session.bind(item.feeds)
            binding.run()
            if self.target.provider.programs:
                self.judge(item, binding)
        return before, time.perf_counter() - started

    def compile(self, item: Item) -> float:
        """Compile an item in a process of its own, and keep it; seconds of its first run there."""
        left = self.left()
        if left <= 0:
            raise ProviderError("the time was up before it ran")
        programs = Programs(item.path, item.case.component, self.target.provider, self.runtime)
        try:
            return compile_apart(programs, item.key, str(item), None if left == math.inf else left)
        except TimeoutExpired:
            raise ProviderError("the time was up before it was compiled") from None

    def search(self, item: Item) -> float:
        """Run an item until nothing new is found, and keep what was; seconds of its first run."""
        started = time.perf_counter()
        with self.opened(item, self.runtime) as session:
            binding = session.bind(item.feeds)
            binding.run()
            before = time.perf_counter() - started
            state = tuning_state(session, item.key.programs)
            for _ in range(_RUNS - 1 if self.runtime.tuning else 0):
                binding.run()
                last, state = state, tuning_state(session, item.key.programs)
                if state == last:
                    break
            self.judge(item, binding)
            with filling(session, item.key, self.store) as made:
                made.first_run_s = round(before, 4)
        return before

    def judge(self, item: Item, binding: Binding) -> None:
        """Warn of outputs that are unfit."""
        for name, value in binding.outputs().items():
            if problem := unfit(value, None):
                warn(f"{item}: on random inputs its output {name} {problem}")

    @contextmanager
    def opened(self, item: Item, options: RuntimeOptions) -> Iterator[Session]:
        """The item's session, whose run is given up when the budget is spent."""
        session = open_session(item.path, item.case.component, self.target.provider, options)
        left = self.left()
        if left <= 0:
            raise ProviderError("the time was up before it ran")
        timer = threading.Timer(left if left < threading.TIMEOUT_MAX else threading.TIMEOUT_MAX, session.stop)
        timer.daemon = True
        timer.start()
        try:
            yield session
        finally:
            timer.cancel()

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def estimate(self, item: Item) -> float | None:
        """Estimated seconds of an item: the average of its component's finished ones."""
        times = self.durations.get(item.case.component)
        return sum(times) / len(times) if times else None

    def remaining(self) -> float | None:
        """Seconds to the end, None while an item of some component is still to be seen."""
        guesses = [self.estimate(item) for item in self.todo]
        known = [guess for guess in guesses if guess is not None]
        return min(sum(known), max(0.0, self.left())) if len(known) == len(guesses) else None

    def announce(self, done: Warmed) -> None:
        """Say how an item ended, and what is to come."""
        if done.status == FAILED:
            warn(f"{done}: {done.problem}")
        if done.status != NEW or done.before_s is None:
            return
        after = "" if done.after_s is None else f", with what is kept {done.after_s:.1f} s"
        left = self.remaining()
        rest = f"; {len(self.todo)} to go" + ("" if left is None else f", about {left:.0f} s") if self.todo else ""
        say(f"{done}: first run {done.before_s:.1f} s{after}{rest}")


def tuning_state(session: Session, programs: str) -> Any:
    """The results of tuning up to now, to be compared with a later state.

    Args:
        programs: as :attr:`sdort.tuning.key.Key.programs`.
    """
    if not session.provider.on_gpu:
        return None
    return results_of(session), working_folder().contents(programs), working_folder().ops()
