"""Adapters (LoRA and its kin) put into the weights of an export, while these are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdort.adapters.adapted_weight import adapted
from sdort.adapters.adapter_choice import AdapterChoice
from sdort.adapters.adapter_file import Adapter, Unmatched, read_adapter, remark
from sdort.adapters.module_index import ADAPTED
from sdort.console import say
from sdort.errors import UsageError
from sdort.files.file_digest import file_digest
from sdort.graph.weights import Weight

Tensors = Mapping[str, Mapping[str, Weight]]
"""Folder of a checkpoint -> its tensors."""


@dataclass(frozen=True)
class AppliedAdapter:
    """An adapter in the weights of an export."""

    name: str
    """The file's name without its ending."""
    scale: float
    """The factor of its differences."""
    kinds: tuple[str, ...]
    """``LoRA``, ``LoHa``, ``LoKr``, ``DoRA``, ``difference``: all that occur in it."""
    changed: dict[str, int]
    """Component -> number of weights that it changes."""
    unmatched: tuple[Unmatched, ...]
    """Its tensors that have no place in the pipeline."""
    path: str
    """The file as the user named it."""
    sha256: str
    """The hash of the file."""


def apply_adapters(choices: Sequence[AdapterChoice], tensors: Tensors) -> tuple[Tensors, list[AppliedAdapter]]:
    """The tensors with adapters in them, described and not computed, and what was applied.

    Raises:
        UsageError: a file does not exist.
        BadModelError: one is broken, no adapter, or for another family of models.
    """
    shapes = {
        folder: {name: weight.shape for name, weight in tensors[folder].items()}
        for folder in ADAPTED
        if folder in tensors
    }
    refused = next((choice for choice in choices if choice.text_scale is not None), None)
    if refused:
        raise UsageError(f"--lora {refused.path}: an export takes one scale for the UNet and the text encoders")
    adapters = [(read_adapter(choice.path, shapes), choice.scale) for choice in choices]
    changed = {
        folder: {
            name: adapted(
                weight, [(a.deltas[folder][name], s) for a, s in adapters if name in a.deltas.get(folder, {})]
            )
            for name, weight in weights.items()
        }
        for folder, weights in tensors.items()
    }
    return changed, [_applied(adapter, scale) for adapter, scale in adapters]


def _applied(adapter: Adapter, scale: float) -> AppliedAdapter:
    if not scale:
        say(f"{adapter.name}: its scale is 0, so that it changes nothing")
    remark(adapter)
    counts = {component: len(deltas) for component, deltas in adapter.deltas.items()}
    weights = " and ".join(f"{count} weights of {component}" for component, count in counts.items())
    say(f"{adapter.name}: {' and '.join(adapter.kinds)} at scale {scale:g}, which changes {weights}")
    path = adapter.path
    return AppliedAdapter(adapter.name, scale, adapter.kinds, counts, adapter.unmatched, str(path), file_digest(path))
