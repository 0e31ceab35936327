"""The record of what a model's weights are made of: each initializer as an expression over a checkpoint's parameters.

Exporters rename and transpose weights, fusions pack and scale them. Whoever wants to change a parameter of a finished
model, as an adapter does, finds here where it went. The record lies in the model's metadata, where no copy of the file
loses it. :mod:`sdort.onnx_io.expression_json` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sdort.files.json_text import parse_json
from sdort.graph.stored_values import StoredValues

if TYPE_CHECKING:
    from sdort.graph.weights import Unwritten

ORIGINS_KEY = "sdort.weights"
"""In the model's ``metadata_props``. Some 200 bytes a weight: 60 KB for a UNet of Stable Diffusion 1.5."""

Expression = dict[str, Any]
"""A weight as JSON."""

Region = tuple[str, int, tuple[int, ...], str]
"""Stored values: their file, offset in bytes, shape and dtype."""


def region_of(values: StoredValues | Unwritten) -> Region:
    """The region of a file in which values lie, and how they are read."""
    return str(values.path), values.offset, values.shape, values.dtype.name


def read_origins(metadata: Mapping[str, str]) -> dict[str, Expression]:
    """Initializer -> what it is made of; empty without a record, or with a damaged one.

    Expressions are not looked at: :func:`sdort.onnx_io.expression_json.decode_origin` refuses what is none.
    """
    try:
        record = parse_json(metadata.get(ORIGINS_KEY, "{}").encode())
    except ValueError:
        return {}
    entries = record.items() if isinstance(record, dict) else ()
    return {name: origin for name, origin in entries if isinstance(origin, dict)}


def leaves_of(entry: Expression) -> Iterator[Expression]:
    """The parameters of an expression as they stand in it, as often as they occur."""
    if "parameter" in entry:
        yield entry
    for value in entry.values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from leaves_of(part)


def parameters_of(entry: Expression) -> Iterator[str]:
    """The names of all parameters of an expression, as often as they occur."""
    return (leaf["parameter"] for leaf in leaves_of(entry))


def shapes_of(entry: Expression) -> dict[str, tuple[int, ...]]:
    """The parameters of a recorded expression with their shapes.

    Raises:
        ValueError: a parameter has none.
    """
    return dict(map(_shape, leaves_of(entry)))


def _shape(leaf: Expression) -> tuple[str, tuple[int, ...]]:
    name, shape = leaf["parameter"], leaf.get("shape")
    whole = isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
    if not isinstance(name, str) or not isinstance(shape, list) or not whole:
        raise ValueError(f"{str(name)[:80]!r} of shape {str(shape)[:80]} is no parameter")
    return name, tuple(shape)
