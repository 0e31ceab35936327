"""The process that compiles a model for the shapes of its inputs (:mod:`sdort.runtime.compiled_programs`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdort.errors import SdortError
from sdort.providers import find_provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import open_session
from sdort.runtime.tuning_results import filling, session_key
from sdort.tuning.store import Store


def compile_program(
    path: str, component: str, provider: str, options: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Open a model, run it once on zeros of these shapes, and keep what that compiled.

    Returns:
        ``seconds`` of both, or ``error``: class, message and hint of what sdort raised.
    """
    started = time.perf_counter()
    try:
        session = open_session(Path(path), component, find_provider(provider), RuntimeOptions(**options))
        session.bind({name: np.zeros(sizes, session.inputs[name].dtype) for name, sizes in shapes.items()}).run()
        seconds = time.perf_counter() - started
        with filling(session, session_key(session, shapes), Store()) as made:
            made.first_run_s = round(seconds, 4)
    except SdortError as error:
        return {"error": [type(error).__name__, error.message, error.hint]}
    return {"seconds": seconds}
