"""An adapter's file (LoRA, LoHa, LoKr, DoRA, whole differences), read for the parameters of a pipeline.

A file comes from a stranger: its header is checked, values are read when they are needed, and a tensor that fits
nothing is listed, never dropped in silence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sdort.adapters.adapter_keys import foreign_kind, read_keys, why_unknown
from sdort.adapters.module_index import ModuleIndex, Parameters, Target, component_of
from sdort.adapters.peft_settings import PeftSettings, read_settings
from sdort.adapters.refusals import NO_MODULE, check_family, nothing_matches, other_adapter, refuse_other_kind
from sdort.adapters.weight_changes import Change, Parts, by_input, changes_of, magnitude_of
from sdort.adapters.weight_deltas import Delta, Factor, Form, Shape, Swapped
from sdort.checkpoints.safetensors import describe_tensors, read_header
from sdort.console import warn
from sdort.errors import BadModelError
from sdort.errors.plain_text import cut, one_line


@dataclass(frozen=True)
class Unmatched:
    """A tensor of an adapter that changes nothing of the pipeline."""

    key: str
    """Its name in the file."""
    reason: str
    """Why: the pipeline has no such module, its shape is another one, ..."""


@dataclass(frozen=True)
class Adapter:
    """An adapter's changes of a pipeline."""

    path: Path
    kinds: tuple[str, ...]
    """All that occur of ``LoRA``, ``LoHa``, ``LoKr``, ``DoRA``, ``difference``."""
    deltas: Mapping[str, Mapping[str, Delta]]
    """Component -> parameter -> its difference."""
    unmatched: tuple[Unmatched, ...]
    """Tensors that have no place in the pipeline, in the file's order."""

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem


def read_adapter(path: Path, parameters: Parameters) -> Adapter:
    """The adapter in a safetensors file, for a pipeline with these parameters.

    Args:
        parameters: component (``unet``, ``text_encoder``, ``text_encoder_2``) -> its parameters, as diffusers and
            transformers name them, with their shapes.

    Raises:
        UsageError: there is no such file.
        BadModelError: it is broken, no adapter, for another family of models, or nothing in it fits.
    """
    refuse_other_kind(path)
    header = read_header(path)
    factors = {name: Factor(name, values) for name, values in describe_tensors(header).items()}
    reading = _Reading(ModuleIndex(parameters), read_settings(path, header.notes))
    keys = read_keys(factors)
    incomplete = {key.rpartition(".")[0] for key in keys.unknown}
    foreign = {key: foreign_kind(key, len(factors[key].shape)) for key in keys.unknown}
    for key in keys.unknown:
        reading.leave_out({"": factors[key]}, why_unknown(key, len(factors[key].shape)))
    for module, named in keys.modules.items():
        parts = {part: factors[key] for part, key in named.items()}
        if module in incomplete:
            reading.leave_out(parts, "sdort does not know all parts of this change")
        else:
            reading.add(module, parts)
    check_family(path, reading.widths, parameters)
    if not reading.kinds and any(foreign.values()):
        raise other_adapter(path, sorted({kind for kind in foreign.values() if kind}))
    if not reading.kinds:
        reasons = Counter(entry.reason for entry in reading.unmatched)
        raise nothing_matches(path, header.shapes, len(keys.modules), parameters, reasons)
    order = {key: number for number, key in enumerate(factors)}
    unmatched = sorted(reading.unmatched, key=lambda entry: order[entry.key])
    return Adapter(path, tuple(sorted(reading.kinds)), reading.deltas, tuple(unmatched))


@dataclass
class _Reading:
    """The state of :func:`read_adapter`."""

    index: ModuleIndex
    settings: PeftSettings
    deltas: dict[str, dict[str, Delta]] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    unmatched: list[Unmatched] = field(default_factory=list)
    widths: Counter[int] = field(default_factory=Counter)
    """Widths of the texts that the adapted UNet attends to."""

    def leave_out(self, parts: Parts, reason: str) -> None:
        """List tensors as unmatched."""
        self.unmatched += [Unmatched(factor.name, reason) for factor in parts.values()]

    def add(self, module: str, parts: Parts) -> None:
        """Add the changes of a module, or list its tensors as unmatched."""
        changes = changes_of(parts)
        if isinstance(changes, str):
            self.leave_out(parts, changes)
            return
        if module.replace(".", "_").endswith("attn2_to_k"):
            self.widths.update(change.form.inputs for change in changes if change.leaf == "weight")
        meanings = self.index.find(module)
        planned = [deltas for meaning in meanings if (deltas := self._plan(module, meaning, parts, changes))]
        if len(planned) == 1:
            self._take(planned[0], changes, parts)
        elif planned:
            self.leave_out(parts, f"it fits {' and '.join(meaning[0].component for meaning in meanings)}")
        else:
            self.leave_out(parts, self._reason(module, meanings, changes))

    def _take(self, deltas: Mapping[tuple[str, str], Delta], changes: list[Change], parts: Parts) -> None:
        for (component, name), delta in deltas.items():
            known = self.deltas.setdefault(component, {})
            if name in known:
                factor = next(iter(parts.values()))
                raise BadModelError(
                    f"the adapter {factor.stored.path} changes {component}'s {name} twice, also by {factor.name!r}",
                    hint="The file holds two adapters: get another version of it.",
                )
            known[name] = delta
        self.kinds.update(change.kind for change in changes)
        self.kinds.update(["DoRA"] if magnitude_of(parts) else [])

    def _plan(
        self, module: str, meaning: list[Target], parts: Parts, changes: list[Change]
    ) -> dict[tuple[str, str], Delta] | None:
        """The differences of all parameters that one meaning of a module's name has; None where one does not fit."""
        planned = {}
        for target in meaning:
            for change in changes:
                name = f"{target.module}.{change.leaf}"
                shape = self.index.parameters[target.component].get(name)
                delta = self._delta(module, target, parts, change, tuple(shape)) if shape else None
                if delta is None:
                    return None
                planned[target.component, name] = delta
        return planned

    def _delta(self, module: str, target: Target, parts: Parts, change: Change, shape: Shape) -> Delta | None:
        rows, inputs = shape[0], math.prod(shape[1:])
        whole = target.whole or rows
        if (change.form.outputs, change.form.inputs) != (whole, inputs):
            return None
        form: Form = Swapped(change.form) if target.swapped else change.form
        factor = 1.0
        if change.rank and "alpha" in parts:
            factor = float(parts["alpha"].values().reshape(())) / change.rank
        elif change.kind != "difference" and "alpha" not in parts:
            factor = self.settings.factor(module, change.rank)
        magnitude = magnitude_of(parts) if change.leaf == "weight" else None
        if magnitude is None:
            return Delta(shape, form, factor, target.first)
        axis = by_input(parts, whole, shape)
        # A fused matrix has norms of its own only along its rows.
        return (
            None
            if axis is None or target.swapped or (axis and target.whole)
            else Delta(shape, form, factor, target.first, magnitude, axis)
        )

    def _reason(self, module: str, meanings: list[list[Target]], changes: list[Change]) -> str:
        """Why a module's change has no place."""
        component = component_of(module, self.index.parameters)
        if component and component not in self.index.parameters:
            return f"there is no {component}"
        if not meanings:
            return f"{component or 'the pipeline'} {NO_MODULE}"
        target, change = meanings[0][0], changes[0]
        shape = self.index.parameters[target.component].get(f"{target.module}.{change.leaf}")
        place = f"{target.component}'s {target.module}"
        if shape is None:
            return f"{place} has no {change.leaf}"
        return f"it is for {change.form.outputs} x {change.form.inputs} numbers, and {place} has {list(shape)}"


_SHOWN = 3
"""Tensors that a message names."""


def remark(adapter: Adapter) -> None:
    """Warn of an adapter that is without effect, and of its tensors that have no place in the pipeline."""
    deltas = [delta for deltas in adapter.deltas.values() for delta in deltas.values()]
    if all(delta.factor == 0 and not delta.needs_base for delta in deltas):
        warn(f"{adapter.name}: its alpha is 0, so that it changes nothing")
    if not adapter.unmatched:
        return
    shown = ", ".join(cut(one_line(entry.key)) for entry in adapter.unmatched[:_SHOWN])
    more = ", ..." if len(adapter.unmatched) > _SHOWN else ""
    count = "1 tensor has" if len(adapter.unmatched) == 1 else f"{len(adapter.unmatched)} tensors have"
    warn(f"{adapter.name}: {count} no place in this model: {shown}{more} ({adapter.unmatched[0].reason})")
