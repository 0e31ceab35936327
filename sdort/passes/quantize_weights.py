"""Weights of linear layers in 8 or 4 bits: MatMul and Gemm become com.microsoft.MatMulNBits.

Activations stay as they are, so that nothing is calibrated. Kept are, by the graph's structure and not by names:

* the first layer on the sample's way and the last one before an output: what they lose nothing later makes good;
* what is computed of the timestep or of a prompt's vector alone, as modulations are: a few rows that steer all others,
  and their weights leave the step anyway (:mod:`sdort.runtime.step.step_split`);
* convolutions, norms, embeddings, and matrices that would hardly get smaller.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from sdort.families.component_names import DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.families.known_families import find_roles
from sdort.graph.domains import MICROSOFT
from sdort.graph.group_quantized import GroupFormat, Integers, Scales, ZeroPoints, turned
from sdort.graph.model import Model
from sdort.graph.operator import Category
from sdort.graph.weights import Weight
from sdort.operators import of_category
from sdort.rewrite.editor import Editor

_OTHERS = frozenset({DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER})
"""Components with hardly a linear layer, or whose answer is a decision: they stay as they are."""
_LINEAR = frozenset({"MatMul", "Gemm"})
_WORTH = 0.75
"""The part of a matrix's bytes that it may have left at most."""

FIRST, LAST = "the first layer of the sample", "the last layer"
STEERING = "computed of no sample and no prompt's tokens"
SMALL = "hardly smaller so"


@dataclass(frozen=True)
class QuantizedWeights:
    """Linear layers whose weights are integers, and those that kept theirs.

    Attributes:
        form: how they are stored: ``int8`` or ``int4``, and the group.
        layers: how many are.
        bytes_before: of their weights.
        bytes_after: of their integers, scales and zero points.
        kept: reason -> how many layers kept their weights for it.
    """

    form: str
    layers: int
    bytes_before: int
    bytes_after: int
    kept: dict[str, int]


def has_integers(model: Model) -> bool:
    """Whether the component's linear layers get integers at all."""
    return model.component not in _OTHERS


def run(editor: Editor, form: GroupFormat) -> QuantizedWeights:
    """Store the weights of the model's linear layers in integers, in place."""
    layers, reasons = _chosen(editor.model, form)
    done = QuantizedWeights(f"int{form.bits}, groups of {form.group}", len(layers), *_sizes(layers, form), reasons)
    for node in layers:
        _quantize(editor, node, form)
    editor.finish()
    return done


def saved_bytes(model: Model, form: GroupFormat, *, half: bool) -> int:
    """The bytes that integers save at least of a model that was not fused yet.

    Args:
        half: its floats are in fp16, or will be.
    """
    before, after = _sizes(_chosen(model, form)[0], form, half=half)
    return before - after


def _sizes(layers: Sequence[gs.Node], form: GroupFormat, *, half: bool = False) -> tuple[int, int]:
    """Bytes of the matrices of layers, each once, and of their integers, scales and zero points."""
    before = after = 0
    for node in {id(node.inputs[1]): node for node in layers}.values():
        itemsize = 2 if half else node.inputs[1].dtype.itemsize
        before += itemsize * math.prod(node.inputs[1].shape)
        after += form.stored_bytes(*_rows_and_columns(node), itemsize)
    return before, after


def _rows_and_columns(node: gs.Node) -> tuple[int, int]:
    """How many outputs and inputs a layer has."""
    columns, rows = node.inputs[1].shape if not node.attrs.get("transB") else node.inputs[1].shape[::-1]
    return rows, columns


def _chosen(model: Model, form: GroupFormat) -> tuple[list[gs.Node], dict[str, int]]:
    """The layers that get integers, and why how many others keep their weights."""
    kept, chosen, reasons = _kept(model.graph), list[gs.Node](), Counter[str]()
    for node in _linear_layers(model.graph) if has_integers(model) else ():
        before, after = _sizes([node], form)
        small = after > _WORTH * before
        if reason := kept.get(id(node)) or (SMALL if small else None):
            reasons[reason] += 1
        else:
            chosen.append(node)
    return chosen, dict(reasons)


def _linear_layers(graph: gs.Graph) -> Iterator[gs.Node]:
    """Products of activations with a matrix of the model."""
    for node in list(graph.nodes):
        if node.op not in _LINEAR or node.domain or node.attrs.get("transA"):
            continue
        if node.attrs.get("alpha", 1.0) != 1.0 or node.attrs.get("beta", 1.0) != 1.0:
            continue
        values = getattr(node.inputs[1], "_values", None)
        if isinstance(values, Weight) and len(values.shape) == 2 and values.dtype in (np.float32, np.float16):
            yield node


def _kept(graph: gs.Graph) -> dict[int, str]:
    """The nodes with a matrix or filters that keep it, and why."""
    weighted = of_category(Category.PRODUCT, Category.CONVOLUTION) | _LINEAR | {"Conv"}
    roles = find_roles([tensor.name for tensor in graph.inputs])
    kept: dict[int, str] = {}
    if roles:
        content = {roles.sample, roles.context}
        moved = {tensor.name for tensor in graph.inputs if tensor.name in content}
        untouched = {roles.sample}
        for node in graph.nodes:
            if node.op in ("Shape", "Size"):  # how large the sample is says nothing of it
                continue
            read, made = ({tensor.name for tensor in ends if tensor.name} for ends in (node.inputs, node.outputs))
            is_weighted = node.op in weighted
            if is_weighted and not read & moved:
                kept[id(node)] = STEERING
            elif is_weighted and read & untouched:
                kept[id(node)] = FIRST
            moved |= made if read & moved else set()
            untouched |= made if read & untouched and not is_weighted else set()
    before: set[str] = set()
    for node in reversed(graph.nodes):
        leads_on = any(tensor.name in before for tensor in node.outputs)
        if node.op in weighted and not leads_on:
            kept.setdefault(id(node), LAST)
        before |= {tensor.name for tensor in node.inputs} if leads_on or node.op in weighted else set()
    return kept


def _quantize(editor: Editor, node: gs.Node, form: GroupFormat) -> None:
    rows, columns = _rows_and_columns(node)
    constant = node.inputs[1]
    matrix = constant._values if node.attrs.get("transB") else turned(constant._values)
    dtype = constant._values.dtype
    parts = {"integers": Integers(matrix, form, dtype), "scales": Scales(matrix, form, dtype)}
    if not form.symmetric:
        parts["zeros"] = ZeroPoints(matrix, form, dtype)
    stored = [editor.constant(part, f"{constant.name}.{name}") for name, part in parts.items()]
    attributes = {"K": columns, "N": rows, "bits": form.bits, "block_size": form.group}
    inputs, bias, output = [node.inputs[0], *stored], node.inputs[2:3], node.outputs[0]
    if bias and bias[0].name:
        product = editor.op("MatMulNBits", inputs, attributes, domain=MICROSOFT)
        editor.node("Add", [product, *bias], outputs=[output])
    else:
        editor.node("MatMulNBits", inputs, attributes, outputs=[output], domain=MICROSOFT)
