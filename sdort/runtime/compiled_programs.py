"""Programs that a provider compiles for the shapes of a model's inputs, in minutes to half an hour.

Nothing ends a compilation but the end of its process: ONNX Runtime asks its flag of cancellation between its own steps
alone. So a process of its own compiles, which Ctrl-C, a budget and the end of sdort kill. What it made is kept as a
bundle of the tuning cache, where the session here reads it. Nothing is compiled that nobody asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sdort.console import clock, progress, say, warn_once
from sdort.errors import BadModelError, MemoryShortageError, OutputError, ProviderError, SdortError, UsageError
from sdort.machine.subprocesses import WorkerError, run_worker
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.tuning.bundle import Bundle, BundleError
from sdort.tuning.key import InputDims, Key, make_key
from sdort.tuning.store import Store
from sdort.tuning.working_folder import working_folder

WORKER = "sdort.runtime.compile_worker:compile_program"
"""The function that the process that compiles calls."""

_ERRORS = {each.__name__: each for each in (BadModelError, MemoryShortageError, OutputError, ProviderError, UsageError)}
"""Errors of the process that compiles, which this one raises again."""


class NotCompiledError(ProviderError):
    """Shapes for which nothing is compiled, where nobody asked to compile."""


@dataclass
class Programs:
    """Programs of a session.

    Args:
        kept: whether what is compiled can be kept: a program that takes weights as inputs cannot.
    """

    path: Path
    component: str
    provider: Provider
    options: RuntimeOptions
    kept: bool = True
    _ready: set[tuple[tuple[str, tuple[int, ...]], ...]] = field(default_factory=set)

    def require(self, shapes: InputDims) -> None:
        """See to it that a run on inputs of these shapes compiles nothing in this process.

        Raises:
            NotCompiledError: nothing is compiled for them, and ``options.compile`` is False.
            SdortError: it cannot be compiled or kept.
        """
        dims = tuple(sorted((name, tuple(sizes)) for name, sizes in shapes.items()))
        if dims not in self._ready:
            self._provide(dict(dims))
            self._ready.add(dims)

    def _provide(self, shapes: InputDims) -> None:
        key = self._key(shapes)
        if key is not None and _is_here(key):
            return
        words = f"{self.component} with {shapes_text(shapes.items())}"
        if not (self.options.compile or self.options.tuning):
            raise not_compiled(self.provider, [(words, key)])
        if key is None:
            warn_once(f"{self.component}: {self.provider.name} compiles it now, which may take long and is not kept")
            return
        compile_apart(self, key, words)
        if not _is_here(key):
            raise ProviderError(f"{words} was compiled and is not in the tuning cache", component=self.component)

    def _key(self, shapes: InputDims) -> Key | None:
        """The key of the bundle; None where nothing is kept."""
        try:
            return make_key(self.path, self.component, self.provider, self.options, shapes) if self.kept else None
        except ProviderError:  # the driver does not tell which GPU there is
            return None


def _is_here(key: Key) -> bool:
    """Whether the programs of a key are kept; they lie in the working folder then."""
    folder, store = working_folder(), Store()
    try:
        if folder.has_programs(store.read(key.name)):
            return True
    except BundleError:
        return False
    bundle = store.find(key)
    if bundle:
        folder.take(bundle)
    return bundle is not None


def not_compiled(provider: Provider, missing: Sequence[tuple[str, Key | None]], ready: str = "") -> NotCompiledError:
    """The error for what is not compiled: each in words, with its key.

    Args:
        ready: the nearest size for which all is compiled, in words; empty where there is none.
    """
    texts = [words + _last_time(key) for words, key in missing]
    nearest = f" --nearest-size takes {ready}, which is compiled." if ready else ""
    return NotCompiledError(
        f"{provider.name} has no program yet for {'; '.join(texts)}",
        hint="--compile compiles it and goes on; Ctrl-C ends that at any time, and what is compiled is kept. "
        f"sdort warm compiles ahead of time.{nearest}",
    )


def say_missing(provider: Provider, missing: Sequence[tuple[str, Key]]) -> None:
    """Say what is going to be compiled, and how long it took the last time."""
    texts = "; ".join(words + _last_time(key) for words, key in missing)
    say(f"{provider.name} compiles before it generates: {texts}. Ctrl-C ends it; what is compiled by then is kept")


def _last_time(key: Key | None) -> str:
    last = last_compiled(key) if key else None
    if last is None or last.first_run_s is None:
        return " (nothing like it was compiled here before, so sdort cannot say how long it takes)"
    return f" (it took {clock(last.first_run_s)} last time, for {shapes_text(last.key.shapes)})"


def last_compiled(key: Key) -> Bundle | None:
    """The bundle that tells best how long a compilation takes: of the same model if there is one, else of the same
    component and provider; of several the latest."""
    store = Store()
    bundles = [bundle for bundle in store.of_component(key.component) if bundle.first_run_s and bundle.key.ep == key.ep]
    return max(bundles, key=lambda bundle: (bundle.key.model == key.model, bundle.made), default=None)


def shapes_text(shapes: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Shapes in words: those of the largest input, ``sample 2x4x64x64``."""
    name, sizes = max(shapes, key=lambda item: len(item[1]))
    return f"{name} {'x'.join(map(str, sizes))}"


def compile_apart(programs: Programs, key: Key, words: str, timeout: float | None = None) -> float:
    """Compile in a process of its own, which ends with this call, however that ends; the bundle is kept.

    Args:
        key: of the shapes.
        timeout: seconds after which it is given up.

    Returns:
        Seconds that opening the model and its first run took.

    Raises:
        SdortError: the model does not run on these shapes, or what is compiled cannot be kept.
        subprocess.TimeoutExpired: ``timeout`` is over.
    """
    last = last_compiled(key)
    expected = last.first_run_s if last else None
    say(f"compiling {words} for {programs.provider.name}{_last_time(key) if expected else ''}; Ctrl-C ends it")
    begun = time.monotonic()

    def left() -> float | None:
        return None if expected is None else max(0.0, expected - (time.monotonic() - begun))

    task = {
        "path": str(programs.path.absolute()),
        "component": programs.component,
        "provider": programs.provider.name,
        "options": options_of(programs.options),
        "shapes": {name: list(sizes) for name, sizes in key.shapes},
    }
    with progress(f"compiling {words}", None if expected is None else 1.0, left):
        answer = _answer(task, programs.component, timeout)
    seconds = float(answer["seconds"])
    say(f"compiled {words} in {clock(seconds)}")
    return seconds


def options_of(options: RuntimeOptions) -> dict[str, Any]:
    """Options for another process, as JSON values: without what belongs to this one's memory."""
    return asdict(replace(options, stream=0, pool=0, profile="", graph=False, compiles=True))


def _answer(task: Mapping[str, Any], component: str, timeout: float | None) -> Mapping[str, Any]:
    try:
        answer: Mapping[str, Any] = run_worker(WORKER, task, timeout=timeout)
    except WorkerError as error:
        raise ProviderError(
            f"the process that compiles ended with code {error.code} and said: {error.said}",
            component=component,
            hint="Code -9 often means that the memory was full (dmesg tells).",
        ) from error
    if "error" in answer:
        kind, message, hint = answer["error"]
        raise _ERRORS.get(kind, SdortError)(message, component=component, hint=hint)
    return answer
