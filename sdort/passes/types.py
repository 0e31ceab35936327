"""Whether the types of a graph fit together, by the operators' schemas: ONNX Runtime loads no other graph."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto, defs, helper

from sdort.errors import BadModelError
from sdort.passes.half import float32_inputs
from sdort.rewrite.editor import Editor
from sdort.rewrite.match import is_float


def check(editor: Editor, opset: int, hint: str, *, foreign: bool = False) -> None:
    """Refuse a node whose inputs are of types that its operator does not take, or does not take together.

    Args:
        opset: of the default domain, by whose schemas the nodes are judged.
        hint: what to do next.
        foreign: the graph is as another tool made it, for any provider. Olive gives a GroupNorm for DirectML weights in
            fp16, which the others' kernels read as fp32.

    Raises:
        BadModelError: naming the node, its input and the types.
    """
    for node in editor.graph.nodes:
        problem = _microsoft(node, editor, foreign) if node.domain else _standard(node, editor, opset)
        if problem:
            raise BadModelError(problem, component=editor.model.component, node=node.name, hint=hint)
    for output in editor.graph.outputs:
        dtype = editor.dtype(output)
        if dtype is not None and output.dtype is not None and dtype != np.dtype(output.dtype):
            problem = f"output {output.name!r} is declared {np.dtype(output.dtype)} and computed as {dtype}"
            raise BadModelError(problem, component=editor.model.component, node=output.name, hint=hint)


QUANTIZED = re.compile(r"[Qq]uantize|^Q[A-Z]|Integer|^MatMul(NBits|Bnb4|FpQ4)")
"""Operators that make, or compute with, numbers in a quantized form: ONNX's and ONNX Runtime's."""


def refuse_types(editor: Editor) -> None:
    """Refuse what sdort does not compute in: bfloat16, and quantized numbers.

    Weights that are only stored in such a form are not meant: their DequantizeLinear or Cast is folded before.

    Raises:
        BadModelError: naming the first node that does.
    """
    for node in editor.graph.nodes:
        if QUANTIZED.search(node.op):
            raise BadModelError(
                f"this {node.op} computes in a quantized form, whose rounding is not what fused operators round",
                component=editor.model.component,
                node=node.name,
                hint="Optimize the model that this one was quantized from.",
            )
        dtypes = {dtype.name for t in (*node.inputs, *node.outputs) if (dtype := editor.dtype(t)) is not None}
        if "bfloat16" in dtypes:
            raise BadModelError(
                f"this {node.op} computes in bfloat16, of which ONNX Runtime's providers have no convolutions and "
                "fused norms",
                component=editor.model.component,
                node=node.name,
                hint="Export the model in float32; --bf16 then computes in bfloat16 on migraphx, --fp16 in float16.",
            )


@lru_cache(maxsize=512)
def _parameters(op: str, opset: int) -> tuple[tuple[tuple[str, frozenset[str]], ...], bool] | None:
    """For each input its type parameter and the types that this may be; and whether the last input may repeat."""
    if not defs.has(op, opset):
        return None
    schema = defs.get_schema(op, opset)
    allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    last = schema.inputs[-1] if schema.inputs else None
    variadic = last is not None and last.option == defs.OpSchema.FormalParameterOption.Variadic
    if variadic and last is not None and not last.is_homogeneous:
        return None
    return tuple((i.type_str, allowed.get(i.type_str, frozenset({i.type_str}))) for i in schema.inputs), variadic


def untaken(node: gs.Node, editor: Editor, opset: int) -> str | None:
    """The input or output of a standard node whose type its operator does not take in ``opset``, or None."""
    for index, tensor, dtype, _, allowed in _typed(node, editor, opset):
        if _text(dtype) not in allowed:
            return f"input {index} of this {node.op} ({tensor.name!r}) is {dtype}, which it does not take"
    for index, (tensor, types) in enumerate(zip(node.outputs, _results(node.op, opset), strict=False)):
        result = editor.dtype(tensor) if tensor.name else None
        if result is not None and _text(result) not in types:
            return f"output {index} of this {node.op} ({tensor.name!r}) is {result}, which it does not give"
    return None


@lru_cache(maxsize=512)
def _results(op: str, opset: int) -> tuple[frozenset[str], ...]:
    """The types that each output may have."""
    return tuple(frozenset(o.types) for o in defs.get_schema(op, opset).outputs) if defs.has(op, opset) else ()


def _standard(node: gs.Node, editor: Editor, opset: int) -> str | None:
    bound: dict[str, np.dtype[Any]] = {}
    for index, tensor, dtype, name, _ in _typed(node, editor, opset):
        if bound.setdefault(name, dtype) != dtype:
            return f"input {index} of this {node.op} ({tensor.name!r}) is {dtype}, another is {bound[name]}"
    return untaken(node, editor, opset)


def _typed(
    node: gs.Node, editor: Editor, opset: int
) -> Iterator[tuple[int, gs.Tensor, np.dtype[Any], str, frozenset[str]]]:
    """For each input whose type is known: index, tensor, type, the operator's type parameter and what that may be."""
    parameters, variadic = _parameters(node.op, opset) or ((), False)
    for index, tensor in enumerate(node.inputs):
        dtype = editor.dtype(tensor) if tensor.name else None
        if dtype is not None and (index < len(parameters) or variadic):
            yield index, tensor, dtype, *parameters[min(index, len(parameters) - 1)]


def _text(dtype: np.dtype[Any]) -> str:
    name = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(dtype)).lower()
    return f"tensor({name})"


def _microsoft(node: gs.Node, editor: Editor, foreign: bool) -> str | None:
    """The problem of a node of ONNX Runtime's own: all floats have to be alike but for those that are fp32."""
    single = float32_inputs(node)
    first: np.dtype[Any] | None = None
    for index, tensor, dtype in _floats(node, editor):
        expected = np.dtype(np.float32) if index in single else first
        if expected is not None and dtype != expected and not (foreign and index in single and dtype == first):
            return f"input {index} of this {node.op} ({tensor.name!r}) is {dtype}, not {expected}"
        first = first or (None if index in single else dtype)
    return None


def _floats(node: gs.Node, editor: Editor) -> Iterator[tuple[int, gs.Tensor, np.dtype[Any]]]:
    for index, tensor in enumerate(node.inputs):
        dtype = editor.dtype(tensor) if tensor.name else None
        if dtype is not None and is_float(dtype):
            yield index, tensor, dtype
