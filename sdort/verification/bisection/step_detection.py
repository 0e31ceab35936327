"""The steps of an attention, a normalization or an activation in a part of a graph, told by how they are connected.

Names do not tell them: an exporter names its nodes as it likes, and a fused operator's steps have no names at all. So
each is found from the one operator that nothing else of its kind has (a softmax, a normalization, an error function).
Where that is there twice or not at all, nothing is found, so that nothing is compared with what it does not stand for.
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
"""What is found, in words, in an order in which they can be computed."""

PASS_THROUGH = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""They neither change values nor move them."""
SCALING = frozenset({"Div", "Mul"})
MASKING = frozenset({"Add", "Where"})
PROJECTING = frozenset({"Add", "Gemm", "MatMul"})
"""What makes a query, a key or a value, with the heads side by side."""

NORMALIZATIONS = frozenset({"GroupNormalization", "InstanceNormalization", "LayerNormalization"})


def detect_steps(nodes: Sequence[onnx.NodeProto]) -> dict[str, str]:
    """Step -> the tensor that holds it, of those that ``nodes`` make."""
    part = _Part(nodes)
    found = {**_attention(part), **_normalization(part), **_activation(part)}
    return {step: found[step] for step in STEP_NAMES if found.get(step) in part.makers}


def after_casts(nodes: Sequence[onnx.NodeProto], name: str) -> str:
    """The tensor as it is after the casts that round it."""
    while True:
        cast = next((node for node in nodes if node.op_type == "Cast" and name in node.input), None)
        if cast is None:
            return name
        name = cast.output[0]


class _Part:
    """Some nodes of a graph, and how they are connected."""

    def __init__(self, nodes: Sequence[onnx.NodeProto]) -> None:
        self.nodes = nodes
        self.makers = {name: node for node in nodes for name in node.output if name}

    def only(self, *operators: str) -> onnx.NodeProto | None:
        """The node of these operators, if there is exactly one."""
        found = [node for node in self.nodes if node.op_type in operators]
        return found[0] if len(found) == 1 else None

    def back(self, name: str, through: Collection[str], to: Collection[str]) -> list[str]:
        """The tensors from ``name`` to one that an operator of ``to`` makes, all others made by ``through``.

        Empty if there is no such way. A computed scale or mask is no way, as it does not come from a product.
        """
        maker = self.makers.get(name)
        if maker is None:
            return []
        if maker.op_type in to:
            return [name]
        # What arranges values has its indices and shapes beside them.
        sources = maker.input if maker.op_type in SCALING | MASKING else maker.input[:1]
        ways = (self.back(each, through, to) for each in sources) if maker.op_type in through else ()
        return next(([name, *way] for way in ways if way), [])

    def on(
        self, name: str, operators: Collection[str], through: Collection[str] = PASS_THROUGH
    ) -> onnx.NodeProto | None:
        """The first node of ``operators`` that reads ``name``, or what is made of it by ``through``."""
        for node in self.nodes:
            if name in node.input and node.op_type in operators:
                return node
            if name in node.input and node.op_type in through:
                found = self.on(node.output[0], operators, through)
                if found is not None:
                    return found
        return None


def _attention(part: _Part) -> dict[str, str]:
    softmax = part.only("Softmax")
    if softmax is None:
        return {}
    way = part.back(softmax.input[0], SCALING | MASKING | PASS_THROUGH, {"MatMul"})
    found = {"shares": softmax.output[0]}
    behind = part.on(softmax.output[0], {"MatMul"}, PASS_THROUGH | {"Where"})
    if behind is not None:
        found["sums"] = behind.output[0]
        found["value"] = _projection(part, behind.input[1])
    if way:
        product = part.makers[way[-1]]
        found["query"], found["key"] = (_projection(part, name) for name in product.input)
        found["scores"] = _scaled(part, way)
    return found


def _scaled(part: _Part, way: Sequence[str]) -> str:
    """The last tensor, from the product on, that no mask was added to."""
    scores = way[-1]
    for name in reversed(way[:-1]):
        if part.makers[name].op_type in MASKING:
            break
        scores = name if part.makers[name].op_type in SCALING else scores
    return scores


def _projection(part: _Part, name: str) -> str:
    """The tensor from which the operand of a product comes by arranging and scaling alone; empty if there is none.

    What a fused operator is given in one tensor with others, it hands over to itself by Identity.
    """
    through = SCALING | PASS_THROUGH | {"Transpose"}
    way = part.back(name, through, PROJECTING) or part.back(name, through - {"Identity"}, {"Identity"})
    return way[-1] if way else ""


def _normalization(part: _Part) -> dict[str, str]:
    """Of groups, layers, or spelled out: (x - mean) / root, then times gamma, plus beta."""
    whole = [node for node in part.nodes if node.op_type in NORMALIZATIONS]
    apart = [(n, centered) for n in part.nodes if n.op_type == "Div" and (centered := _centered(part, n)) is not None]
    if len(whole) + len(apart) != 1:
        return {}
    if whole and whole[0].op_type != "InstanceNormalization":
        return {"normalized": whole[0].input[0], "shifted": whole[0].output[0]}
    node, source = (whole[0], whole[0].input[0]) if whole else (apart[0][0], apart[0][1].input[0])
    found = {"normalized": _unviewed(part, source), "normal": node.output[0]}
    scale = part.on(node.output[0], {"Mul"})
    if scale is not None:
        found["scaled"] = scale.output[0]
        shift = part.on(scale.output[0], {"Add"})
        found["shifted"] = shift.output[0] if shift is not None else ""
    return found


def _centered(part: _Part, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The x - mean of a division by a root."""
    root, centered = (part.makers.get(name) for name in (node.input[1], node.input[0]))
    if root is None or root.op_type != "Sqrt" or centered is None or centered.op_type != "Sub":
        return None
    mean = part.makers.get(centered.input[1])
    return centered if mean is not None and mean.op_type == "ReduceMean" else None


def _unviewed(part: _Part, name: str) -> str:
    """The tensor of which ``name`` is a view."""
    maker = part.makers.get(name)
    while maker is not None and maker.op_type in PASS_THROUGH:
        name = maker.input[0]
        maker = part.makers.get(name)
    return name


def _activation(part: _Part) -> dict[str, str]:
    found: dict[str, str] = {}
    gate, erf = part.only("Sigmoid"), part.only("Erf")
    if gate is not None:
        found["gate"] = gate.output[0]
        maker = part.makers.get(gate.input[0])
        found["bent"] = gate.input[0] if maker is not None and maker.op_type == "Mul" else ""
    if erf is not None:
        found["erf"] = erf.output[0]
        way = part.back(erf.input[0], SCALING | PASS_THROUGH | {"Split", "Slice"}, {"Add"})
        found["biased"] = way[-1] if way else ""
    return found
