"""The graph of a UNet in parts: what every step computes, and what is computed once, before the steps.

Three parts, by what each depends on. ``prompt`` depends on neither the values of the latents nor the timestep: keys and
values of cross-attention, those of IP-Adapters, SDXL's embeddings of texts and sizes, a ControlNet's embedding of its
image, and what the latents' height and width alone decide, such as the positions of a transformer's tokens.
``time`` depends on the timestep too, row by row (:mod:`sdort.runtime.step.rowwise`), so that it takes the timesteps of
a whole schedule as the rows of one batch: the time embedding and its projections. ``step`` is the rest, with what the
others make as inputs. No names of nodes or weights are looked at; weights are not read, and each goes to the parts that
read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, TensorProto, helper

from sdort.families.known_families import find_roles, roles_of
from sdort.graph.signature import TensorSpec
from sdort.onnx_io.branches import outer_names
from sdort.onnx_io.component_file import declared_inputs
from sdort.runtime.step.rowwise import Rows, free_rows, same_rows
from sdort.workload.steering_inputs import is_residual

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
"""Types of what is prepared: integers are shapes, which a provider wants in the host's memory."""
_INTEGERS = frozenset({"NonZero", "Range", "Shape", "Size"})
_CONDITIONS = frozenset({"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not",
                         "Or", "Xor"})  # fmt: skip
_RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                     "RandomUniformLike"})  # fmt: skip
_ALIASES = frozenset({"Cast", "Expand", "Identity", "Reshape", "Unsqueeze"})
"""Operators that a timestep passes through on its way to one for each sample."""
_ORDERS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that keep the elements, in another order or type."""


@dataclass(frozen=True)
class StepSplit:
    """The parts of a graph; a tensor that one part makes and another one reads has the same name in both.

    Attributes:
        inputs: the whole graph's.
        prompt, time: None where nothing is prepared so.
        each_sample: outputs of ``time`` with a row for each sample of a step; the others have one for all.
    """

    inputs: Mapping[str, TensorSpec]
    prompt: onnx.ModelProto | None
    time: onnx.ModelProto | None
    step: onnx.ModelProto
    each_sample: frozenset[str]


def split_step(model: onnx.ModelProto) -> StepSplit | None:
    """The parts of a graph whose nodes are in topological order; None where all of it is of every step.

    The parts share nothing with ``model``, and its external data stays where it is.
    """
    inputs = graph_inputs(model.graph)
    if find_roles(inputs) is None:
        return None
    found = _Dependences(model, inputs)
    prompt, rows = found.prompt_tensors(), found.timed_rows()
    parts = Parts(model, inputs, found.types, found.shapes)
    outputs = [info.name for info in model.graph.output]
    step = parts.needed(outputs, prompt | rows.made)
    if {*outputs} & (prompt | rows.made) or not step.cut:
        return None
    timed = [name for name in step.cut if name in rows.made]
    time = parts.needed(timed, prompt, stops={*rows.clock})
    given = [name for name in dict.fromkeys([*step.cut, *time.cut]) if name in prompt]
    return StepSplit(
        declared_inputs(model),
        parts.model("prompt", parts.needed(given, set()), given) if given else None,
        parts.time_model(time, timed, rows) if timed else None,
        parts.model("step", step, outputs),
        frozenset(name for name in timed if name in rows.each_sample),
    )


@dataclass(frozen=True)
class _TimedRows:
    """Tensors that are made of timesteps row by row.

    Attributes:
        made: all tensors, without those of ``clock``.
        clock: tensors that are the timestep itself, in some type, one or one for each sample.
        each_sample: those with a row for each sample.
        shapes: the shape of a row by tensor.
    """

    made: set[str]
    clock: set[str]
    each_sample: set[str]
    shapes: Mapping[str, tuple[int, ...]]


class _Dependences:
    """Dependence of each tensor of a graph on the inputs."""

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, onnx.ValueInfoProto]) -> None:
        self.graph = model.graph
        self.inputs = inputs
        roles = roles_of(inputs)
        self.sample, self.timestep = roles.sample, roles.timestep
        changing = {name for name in inputs if name == self.sample or is_residual(name)}
        self.sizes = self._sizes_of_latents()
        self.types, self.shapes = tensor_types(model, inputs, self._shape_arithmetic(changing))
        self.known = Rows(constants_of(self.graph))
        self.clock, self.one_each = self._timesteps()
        self.of_time = self._after({self.timestep})
        self.of_inputs = self._after(set(inputs))
        self.of_latents = self._after(changing)
        """Without the timesteps, of which the latents say no more than how many there are."""

    def _after(self, names: set[str]) -> set[str]:
        """``names`` and all that depends on one of them; nodes that never give the same depend on all."""
        found = set(names)
        of_values = self.timestep not in names and len(names) < len(self.inputs)
        for node in self.graph.node:
            if of_values and not self.sizes.isdisjoint(node.output):
                continue
            varies = node.op_type in _RANDOM or _has_graph(node)
            counts = self.timestep not in names and not self.clock.isdisjoint(node.output)
            if varies or not (counts or found.isdisjoint(node.input)):
                found.update(node.output)
        return found

    def _sizes_of_latents(self) -> set[str]:
        """Dimensions of the latents, whatever the order of their elements: every step has the same."""
        latents, found = {self.sample}, set()
        for node in self.graph.node:
            if node.input and node.input[0] in latents and not node.domain:
                if node.op_type in _ORDERS:
                    latents.add(node.output[0])
                elif node.op_type in ("Shape", "Size"):
                    found.add(node.output[0])
        return found

    def _shape_arithmetic(self, changing: set[str]) -> list[onnx.NodeProto]:
        """The nodes that need no values of the latents, but their dimensions at most."""
        direct, values, kept = set(changing), set(changing), []
        for node in self.graph.node:
            of_values = values.intersection(node.input)
            if not of_values or (of_values <= direct and node.op_type in (*_ORDERS, "Shape", "Size")):
                kept.append(node)
                if of_values and node.op_type in _ORDERS:
                    direct.add(node.output[0])
                    values.add(node.output[0])
            else:
                values.update(node.output)
        return kept

    def prompt_tensors(self) -> set[str]:
        """Floats that depend on inputs, and on neither the latents nor the timestep."""
        never = self.of_latents | self.of_time
        names = {name for node in self.graph.node for name in node.output} & self.of_inputs
        return {name for name in names - never if self.types.get(name) in _FLOATS}

    def _timesteps(self) -> tuple[set[str], set[str]]:
        """Tensors that are the timestep itself, and those of them that have one for each sample."""
        declared, batch = self.shapes.get(self.timestep, (None, None)), self.shapes[self.sample]
        if len(declared) > 1:
            return set(), set()
        clock, each = {self.timestep}, {self.timestep} if same_rows(declared, batch) else set()
        if declared:
            self.known.rows[self.timestep] = ()
        for node in self.graph.node:
            if node.input and node.input[0] in clock and self._is_clock(node):
                clock.add(node.output[0])
                each |= {node.output[0]} if node.op_type == "Expand" or node.input[0] in each else set()
        return clock, each

    def timed_rows(self) -> _TimedRows:
        """Tensors that are made of timesteps row by row."""
        known, made, each = self.known, set(), set(self.one_each)
        for name, shape in self.shapes.items():
            sizes = tuple(size for size in shape[1:] if isinstance(size, int))
            rows = same_rows(shape, self.shapes[self.sample]) and len(sizes) == len(shape) - 1
            if rows and name not in self.of_time | self.of_latents:
                known.rows[name] = sizes
                each.add(name)
        for node in self.graph.node:
            outputs, others = set(filter(None, node.output)), self.clock | self.of_latents
            if self.of_time.isdisjoint(outputs) or not others.isdisjoint(outputs) or not known.add(node):
                continue
            made |= outputs
            each |= outputs if each.intersection(node.input) else set()
        floats = {name for name in made if self.types.get(name) in _FLOATS}
        return _TimedRows(floats, self.clock, each, known.rows)

    def _is_clock(self, node: onnx.NodeProto) -> bool:
        """Whether a node whose first input is the timestep gives the timestep, one or one for each sample."""
        known = self.known
        if node.domain or node.op_type not in _ALIASES:
            return False
        rank = 0 if node.input[0] not in known.rows else 1
        if node.op_type in ("Reshape", "Unsqueeze"):
            target = known.ints(node.input[1]) if len(node.input) > 1 else None
            if target is None or len(target) != 1 or (node.op_type == "Unsqueeze" and rank):
                return False
            rank = 1
        elif node.op_type == "Expand":
            shape = self.shapes.get(node.output[0])
            if shape is None or len(shape) != 1:
                return False
            rank = 1
        if rank:
            known.rows[node.output[0]] = ()
        return True


@dataclass(frozen=True)
class Needed:
    """Nodes that some tensors need, the graph's inputs that these read, and the tensors at which they begin."""

    nodes: list[onnx.NodeProto]
    inputs: list[str]
    cut: list[str]


class Parts:
    """Cuts models out of one."""

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Mapping[str, onnx.ValueInfoProto],
        types: Mapping[str, int],
        shapes: Mapping[str, Sequence[object]],
    ) -> None:
        self._whole = model
        self._inputs = inputs
        self._types = types
        self._shapes = shapes
        self._makers = {name: index for index, node in enumerate(model.graph.node) for name in node.output if name}

    def needed(self, names: Iterable[str], given: set[str], stops: Collection[str] = ()) -> Needed:
        """Nodes that ``names`` need; tensors in ``given`` are not computed, nor are ``stops``,
        which are not listed either."""
        indices, seen, cut, stack = set(), set(), set(), list(names)
        while stack:
            name = stack.pop()
            if name in seen or not name:
                continue
            seen.add(name)
            if name in given and name not in names:
                cut.add(name)
            elif name in self._makers and name not in stops:
                node = self._whole.graph.node[self._makers[name]]
                indices.add(self._makers[name])
                stack.extend([*node.input, *outer_names(node)])
        order = [name for node in self._whole.graph.node for name in node.output if name in cut]
        inputs = [name for name in self._inputs if name in seen]
        return Needed([self._whole.graph.node[index] for index in sorted(indices)], inputs, order)

    def model(self, kind: str, part: Needed, outputs: Iterable[str]) -> onnx.ModelProto:
        """A part as a model."""
        graph = onnx.GraphProto(name=f"{self._whole.graph.name}.{kind}")
        graph.node.extend(part.nodes)
        graph.input.extend([*(self._inputs[name] for name in part.inputs), *map(self._declared, part.cut)])
        own = {info.name: info for info in self._whole.graph.output}
        graph.output.extend(own[name] if name in own else self._declared(name) for name in outputs)
        made = {name for node in part.nodes for name in node.output} - {info.name for info in graph.output}
        graph.value_info.extend(_of_any_sizes(info) for info in self._whole.graph.value_info if info.name in made)
        return self._with_constants(graph)

    def time_model(self, part: Needed, outputs: Iterable[str], rows: _TimedRows) -> onnx.ModelProto:
        """The part that takes a row for each timestep, and rows of the other part's tensors beside it."""
        graph = onnx.GraphProto(name=f"{self._whole.graph.name}.time")
        names = {name for node in part.nodes for name in node.input}
        for node in [node for node in self._whole.graph.node if rows.clock.intersection(node.output)]:
            op_type = "Cast" if node.op_type == "Cast" else "Identity"
            graph.node.append(helper.make_node(op_type, node.input[:1], node.output, node.name))
            graph.node[-1].attribute.extend(node.attribute if op_type == "Cast" else [])
        _keep_needed(graph, names)
        for node in part.nodes:
            free, targets = free_rows(node, rows.shapes.get(node.output[0]))
            graph.node.append(free)
            graph.initializer.extend(targets)
        timestep = roles_of(self._inputs).timestep
        kind = self._inputs[timestep].type.tensor_type.elem_type
        graph.input.append(helper.make_tensor_value_info(timestep, kind, ["rows"]))
        for name in [name for name in part.inputs if name != timestep] + part.cut:
            graph.input.append(self._rows(name, rows))
        graph.output.extend(self._rows(name, rows) for name in outputs)
        return self._with_constants(graph)

    def _rows(self, name: str, rows: _TimedRows) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, self._types[name], ["rows", *rows.shapes[name]])

    def _declared(self, name: str) -> onnx.ValueInfoProto:
        """A tensor between two parts: of a type, and of any sizes.

        How many axes it has is said where that is known: OpenVINO takes a tensor of no shape for a scalar. So is how
        many sizes a shape has, which Resize is refused without.
        """
        sizes = self._shapes.get(name)
        axes: list[int | None] | None = None if sizes is None else [None] * len(sizes)
        if sizes and len(sizes) == 1 and isinstance(sizes[0], int) and self._types[name] == TensorProto.INT64:
            axes = [sizes[0]]
        return helper.make_tensor_value_info(name, self._types[name], axes)

    def _with_constants(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        """A model on a graph, with those of the whole one's initializers that it reads."""
        names = {name for node in graph.node for name in [*node.input, *outer_names(node)]}
        whole = self._whole.graph
        graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name in names)
        replaceable = {tensor.name for tensor in graph.initializer}
        graph.input.extend(info for info in whole.input if info.name in replaceable)
        made = onnx.ModelProto(ir_version=self._whole.ir_version, producer_name=self._whole.producer_name)
        made.opset_import.extend(self._whole.opset_import)
        made.functions.extend(self._whole.functions)
        made.metadata_props.extend(self._whole.metadata_props)
        made.graph.CopyFrom(graph)
        return made


def _of_any_sizes(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """A tensor of the whole graph in a part of it, where it may have other sizes: as many axes, which ONNX does not
    infer through every operator."""
    tensor = info.type.tensor_type
    axes = [None] * len(tensor.shape.dim) if tensor.HasField("shape") else None
    return helper.make_tensor_value_info(info.name, tensor.elem_type, axes)


def _keep_needed(graph: onnx.GraphProto, names: set[str]) -> None:
    """Leave out the nodes of a chain that nothing reads."""
    needed, kept = set(names), []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept[::-1])


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The initializers, and the tensors in nodes that are constants."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and [attribute.name for attribute in node.attribute] == ["value"]:
            found[node.output[0]] = node.attribute[0].t
    return found


def graph_inputs(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    constants = {tensor.name for tensor in graph.initializer}
    return {info.name: info for info in graph.input if info.name not in constants}


def tensor_types(
    model: onnx.ModelProto, inputs: Mapping[str, onnx.ValueInfoProto], nodes: Iterable[onnx.NodeProto]
) -> tuple[dict[str, int], dict[str, tuple[int | str | None, ...]]]:
    """The element types of what ``nodes`` make, and the shapes that ONNX infers of it."""
    part = onnx.ModelProto(ir_version=model.ir_version)
    part.opset_import.extend(model.opset_import)
    part.graph.name = "shapes"
    part.graph.node.extend(nodes)
    part.graph.input.extend(inputs.values())
    part.graph.initializer.extend(model.graph.initializer)
    inferred = onnx.shape_inference.infer_shapes(part, data_prop=True).graph
    infos = [*inferred.input, *inferred.value_info]
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    types |= {info.name: info.type.tensor_type.elem_type for info in infos}
    for node in part.graph.node:
        for name in node.output:
            types.setdefault(name, _type_of(node, types))
    shapes = {info.name: _shape(info) for info in infos if info.type.tensor_type.HasField("shape")}
    return types, shapes


def _type_of(node: onnx.NodeProto, types: Mapping[str, int]) -> int:
    """The element type of what a node makes where ONNX does not know it: most operators keep their first input's."""
    if node.op_type in _INTEGERS or node.op_type in _CONDITIONS:
        return int(TensorProto.INT64 if node.op_type in _INTEGERS else TensorProto.BOOL)
    to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
    first = node.input[1] if node.op_type in ("CastLike", "Where") else next(iter(node.input), "")
    return to or types.get(first, int(TensorProto.UNDEFINED))


def _shape(info: onnx.ValueInfoProto) -> tuple[int | str | None, ...]:
    dims = info.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims)


def _has_graph(node: onnx.NodeProto) -> bool:
    return any(attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for attribute in node.attribute)
