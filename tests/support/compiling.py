"""A stand-in of MIGraphX: ONNX Runtime's CPU provider as one that compiles programs, and counts them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdort.providers import PROVIDERS
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.runtime import compile_worker, compiled_programs
from sdort.tuning.device import Machine
from sdort.tuning.key import parse_key
from sdort.tuning.store import Store
from sdort.tuning.working_folder import working_folder

STAND_IN = replace(
    MIGRAPHX, target=replace(MIGRAPHX.target, execution_provider="CPUExecutionProvider"), uses_miopen=False
)
MACHINE = Machine("gfx1201", 64, "HIP 7.0.0", STAND_IN.ep, "1.27.1", "onnxruntime-migraphx 1.27.1")


def shape_of_largest(shapes: Mapping[str, list[int]]) -> tuple[int, ...]:
    """The dimensions of the input that has the most of them."""
    longest: list[int] = max(shapes.values(), key=len)
    return tuple(longest)


@contextmanager
def compiling() -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """A block in which ``migraphx`` is the stand-in, and compiles in this process: components and the dimensions of
    their largest inputs are gathered, as they are compiled."""
    compiled: list[tuple[str, tuple[int, ...]]] = []

    def compile_here(function: str, given: Mapping[str, Any], *, timeout: float | None = None) -> Any:
        task: dict[str, Any] = json.loads(json.dumps(given))  # as it is sent
        compiled.append((task["component"], shape_of_largest(task["shapes"])))
        return compile_worker.compile_program(**task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROVIDERS, "migraphx", STAND_IN)
        patch.setattr("sdort.tuning.key.this_machine", lambda *_: MACHINE)
        patch.setattr(compiled_programs, "run_worker", compile_here)
        yield compiled
    working_folder.cache_clear()


def compile_program(**task: Any) -> Any:
    """In a process of its own: :func:`sdort.runtime.compile_worker.compile_program` with the stand-in."""
    with compiling():
        return compile_worker.compile_program(**task)


def never_ends(path: str, **_: Any) -> None:
    """A compilation, in a process of its own, that nothing ends: its process id goes into a file beside the model."""
    Path(path).with_name("compiling.pid").write_text(str(os.getpid()))
    time.sleep(3600)


def keep_seconds(seconds: float) -> None:
    """Let all that is kept have taken so many seconds."""
    store = Store()
    for name in store.names():
        with store.filling(parse_key(store.read(name).key.to_json())) as made:
            made.first_run_s = seconds
