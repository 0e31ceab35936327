"""Adapters of a running pipeline: weights that change are replaced in sessions that stay open.

An adapter that changes a weight gives the session another one, computed once per switch as ``sdort export --lora``
computes it: parameters in fp32, differences added, then packed, transposed and rounded as the optimizer did it. A GPU
computes it of a LoRA's two matrices, in its own memory; of other kinds the host does. So a step costs what it costs
without an adapter, whatever the adapter's kind and rank.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from sdort.adapters.adapted_weight import adapted
from sdort.adapters.adapter_choice import AdapterChoice
from sdort.adapters.adapter_file import Adapter, read_adapter, remark
from sdort.adapters.weight_deltas import Difference
from sdort.console import progress, warn
from sdort.errors import ParityError
from sdort.families.component_names import DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.files.file_digest import file_digest
from sdort.generation.requests.record import AdapterRecord
from sdort.graph.overflow import is_finite
from sdort.graph.signature import Array, Factors
from sdort.graph.weights import Inline, Weight
from sdort.machine.blas_threads import one_blas_thread
from sdort.onnx_io.expression_factors import added_factors, parameter_values
from sdort.onnx_io.expression_json import UNREADABLE, decode, decode_origin
from sdort.onnx_io.overridable import ReplaceableWeight, bad_origin
from sdort.pipelines.folder import PipelineFolder
from sdort.runtime.replaced_weights import ReplacedWeights
from sdort.runtime.session import Session, find_replaceable
from sdort.tables import size_text

IN_FLIGHT = 128 * 2**20
"""Bytes of stored weights merged at a time: in fp32, with a difference and a sum, it is eight times that."""

WORKERS = min(8, os.cpu_count() or 1)
"""Weights that are merged at a time: numpy releases the interpreter lock, and eight fill the memory's bandwidth."""

Changes = Mapping[str, Sequence[tuple[Difference, float]]]
"""Parameter -> differences, each with its scale."""


def is_adaptable(component: str) -> bool:
    """Whether adapters change a component: the UNet and the text encoders."""
    return component not in (DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER)


def remark_inputs(session: Session) -> None:
    """Warn where weights that can change are inputs of every run, as a provider compiles the others into programs."""
    if session.weights.as_inputs:
        warn(
            f"{session.provider.name} compiles weights into its programs: {size_text(session.weights.nbytes)} of "
            f"{session.component}, which adapters can change, go to the device in every step instead. An adapter in "
            "the model costs nothing:\n    sdort export MODEL OUT --lora FILE"
        )


@dataclass(frozen=True)
class AdapterPlan:
    """Adapters that fit a pipeline, and what they change."""

    choices: tuple[AdapterChoice, ...]
    adapters: tuple[Adapter, ...]
    weights: Mapping[str, Mapping[str, ReplaceableWeight]]
    """Component -> its replaceable weights by name."""

    @cached_property
    def changes(self) -> dict[str, Changes]:
        """Component -> what changes in it; scales of 0 change nothing."""
        changes: dict[str, dict[str, list[tuple[Difference, float]]]] = {}
        for choice, adapter in zip(self.choices, self.adapters, strict=True):
            for component, deltas in adapter.deltas.items():
                scale = choice.scale_of(component)
                for parameter, delta in deltas.items() if scale else ():
                    changes.setdefault(component, {}).setdefault(parameter, []).append((delta, scale))
        return dict(changes)

    def changed(self, component: str) -> list[str]:
        """The initializers of a component that change."""
        changes = self.changes.get(component, {})
        return [name for name, weight in self.weights.get(component, {}).items() if changes.keys() & weight.parameters]


def plan_adapters(folder: PipelineFolder, choices: Sequence[AdapterChoice]) -> AdapterPlan:
    """Match adapters with the weights of a pipeline; only the headers of files are read.

    Raises:
        BadModelError: a file is no adapter or one of another family, or the pipeline does not say what its weights are
            made of.
    """
    if not choices:
        return AdapterPlan((), (), {})
    names = [name for name in folder.needed if is_adaptable(name) and name in folder.models]
    weights = {name: find_replaceable(folder.models[name], name) for name in names}
    parameters = {name: dict(_parameters(of_component)) for name, of_component in weights.items()}
    return AdapterPlan(tuple(choices), tuple(read_adapter(choice.path, parameters) for choice in choices), weights)


def _parameters(weights: Mapping[str, ReplaceableWeight]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for weight in weights.values():
        yield from weight.parameters.items()


def record_adapter(choice: AdapterChoice) -> AdapterRecord:
    """The record of an adapter.

    Raises:
        BadModelError: its file cannot be read.
    """
    with ThreadPoolExecutor(2, "sdort-digests") as pool:  # hashing takes longer than reading
        whole, tensors = pool.map(lambda of_tensors: file_digest(choice.path, tensors=of_tensors), (False, True))
    return AdapterRecord(choice.path.name, choice.scale, whole, tensors, choice.text_scale)


class RunningAdapters:
    """The adapters that the sessions of a pipeline have.

    Args:
        sessions: the pipeline's, by component, which may be exchanged in place, closed and opened; those that adapters
            change are opened with ``options.adapters``.
    """

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self.sessions = sessions
        self._plan = AdapterPlan((), (), {})
        self._current: list[AdapterRecord] | None = []
        self._having: set[str] = set()
        """Components whose sessions have the adapters of the plan."""

    @property
    def record(self) -> list[AdapterRecord]:
        """The adapters that the sessions have now."""
        return list(self._current or ())

    def use(self, plan: AdapterPlan) -> None:
        """Change the sessions' weights; nothing is loaded, compiled or recorded again.

        Raises:
            BadModelError: an adapter's file cannot be read.
            ParityError: a weight gets values that its dtype cannot hold.
        """
        asked = [record_adapter(choice) for choice in plan.choices]
        if asked != self._current:
            self._having.clear()
            for adapter in plan.adapters:
                remark(adapter)
        elif not asked:
            return  # sessions that were opened meanwhile have none
        self._plan = plan
        self._change(asked)

    def renew(self) -> None:
        """Let sessions that were opened since then have the adapters of the last :meth:`use`; errors are as there."""
        if self._current:
            self._change(self._current)

    def forget(self, component: str) -> None:
        """The session of a component is closed, or another one without adapters has its place."""
        self._having.discard(component)

    def _change(self, asked: list[AdapterRecord]) -> None:
        plan, left = self._plan, {name: each for name, each in self.sessions.items() if name not in self._having}
        self._current = None  # half of it, until all is done
        total = sum(len(plan.changed(name)) for name in left)
        with one_blas_thread(), progress("adapters", total=total) if left else nullcontext(lambda _: None) as advance:
            for name, session in left.items():
                changed, changes = plan.changed(name), plan.changes.get(name, {})
                for _ in switched(session, changed, changes):
                    advance(1)
                for other in session.others:
                    other.call(partial(_switch, changed=changed, changes=changes))
                self._having.add(name)
        self._current = asked


def _switch(session: Session, changed: Sequence[str], changes: Changes) -> None:
    for _ in switched(session, changed, changes):
        pass


def switched(session: Session, changed: Sequence[str], changes: Changes) -> Iterator[str]:
    """Write the weights of a session that change, and those that changed before; yields each as it is done.

    Where the provider can add to weights in its own memory, a product of two matrices, as a LoRA is, goes there as the
    two. It is added to the values of the model's file, never to those of another switch, so that no rounding stays.

    Args:
        session: one that was opened with ``options.adapters``.
        changed: names of the initializers that ``changes`` change.

    Raises:
        BadModelError: a file cannot be read, or a record is wrong.
        ParityError: a weight gets values that its dtype cannot hold.
        ProviderError: the provider fails.
    """
    weights = session.weights
    before = weights.changed
    # A weight that is written as a whole needs nothing of what it was.
    restored = [*(name for name in changed if weights.adds and name in before), *sorted(before.difference(changed))]
    with weights.restoring(restored) as wait:
        for name, values in _all_merged(session.component, weights, changed, changes):
            wait(name)
            if isinstance(values, tuple):
                _check_magnitude(session.component, name, weights.replaceable[name], weights.add(name, values))
            else:
                weights.write(name, values)
            yield name


def _all_merged(
    component: str, weights: ReplacedWeights, changed: Sequence[str], changes: Changes
) -> Iterator[tuple[str, Array | Factors]]:
    """The weights that change, in their order, with the differences of adapters; few are in memory at a time."""
    running: deque[tuple[str, Future[Array | Factors]]] = deque()
    known, compute = weights.replaceable, _added_or_merged if weights.adds else _merged
    pool = ThreadPoolExecutor(WORKERS, "sdort-adapters")
    try:
        for name in changed:
            running.append((name, pool.submit(compute, component, name, known[name], changes)))
            while len(running) > 2 * WORKERS or sum(known[name].stored.nbytes for name, _ in running) > IN_FLIGHT:
                first, future = running.popleft()
                yield first, future.result()
        for first, future in running:
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _added_or_merged(component: str, name: str, weight: ReplaceableWeight, changes: Changes) -> Array | Factors:
    """The factors of what is added to a weight, or the whole of it where that is no product.

    Raises:
        As :func:`_merged`.
    """
    factors = {}
    for parameter in changes.keys() & weight.parameters:
        own = [_scaled(difference.factors(), scale) for difference, scale in changes[parameter] if scale]
        if None in own:
            return _merged(component, name, weight, changes)
        factors[parameter] = [each for each in own if each]
    try:
        added = added_factors(decode_origin(weight.origin), factors)
    except UNREADABLE as error:
        raise bad_origin(component, name, str(error)) from error
    return _merged(component, name, weight, changes) if added is None else added


def _scaled(factors: Factors | None, scale: float) -> Factors | None:
    return factors and (factors[0] * np.float32(scale), factors[1])


def _check_magnitude(component: str, name: str, weight: ReplaceableWeight, largest: float) -> None:
    """Refuse sums that a weight's dtype cannot hold, unless the weight has such values itself.

    Args:
        largest: the largest magnitude before it was rounded.

    Raises:
        ParityError: it cannot.
    """
    dtype = weight.stored.dtype
    with np.errstate(over="ignore"):
        held = np.isfinite(np.float32(largest).astype(dtype))
    if not held and is_finite(weight.stored.load()):
        raise _too_large(component, name, dtype)


def _too_large(component: str, name: str, dtype: np.dtype[Any]) -> ParityError:
    return ParityError(
        f"with these adapters {name!r} has values that {dtype} cannot hold",
        component=component,
        hint="Take smaller scales, or a pipeline that was optimized without --fp16.",
    )


def _merged(component: str, name: str, weight: ReplaceableWeight, changes: Changes) -> Array:
    """A weight with the differences of adapters, as baking them into its parameters gives it.

    Raises:
        BadModelError: the record of what it is made of is wrong.
        ParityError: it has values that its dtype cannot hold.
    """
    stored = weight.stored.load()
    try:
        expression = decode_origin(weight.origin)
        if (expression.shape, expression.dtype) != (stored.shape, stored.dtype):
            raise ValueError(f"it is {expression}")
        parameters: dict[str, Weight] = {
            parameter: adapted(Inline(values), changes.get(parameter, ()))
            for parameter, values in parameter_values(expression, stored)
        }
        merged = decode(weight.origin, parameters).load()
    except UNREADABLE as error:
        raise bad_origin(component, name, str(error)) from error
    if not is_finite(merged) and is_finite(stored):
        raise _too_large(component, name, merged.dtype)
    return merged
