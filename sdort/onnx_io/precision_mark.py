"""The mark of a model that was made for bf16, or whose linear layers have integers as weights.

MIGraphX rounds an fp32 model's weights and results to bf16 itself when it compiles it. Such a model is an fp32 model,
whose metadata says ``bf16``: :mod:`sdort.providers.bf16` sets the provider's option when it is opened. Of integers
the mark says how many bits they have, ``int8`` or ``int4``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from sdort.errors import BadModelError
from sdort.onnx_io.component_file import read_component
from sdort.options.integer_weights import INTEGERS

PRECISION_KEY = "sdort.precision"
"""In the model's ``metadata_props``, with the value :data:`BF16` or one of :data:`INTEGERS`."""
BF16 = "bf16"


def says_bf16(model: onnx.ModelProto) -> bool:
    """Whether a model was made for bf16."""
    return any(entry.key == PRECISION_KEY and entry.value == BF16 for entry in model.metadata_props)


def made_for_bf16(path: Path) -> bool:
    """:func:`says_bf16` of a file; what cannot be read was made for nothing, and who opens it says why."""
    try:
        return read_component(path).metadata.get(PRECISION_KEY) == BF16
    except BadModelError:
        return False


def integers_of(metadata: Mapping[str, str]) -> str | None:
    """The mark of a model whose linear layers have integers as weights, from its metadata; None for another one."""
    mark = metadata.get(PRECISION_KEY)
    return mark if mark in INTEGERS else None


def coarsest_dtype(model: onnx.ModelProto) -> str:
    """The precision whose limits hold: ``int8`` or ``int4`` of integers, else :func:`stored_dtype`."""
    return integers_of({entry.key: entry.value for entry in model.metadata_props}) or stored_dtype(model)


def stored_dtype(model: onnx.ModelProto) -> str:
    """``float16`` if any weight is, ``bfloat16`` if the model was made for that, else ``float32``."""
    if says_bf16(model):
        return "bfloat16"
    half = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)
    return "float16" if half else "float32"
