"""The steps of an attention, a normalization or an activation in a subgraph, detected by how they are connected.

Names do not identify them: an exporter names its nodes as it likes, and a fused operator's steps have no names at all.
So each is found from the one operator that nothing else of its kind has (a softmax, a normalization, an error
function). Where that occurs twice or not at all, no step is detected, so that no step is compared with another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx

STEP_NAMES = {
    "value": "the value",
    "query": "the query",
    "key": "the key",
    "scores": "the scores",
    "shares": "the softmax of the scores",
    "sums": "the sum of the values",
    "biased": "the sum with the bias",
    "normalized": "what is normalized",
    "normal": "the normalized values",
    "scaled": "the normalized values times gamma",
    "shifted": "the normalized values with gamma and beta",
    "bent": "the argument of the gate",
    "gate": "the gate",
    "erf": "the error function",
}
"""Steps and their descriptions, in an order in which they can be computed."""

PASS_THROUGH = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that neither change values nor move them."""
SCALING = frozenset({"Div", "Mul"})
MASKING = frozenset({"Add", "Where"})
PROJECTING = frozenset({"Add", "Gemm", "MatMul"})
"""Operators that make a query, a key or a value, with the heads side by side."""

NORMALIZATIONS = frozenset({"GroupNormalization", "InstanceNormalization", "LayerNormalization"})


def detect_steps(nodes: Sequence[onnx.NodeProto]) -> dict[str, str]:
    """Step -> the tensor that holds it, of those that ``nodes`` make."""
    graph = _Subgraph(nodes)
    steps = {**_attention(graph), **_normalization(graph), **_activation(graph)}
    return {step: steps[step] for step in STEP_NAMES if steps.get(step) in graph.makers}


def after_casts(nodes: Sequence[onnx.NodeProto], name: str) -> str:
    """The tensor as it is after the casts that round it."""
    while True:
        cast = next((node for node in nodes if node.op_type == "Cast" and name in node.input), None)
        if cast is None:
            return name
        name = cast.output[0]


class _Subgraph:
    """Nodes of a subgraph, and how they are connected."""

    def __init__(self, nodes: Sequence[onnx.NodeProto]) -> None:
        self.nodes = nodes
        self.makers = {name: node for node in nodes for name in node.output if name}

    def only(self, *operators: str) -> onnx.NodeProto | None:
        """The node of these operators, if there is exactly one."""
        matching = [node for node in self.nodes if node.op_type in operators]
        return matching[0] if len(matching) == 1 else None

    def path_back(self, name: str, through: Collection[str], to: Collection[str]) -> list[str]:
        """The tensors from ``name`` to one that an operator of ``to`` makes, all others made by ``through``.

        Empty if there is no such path. A computed scale or mask is no path, as it does not come from a product.
        """
        maker = self.makers.get(name)
        if maker is None:
            return []
        if maker.op_type in to:
            return [name]
        # What arranges values has its indices and shapes beside them.
        sources = maker.input if maker.op_type in SCALING | MASKING else maker.input[:1]
        paths = (self.path_back(source, through, to) for source in sources) if maker.op_type in through else ()
        return next(([name, *path] for path in paths if path), [])

    def reader(
        self, name: str, operators: Collection[str], through: Collection[str] = PASS_THROUGH
    ) -> onnx.NodeProto | None:
        """The first node of ``operators`` that reads ``name``, or what is made of it by ``through``."""
        for node in self.nodes:
            if name in node.input and node.op_type in operators:
                return node
            if name in node.input and node.op_type in through:
                reader = self.reader(node.output[0], operators, through)
                if reader is not None:
                    return reader
        return None


def _attention(graph: _Subgraph) -> dict[str, str]:
    softmax = graph.only("Softmax")
    if softmax is None:
        return {}
    path = graph.path_back(softmax.input[0], SCALING | MASKING | PASS_THROUGH, {"MatMul"})
    steps = {"shares": softmax.output[0]}
    behind = graph.reader(softmax.output[0], {"MatMul"}, PASS_THROUGH | {"Where"})
    if behind is not None:
        steps["sums"] = behind.output[0]
        steps["value"] = _projection(graph, behind.input[1])
    if path:
        product = graph.makers[path[-1]]
        steps["query"], steps["key"] = (_projection(graph, name) for name in product.input)
        steps["scores"] = _scaled(graph, path)
    return steps


def _scaled(graph: _Subgraph, path: Sequence[str]) -> str:
    """The last tensor, from the product on, that no mask was added to."""
    scores = path[-1]
    for name in reversed(path[:-1]):
        if graph.makers[name].op_type in MASKING:
            break
        scores = name if graph.makers[name].op_type in SCALING else scores
    return scores


def _projection(graph: _Subgraph, name: str) -> str:
    """The tensor from which the operand of a product comes by arranging and scaling alone; empty if there is none.

    A decomposed operator reads an input that it shares with others through Identity.
    """
    through = SCALING | PASS_THROUGH | {"Transpose"}
    path = graph.path_back(name, through, PROJECTING) or graph.path_back(name, through - {"Identity"}, {"Identity"})
    return path[-1] if path else ""


def _normalization(graph: _Subgraph) -> dict[str, str]:
    """Steps of a group or layer normalization, or of its explicit form: (x - mean) / root, times gamma, plus beta."""
    whole = [node for node in graph.nodes if node.op_type in NORMALIZATIONS]
    apart = [(n, centered) for n in graph.nodes if n.op_type == "Div" and (centered := _centered(graph, n)) is not None]
    if len(whole) + len(apart) != 1:
        return {}
    if whole and whole[0].op_type != "InstanceNormalization":
        return {"normalized": whole[0].input[0], "shifted": whole[0].output[0]}
    node, source = (whole[0], whole[0].input[0]) if whole else (apart[0][0], apart[0][1].input[0])
    steps = {"normalized": _unviewed(graph, source), "normal": node.output[0]}
    scale = graph.reader(node.output[0], {"Mul"})
    if scale is not None:
        steps["scaled"] = scale.output[0]
        shift = graph.reader(scale.output[0], {"Add"})
        steps["shifted"] = shift.output[0] if shift is not None else ""
    return steps


def _centered(graph: _Subgraph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The x - mean of a division by a root."""
    root, centered = (graph.makers.get(name) for name in (node.input[1], node.input[0]))
    if root is None or root.op_type != "Sqrt" or centered is None or centered.op_type != "Sub":
        return None
    mean = graph.makers.get(centered.input[1])
    return centered if mean is not None and mean.op_type == "ReduceMean" else None


def _unviewed(graph: _Subgraph, name: str) -> str:
    """The tensor of which ``name`` is a view."""
    maker = graph.makers.get(name)
    while maker is not None and maker.op_type in PASS_THROUGH:
        name = maker.input[0]
        maker = graph.makers.get(name)
    return name


def _activation(graph: _Subgraph) -> dict[str, str]:
    steps: dict[str, str] = {}
    gate, erf = graph.only("Sigmoid"), graph.only("Erf")
    if gate is not None:
        steps["gate"] = gate.output[0]
        maker = graph.makers.get(gate.input[0])
        steps["bent"] = gate.input[0] if maker is not None and maker.op_type == "Mul" else ""
    if erf is not None:
        steps["erf"] = erf.output[0]
        path = graph.path_back(erf.input[0], SCALING | PASS_THROUGH | {"Split", "Slice"}, {"Add"})
        steps["biased"] = path[-1] if path else ""
    return steps
