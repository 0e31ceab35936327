"""The tensors that are prepared before the steps: how many bytes stay in memory, found without opening anything.

The parts are those that :func:`sdort.runtime.session.open_session` makes of a file; shapes are inferred for the sizes
of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sdort.families.known_families import find_roles
from sdort.graph.fact import Fact
from sdort.onnx_io.component_file import ComponentFile
from sdort.operators import find_operator
from sdort.runtime.step.control_inputs_removed import remove_control_inputs
from sdort.runtime.step.preparation import ROWS
from sdort.runtime.step.step_split import StepSplit, split_step
from sdort.workload.samples import Sample, declared_inputs, fill_inputs, fixed_batch, no_values

_VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that keep the number of elements, and the type."""


@dataclass(frozen=True)
class PreparedTensor:
    """A tensor between two parts."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    """None where only the number of elements is known."""
    elements: int

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class Prepared:
    """Tensors prepared for some samples.

    Attributes:
        prompt: tensors made once for all prompts of a batch, with all their samples.
        step: tensors of one step, of the table that is made once for a schedule.
        unknown: names of further tensors, of which nothing says how large they are.
    """

    prompt: list[PreparedTensor]
    step: list[PreparedTensor]
    unknown: list[str]

    @property
    def prompt_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.prompt)

    @property
    def step_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.step)


def split_file(file: ComponentFile, control_inputs: bool = False) -> StepSplit | None:
    """The parts in which a file is opened; None where it is opened as one graph. They are shared: change none.

    Args:
        control_inputs: whether its inputs for control images stay (``RuntimeOptions.control_inputs``).

    Raises:
        BadModelError: as :attr:`ComponentFile.graph`.
    """
    if find_roles(file.signature.inputs) is None:
        return None
    return file.derived(_split, control_inputs)


def _split(file: ComponentFile, control_inputs: bool) -> StepSplit | None:
    model = file.copy()
    if not control_inputs:
        remove_control_inputs(model, file.component)
    return split_step(model)


def prepared_tensors(split: StepSplit, component: str, sample: Sample) -> Prepared:
    """Tensors prepared for the samples of a batch.

    Args:
        sample: the batch, the latents' height and width, and the prompts' tokens, where the model leaves them open.

    Raises:
        BadModelError: nothing says how large an input is.
    """
    prompt = _prompt_tensors(split.prompt, component, sample) if split.prompt else {}
    times = split.time.graph.output if split.time else ()
    return Prepared(
        [tensor for tensor in prompt.values() if tensor],
        [_rows(info, sample.batch if info.name in split.each_sample else 1) for info in times],
        [name for name, tensor in prompt.items() if tensor is None],
    )


def rows_bytes(split: StepSplit | None) -> int:
    """Bytes of the rows that the part of the timesteps makes at once; its session keeps the memory for later ones."""
    return sum(_rows(info, ROWS).bytes for info in split.time.graph.output) if split and split.time else 0


def _rows(info: onnx.ValueInfoProto, count: int) -> PreparedTensor:
    tensor = info.type.tensor_type
    shape = (count, *(dim.dim_value for dim in tensor.shape.dim[1:]))
    return PreparedTensor(info.name, helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape, math.prod(shape))


def _prompt_tensors(part: onnx.ModelProto, component: str, sample: Sample) -> dict[str, PreparedTensor | None]:
    """The outputs of the prompts' part, for all samples also where it is fixed to fewer at once; None where nothing
    says how large one is."""
    inputs = declared_inputs(part, component)
    batch = fixed_batch(inputs, sample)
    shapes = fill_inputs(inputs, replace(sample, batch=batch), component, no_values)
    types = _inferred(part, {name: values.shape for name, values in shapes.items()})
    sources = {node.output[0]: node.input[0] for node in part.graph.node if node.op_type in _VIEWS and not node.domain}
    made: dict[str, PreparedTensor | None] = {}
    for info in part.graph.output:
        name, shape = info.name, _known_shape(types, info.name)
        while shape is None and name in sources:  # exporters compute a head's size from tensors
            name = sources[name]
            shape = _known_shape(types, name)
        if shape is None:
            made[info.name] = None
            continue
        dtype = helper.tensor_dtype_to_np_dtype(types[name][0])
        whole = (sample.batch * shape[0] // batch, *shape[1:]) if shape else ()
        own = whole if name == info.name else None
        made[info.name] = PreparedTensor(info.name, dtype, own, math.prod(whole))
    return made


Types = dict[str, tuple[int, tuple[int | None, ...]]]
"""Element type and shape by name; None stands for a size that is not known."""


def _known_shape(types: Types, name: str) -> tuple[int, ...] | None:
    shape = types[name][1] if name in types else (None,)
    sizes = tuple(size for size in shape if size is not None)
    return sizes if len(sizes) == len(shape) else None


def _inferred(part: onnx.ModelProto, inputs: Mapping[str, tuple[int, ...]]) -> Types:
    """Element type and shape of a graph's tensors by name, as far as ONNX and the operators' files tell."""
    model = onnx.ModelProto()
    model.CopyFrom(part)
    for info in model.graph.input:
        if info.name in inputs:
            info.CopyFrom(helper.make_tensor_value_info(info.name, info.type.tensor_type.elem_type, inputs[info.name]))
    while True:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        types = {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.type.tensor_type.HasField("shape"):
                dims = info.type.tensor_type.shape.dim
                types[info.name] = info.type.tensor_type.elem_type, tuple(dim.dim_value or None for dim in dims)
        learned = [info for node in graph.node for info in _made_by(node, types)]
        if not learned:
            return types
        model.graph.value_info.extend(learned)


def _made_by(node: onnx.NodeProto, types: Types) -> list[onnx.ValueInfoProto]:
    """The first output of an operator that ONNX does not know, where it is new and its inputs are known."""
    operator = find_operator(node.domain, node.op_type)
    names = [name for name in node.input if name]
    if operator is None or node.output[0] in types or not all(name in types for name in names):
        return []
    dtypes = {name: helper.tensor_dtype_to_np_dtype(types[name][0]) for name in names}
    facts = [Fact(dtypes[name], _known_shape(types, name)) if name else None for name in node.input]
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    made = operator.infer(operator.call(facts, map(bool, node.output), attributes))[0]
    sizes = [size for size in made.shape or () if isinstance(size, int)]
    if made.shape is None or made.dtype is None or len(sizes) < len(made.shape):
        return []
    return [helper.make_tensor_value_info(node.output[0], helper.np_dtype_to_tensor_dtype(made.dtype), sizes)]
