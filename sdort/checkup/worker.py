"""The processes that measure for :mod:`sdort.checkup.command`: JSON in and out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdort.benchmark.roofline_worker import roofs
from sdort.checkup.graphs import CHANNELS, FACTOR, TOKENS, Load
from sdort.errors import ProviderError
from sdort.inspection.profile import summarize_placement
from sdort.providers import CPU, find_provider
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.placement import parse_placement
from sdort.runtime.probe import why_not
from sdort.runtime.session import Session, open_logged, open_session
from sdort.verification.checks import check_outputs, precision
from sdort.workload.cases import Case, make_feeds

LEAST_RUNS, MOST_RUNS = 3, 50


def run_component(
    load: Mapping[str, Any], provider: str, device_id: int, path: str, reference: str, seconds: float
) -> dict[str, Any]:
    """Open a component, run it for the first time, and again and again.

    Args:
        load: a :class:`Load`, as JSON values.
        reference: the same component for the CPU, to compare outputs with; empty for none.
        seconds: that the runs after the first ones may take.

    Returns:
        ``opened_s``, ``first_s``, ``times_ms``, ``processors`` (used meanwhile), ``fallen`` (operators on the CPU that
        are no arithmetic on sizes) and ``wrong`` (why its outputs are not the reference's, empty if they are).

    Raises:
        SdortError: it cannot be opened or run.
    """
    chosen, options, what = _loaded(provider, device_id), RuntimeOptions(provider, device_id=device_id), Load(**load)
    started = time.perf_counter()
    session, log = open_logged(Path(path), what.component, chosen, options)
    opened = time.perf_counter() - started
    binding = session.bind(_feeds(session, what))
    first = _timed(binding.run)
    outputs = binding.outputs()
    binding.run()
    worked, times = time.process_time(), [_timed(binding.run)]
    began = time.perf_counter() - times[0]
    while len(times) < MOST_RUNS and (len(times) < LEAST_RUNS or sum(times) < seconds):
        times.append(_timed(binding.run))
    processors = (time.process_time() - worked) / (time.perf_counter() - began)
    wrong = ""
    if reference:
        compared = open_session(Path(reference), what.component, CPU, RuntimeOptions(CPU.name))
        expected = compared.run(_feeds(compared, what))
        dtype = "float16" if chosen.usual_precision == "fp16" else "float32"
        wrong = check_outputs(outputs, expected, "the CPU", what.component, precision(dtype, chosen)).problem or ""
    placed = summarize_placement(what.component, chosen, parse_placement(log), ())
    return {
        "opened_s": opened,
        "first_s": first,
        "times_ms": [1e3 * each for each in times],
        "processors": processors,
        "fallen": placed.fallen,
        "wrong": wrong,
    }


def measure_rates(provider: str, device_id: int, side: int, copied: int) -> dict[str, float]:
    """Bytes and operations a second of a copy and a product (:func:`sdort.benchmark.roofline_worker.roofs`)."""
    chosen = _loaded(provider, device_id)
    return roofs(chosen, RuntimeOptions(provider, device_id=device_id), side, copied, half=chosen.on_gpu)


def _loaded(name: str, device_id: int) -> Provider:
    """The provider, whose libraries are loaded."""
    provider = find_provider(name)
    if reason := why_not(provider, RuntimeOptions(name, device_id=device_id)):
        raise ProviderError(reason)
    return provider


def _feeds(session: Session, load: Load) -> dict[str, Any]:
    case = Case(load.component, load.samples, load.height, load.width)
    return make_feeds(case, session.inputs, FACTOR, CHANNELS, TOKENS)


def _timed(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
