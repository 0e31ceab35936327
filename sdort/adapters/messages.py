"""Messages about an adapter that fits a pipeline."""

from __future__ import annotations

from sdort.adapters.adapter_file import Adapter
from sdort.console import warn
from sdort.errors.plain_text import cut, one_line

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
