"""Positions of nodes in a model, by the structure around them.

Names differ between exporters, and between releases of one; what a node computes from what and for what does not. A
position is the operator, what its inputs come from, what its output goes to, the block of the model it is in, and its
number among its equals there. Blocks are known by the resolution: how many times a path from the inputs was downsampled
and upsampled. All of it is counted along longest paths, which no order of the nodes changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.operator import Category
from sdort.operators import of_category
from sdort.precision.ranges import MOVES
from sdort.rewrite.editor import Editor, producer

PASSED = MOVES | {"Cast"}
ENLARGING = ("Resize", "ConvTranspose", "DepthToSpace", "InterleavePhases")
DEPTH_OPERATORS = frozenset(
    {"Conv", "MatMul", "Gemm", "Softmax", "Attention", "LayerNormalization", "InstanceNormalization"}
)  # fmt: skip
"""Standard operators that depth is counted in: what every export of a model has, unlike the small change between."""
DEPTH_CATEGORIES = (Category.CONVOLUTION, Category.PRODUCT, Category.ATTENTION, Category.NORMALIZATION)
"""Likewise of other operators."""
UNORDERED = ("Add", "Mul", "Sum")
ALIKE = {"GatherND": "Gather"}
"""Two spellings of exporters for one thing: CLIP's pooled token."""
EVERYWHERE = "all"
"""The block of a model of one resolution."""


@dataclass(frozen=True)
class NodeKind:
    """A kind of nodes: the operator, where its inputs come from and where its outputs go."""

    operator: str
    reads: tuple[str, ...]
    feeds: tuple[str, ...]


@dataclass(frozen=True)
class Position:
    """A kind in a ``block``; ``number`` counts those of one kind and block by depth, equals share one."""

    kind: NodeKind
    block: str
    number: int


def find_positions(editor: Editor) -> dict[str, Position]:
    """The position of every node that computes floats, by the node's name."""
    levels, groups = _levels(editor), defaultdict(list)
    down = max((level[0] for level in levels.values()), default=0)
    flat = not any(level[0] or level[1] for level in levels.values())
    for node in editor.graph.nodes:
        if node.op not in PASSED and any(_is_float(editor, t) for t in node.outputs):
            kind = NodeKind(_operator(node), _reads(editor, node), _feeds(node))
            groups[kind, EVERYWHERE if flat else _block(levels[node.name], down)].append(node.name)
    positions = {}
    for (kind, block), names in groups.items():
        depths = sorted({levels[name][2] for name in names})
        positions.update({name: Position(kind, block, depths.index(levels[name][2])) for name in names})
    return positions


def with_views(editor: Editor, names: set[str]) -> set[str]:
    """``names`` and what only shows tensors between two of them, or casts there."""
    between: set[str] = set()
    for node in editor.graph.nodes:
        if node.op in MOVES and _is_float(editor, node.outputs[0]):
            made, read = source(node.outputs[0]), {reader.name for reader, _ in _readers(node.outputs[0])}
            if made is not None and made.name in names and read & names:
                between.add(node.name)
    return names | between


def source(tensor: gs.Tensor) -> gs.Node | None:
    """The node that computes a tensor, through those that only show or cast it."""
    node = producer(tensor)
    while node is not None and node.op in PASSED:
        node = producer(node.inputs[0])
    return node


def _operator(node: gs.Node) -> str:
    return f"{node.domain}.{node.op}" if node.domain else _name(node)


def _name(node: gs.Node) -> str:
    return ALIKE.get(node.op, str(node.op))


def _is_float(editor: Editor, tensor: gs.Tensor) -> bool:
    return bool(tensor.name) and editor.dtype(tensor) in (np.float32, np.float16)


def _reads(editor: Editor, node: gs.Node) -> tuple[str, ...]:
    sources = []
    for tensor in node.inputs:
        if not _is_float(editor, tensor):
            continue
        made = source(tensor)
        sources.append("weight" if isinstance(tensor, gs.Constant) else _name(made) if made is not None else "input")
    return tuple(sorted(sources) if node.op in UNORDERED else sources)


def _feeds(node: gs.Node) -> tuple[str, ...]:
    readers = {
        reader.op if reader.op in UNORDERED else f"{_name(reader)}.{index}"
        for tensor in node.outputs
        for reader, index in _readers(tensor)
        if reader.op != "Shape"
    }
    return tuple(sorted(readers))


def _readers(tensor: gs.Tensor) -> Iterator[tuple[gs.Node, int]]:
    for node in {id(reader): reader for reader in tensor.outputs}.values():
        for index, read in enumerate(node.inputs):
            if read is tensor and node.op in PASSED and index == 0:
                yield from _readers(node.outputs[0])
            elif read is tensor:
                yield node, index


def _levels(editor: Editor) -> dict[str, tuple[int, int, int]]:
    """Per node, along the longest path to it: times downsampled, times upsampled, operators that count as depth."""
    counted = DEPTH_OPERATORS | of_category(*DEPTH_CATEGORIES)
    levels: dict[str, tuple[int, int, int]] = {}
    for node in editor.graph.nodes:
        before = [levels[made.name] for t in node.inputs if (made := producer(t)) is not None]
        strides = node.attrs.get("strides") or [1]
        own = int(max(strides) > 1), int(node.op in ENLARGING), int(node.op in counted)
        down, up, depth = (max((level[i] for level in before), default=0) + own[i] for i in range(3))
        levels[node.name] = down, up, depth
    return levels


def _block(level: tuple[int, int, int], down: int) -> str:
    if level[1]:
        return f"up {level[1]}"
    return "middle" if level[0] == down else f"down {level[0]}"
