"""The content of a model: operators, inputs and outputs, weights, and the execution providers with kernels for it.

Weights are described, never read: inspecting a 3 GB model costs the time of parsing its graph.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from sdort.console import warn
from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT, OWN_DOMAIN
from sdort.graph.model import Model
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.components import survey_models
from sdort.onnx_io.load import load_model
from sdort.onnx_io.precision_mark import BF16, PRECISION_KEY
from sdort.pipelines.explain_path import expect_onnx
from sdort.providers import PROVIDER_NAMES, load_target

if TYPE_CHECKING:
    from sdort.providers.target import Target
    from sdort.rewrite.editor import Editor


# Kinds of changes in their order.
_KINDS = ("count", "version", "bytes", "input", "output", "operator")

FUSED_DOMAINS = frozenset({MICROSOFT, OWN_DOMAIN})


@dataclass(frozen=True)
class DeclaredTensor:
    """A graph input or output: its dtype's name and its shape, where a str is a symbolic and None an unknown dim."""

    name: str
    """The tensor's name."""
    dtype: str | None
    """Name of its dtype; None if the file states none."""
    shape: tuple[int | str | None, ...] | None
    """Its sizes: a number, a name where it is dynamic, None where unknown."""

    def __str__(self) -> str:
        dims = "?" if self.shape is None else f"[{', '.join('?' if d is None else str(d) for d in self.shape)}]"
        return f"{self.dtype or '?'}{dims}"


@dataclass(frozen=True)
class Rewrite:
    """Nodes that a provider has no kernel for, so that lowering has to rewrite them.

    ``operator`` is named as by :func:`operator_name`; the whole graph's opset stands there as ``opset 23``.
    """

    operator: str
    """The operator, or the graph's opset."""
    nodes: int
    """Number of such nodes."""
    reason: str
    """Why the provider cannot take them as they are."""


@dataclass(frozen=True)
class Parts:
    """The parts in which a denoising model is run, without inputs for control images: what each step computes, and what
    is computed before them. Bytes are of one sample, of 77 tokens and latents of 64 x 64 where the model leaves these
    open."""

    prompt_nodes: int
    """Nodes that run once for a prompt."""
    schedule_nodes: int
    """Nodes that run once for all timesteps of a schedule."""
    step_nodes: int
    """Nodes that run in each step."""
    prompt_outputs: tuple[DeclaredTensor, ...]
    """Tensors that stay in memory for a prompt."""
    step_outputs: tuple[DeclaredTensor, ...]
    """Tensors of which each step has its own."""
    prompt_bytes: int
    """Bytes of ``prompt_outputs``, of those whose size is known."""
    step_bytes: int
    """Bytes of ``step_outputs``, which stay in memory for every step of a schedule."""


@dataclass(frozen=True)
class Component:
    """The facts about one component's graph."""

    component: str
    """The component's name; of other models the file's."""
    path: Path | None
    """The file."""
    producer: str
    """Program and version that wrote the file."""
    ir_version: int | None
    """ONNX's IR version; None if the file states none."""
    opsets: dict[str, int]
    """Operator domain -> version."""
    inputs: tuple[DeclaredTensor, ...]
    """The graph's inputs."""
    outputs: tuple[DeclaredTensor, ...]
    """The graph's outputs."""
    nodes: int
    """Number of nodes."""
    operators: dict[str, int]
    """Count per operator, as ``Conv`` or ``com.microsoft.GroupNorm``, the most frequent first."""
    parameters: int
    """Elements of all floating-point constants."""
    weight_bytes: dict[str, int]
    """Bytes of constants per dtype, the largest first."""
    computed_in: str
    """``bf16`` where the model asks its provider for that, else empty: what its tensors are."""
    providers: dict[str, tuple[Rewrite, ...]]
    """Nodes that each provider's lowering has to rewrite; an empty tuple if it has a kernel for every node."""
    parts: Parts | None = None
    """The parts in which it is run; None if that is one graph."""


@dataclass(frozen=True)
class Change:
    """A fact that differs between two models; None where a model has no such thing.

    ``kind`` is ``component`` or one of ``_KINDS``.
    """

    kind: str
    """The kind: ``count``, ``version``, ``bytes``, ``input``, ``output``, ``operator`` or ``component``."""
    name: str
    """Its name."""
    before: Any
    """The first model's value; None if it has none."""
    after: Any
    """The second model's value; None if it has none."""


def inspect_path(path: Path, providers: Sequence[str] = PROVIDER_NAMES) -> list[Component]:
    """Describe one ``.onnx`` file, or every model of a folder, diffusion component or not.

    A model beside the components of a pipeline that cannot be read, such as a tokenizer as a graph, is told.

    Raises:
        BadModelError: ``path`` holds no model, or a broken or unsafe one.
    """
    expect_onnx(path, nested=True)
    found = survey_models(path)
    described = []
    for name, file in found.models.items():
        try:
            described.append(_describe(name, file, providers))
        except BadModelError as error:
            if not found.components or name in found.components:
                raise
            warn(f"{file} is left out, which is no component of a pipeline: {error.message}")
    return described


def _describe(name: str, file: Path, providers: Sequence[str]) -> Component:
    component = describe_model(load_model(file, name), providers)
    return replace(component, parts=_parts(file, name) if providers else None)


def _parts(path: Path, name: str) -> Parts | None:
    # Imported here: comparing two models needs no parts.
    from sdort.runtime.step.prepared_tensors import prepared_tensors, split_file
    from sdort.workload.samples import Sample

    split = split_file(read_component(path, name))
    if split is None:
        return None
    prepared = prepared_tensors(split, name, Sample())
    prompt, step = (
        [DeclaredTensor(tensor.name, str(tensor.dtype), tensor.shape) for tensor in tensors]
        for tensors in (prepared.prompt, prepared.step)
    )
    prompt += [DeclaredTensor(unknown, None, None) for unknown in prepared.unknown]
    early, timed = (len(part.graph.node) if part else 0 for part in (split.prompt, split.time))
    sizes = prepared.prompt_bytes, prepared.step_bytes
    return Parts(early, timed, len(split.step.graph.node), tuple(prompt), tuple(step), *sizes)


def describe_model(model: Model, providers: Sequence[str] = PROVIDER_NAMES) -> Component:
    """Collect the facts about a model in memory, without computing any weight."""
    graph = model.graph
    nodes = list(graph.nodes)
    counts = Counter(operator_name(node) for node in nodes)
    constants = _constants(nodes)
    weight_bytes: Counter[str] = Counter()
    for constant in constants:
        # Never constant.values, which would load them.
        weight_bytes[_dtype_name(constant.dtype)] += math.prod(constant.shape) * _item_size(constant.dtype)
    return Component(
        component=model.component,
        path=model.path,
        producer=" ".join(part for part in (graph.producer_name, graph.producer_version) if part),
        ir_version=graph.ir_version,
        opsets={"ai.onnx": graph.opset} | {domain.domain: domain.version for domain in _other_domains(graph)},
        inputs=tuple(_value(tensor) for tensor in graph.inputs),
        outputs=tuple(_value(tensor) for tensor in graph.outputs),
        nodes=len(nodes),
        operators=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        parameters=sum(math.prod(c.shape) for c in constants if _is_float(c.dtype)) + _in_integers(nodes),
        weight_bytes=dict(weight_bytes.most_common()),
        computed_in=BF16 if model.metadata.get(PRECISION_KEY) == BF16 else "",
        providers=_rewrites(model, nodes, providers),
    )


def _in_integers(nodes: Sequence[gs.Node]) -> int:
    """The parameters that matrices in integers stand for, less their scales, which are floats of the graph."""
    matrices = [node for node in nodes if node.op == "MatMulNBits"]
    return sum(node.attrs["K"] * node.attrs["N"] - math.prod(node.inputs[2].shape) for node in matrices)


def operator_name(node: gs.Node) -> str:
    """``Conv`` for a standard operator, ``com.microsoft.GroupNorm`` for one of another domain."""
    return f"{node.domain}.{node.op}" if node.domain not in (None, "", "ai.onnx") else str(node.op)


def is_fused(operator: str) -> bool:
    """Whether an operator, named as by :func:`operator_name`, is one that only ONNX Runtime or sdort has."""
    return operator.rpartition(".")[0] in FUSED_DOMAINS


def compare_components(before: Sequence[Component], after: Sequence[Component]) -> dict[str, list[Change]]:
    """Changes from ``before`` to ``after``: for each component, in order, its differing facts.

    A component that only one side has is one change, of the component itself. Two single models are compared whatever
    their components are called.
    """
    return {
        name: list(_changes(old, new))
        if old and new
        else [Change("component", name, "present" if old else None, "present" if new else None)]
        for name, (old, new) in paired_components(before, after).items()
    }


def paired_components(
    before: Sequence[Component], after: Sequence[Component]
) -> dict[str, tuple[Component | None, Component | None]]:
    """Components of one name, in order; two single models whatever they are called."""
    if len(before) == len(after) == 1:
        return {after[0].component: (before[0], after[0])}
    old = {component.component: component for component in before}
    new = {component.component: component for component in after}
    return {name: (old.get(name), new.get(name)) for name in [*old, *(name for name in new if name not in old)]}


def _changes(old: Component, new: Component) -> Iterator[Change]:
    facts_before, facts_after = _facts(old), _facts(new)
    keys = [*facts_before, *(key for key in facts_after if key not in facts_before)]
    for key in sorted(keys, key=lambda key: _KINDS.index(key[0])):
        before, after = facts_before.get(key), facts_after.get(key)
        if before != after:
            yield Change(*key, before, after)


def _facts(component: Component) -> dict[tuple[str, str], Any]:
    """Everything comparable, by kind and name."""
    facts: dict[tuple[str, str], Any] = {
        ("count", "nodes"): component.nodes,
        ("count", "parameters"): component.parameters,
        ("version", "IR"): component.ir_version,
    }
    facts |= {("version", f"opset {domain}"): version for domain, version in component.opsets.items()}
    facts |= {("bytes", dtype): size for dtype, size in component.weight_bytes.items()}
    facts |= {("input", value.name): str(value) for value in component.inputs}
    facts |= {("output", value.name): str(value) for value in component.outputs}
    return facts | {("operator", name): count for name, count in component.operators.items()}


def _constants(nodes: Sequence[gs.Node]) -> list[gs.Constant]:
    """Each constant that a node reads, once."""
    constants = {id(tensor): tensor for node in nodes for tensor in node.inputs if isinstance(tensor, gs.Constant)}
    return list(constants.values())


def _rewrites(model: Model, nodes: Sequence[gs.Node], providers: Sequence[str]) -> dict[str, tuple[Rewrite, ...]]:
    # Imported here: comparing two models needs neither targets nor shapes.
    from sdort.rewrite.editor import Editor

    if not providers:
        return {}
    # Kernels take some forms of an operator only, which depend on its inputs' shapes.
    editor = Editor(model)
    return {name: tuple(_rewrites_for(load_target(name), editor, nodes)) for name in providers}


def _rewrites_for(target: Target, editor: Editor, nodes: Sequence[gs.Node]) -> Iterator[Rewrite]:
    opset = editor.graph.opset
    if opset > target.opset:
        yield Rewrite(f"opset {opset}", len(nodes), f"lowered to opset {target.opset}")
    counts: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        reason = target.unsupported(node, editor)
        if reason is not None:
            counts[operator_name(node), reason] += 1
    for (operator, reason), count in counts.most_common():
        yield Rewrite(operator, count, reason)


def _other_domains(graph: gs.Graph) -> list[onnx.OperatorSetIdProto]:
    return [domain for domain in graph.import_domains or () if domain.domain not in ("", "ai.onnx")]


def _value(tensor: gs.Tensor) -> DeclaredTensor:
    dtype = None if tensor.dtype is None else _dtype_name(tensor.dtype)
    shape = (
        None if tensor.shape is None else tuple(dim if isinstance(dim, (int, str)) else None for dim in tensor.shape)
    )
    return DeclaredTensor(str(tensor.name), dtype, shape)


def _dtype_name(dtype: Any) -> str:
    # graphsurgeon keeps the types that numpy lacks as ONNX's own numbers.
    if isinstance(dtype, int):
        return str(onnx.TensorProto.DataType.Name(dtype)).lower()
    return str(np.dtype(dtype))


def _item_size(dtype: Any) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize if isinstance(dtype, int) else dtype.itemsize)


def _is_float(dtype: Any) -> bool:
    return "float" in _dtype_name(dtype)
