"""A graph in pieces that run one after another, so that the weights of most of them need not be in memory at once.

The nodes are cut in the order in which ONNX Runtime would run them: then few tensors live across a cut. The first
piece keeps its weights, as many as there is room for; those of the others take turns in two slots, one of which is
filled while a piece computes from the other one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import onnx

from sdort.onnx_io.branches import outer_names
from sdort.runtime.activations import running_order
from sdort.runtime.step.step_split import Needed, Parts, graph_inputs, tensor_types

COUNTS = range(4, 33, 2)
"""Numbers of pieces that take turns, which are even: then each slot is filled while the other one is read, from one
step to the next too. Two slots of a third or more of what takes turns would save little."""


@dataclass(frozen=True)
class PiecePlan:
    """A way to cut a graph.

    Attributes:
        ends: for each piece how many nodes, in the order in which they run, it and those before it have.
        sizes: bytes of the weights of each piece.
        stays: whether the weights of the first piece stay in memory.
    """

    ends: tuple[int, ...]
    sizes: tuple[int, ...]
    stays: bool

    @property
    def resident(self) -> int:
        """Bytes of the weights that stay."""
        return self.sizes[0] if self.stays else 0

    @property
    def streamed(self) -> int:
        """Bytes of the weights that take turns."""
        return sum(self.sizes) - self.resident

    @property
    def held(self) -> int:
        """Bytes of memory for weights: of those that stay, and of two slots."""
        return self.resident + 2 * max(self.sizes[self.stays :])


def plan_pieces(
    graph: onnx.GraphProto,
    weights: Mapping[str, int],
    room: int,
    session_bytes: int = 0,
    counts: Sequence[int] = COUNTS,
) -> PiecePlan | None:
    """The pieces of which the most weights stay in memory; None where all of them fit, or nothing can be cut.

    Args:
        weights: bytes of those that can take turns, by name.
        room: bytes of memory for weights, and for the sessions of pieces.
        session_bytes: of a piece's session beside its weights.
        counts: of pieces that may take turns. Where none fits, the plan is that which takes the least memory.
    """
    order = running_order(graph.node)
    reads = _first_reads(order, weights)
    total = sum(size for _, size in reads)
    counts = [count for count in counts if count <= len(reads)]
    if total <= room or not counts:
        return None
    largest, live = max(size for _, size in reads), _live(order)

    def cuts(count: int) -> Iterator[PiecePlan]:
        """Those whose pieces are as equal as one hopes, and as unequal as they may be; and none stays."""
        for slot in (total / count, total / count + largest):
            left = room - count * session_bytes - 2 * slot
            yield _cut(order, reads, live, max(0, int(left * count / max(count - 2, 1))), count)
        yield _cut(order, reads, live, 0, count)

    def taken(plan: PiecePlan) -> int:
        return plan.held + (len(plan.ends) - plan.stays) * session_bytes

    plans = [plan for count in counts for plan in cuts(count)]
    return max(
        (plan for plan in plans if taken(plan) <= room),
        key=lambda plan: plan.resident,
        default=min(plans, key=taken),
    )


def _first_reads(order: Sequence[onnx.NodeProto], weights: Mapping[str, int]) -> list[tuple[int, int]]:
    """The nodes that read weights which none before them reads, and the bytes of these."""
    seen, found = set[str](), list[tuple[int, int]]()
    for index, node in enumerate(order):
        new = {name for name in node.input if name in weights} - seen
        seen |= new
        if new:
            found.append((index, sum(weights[name] for name in new)))
    return found


def _cut(
    order: Sequence[onnx.NodeProto], reads: Sequence[tuple[int, int]], live: Sequence[int], resident: int, count: int
) -> PiecePlan:
    """Pieces that end where the fewest tensors live, between two nodes that read weights.

    Args:
        live: :func:`_live` of the nodes.
        resident: the most bytes of weights that stay.
        count: of pieces of which the weights take turns, as equal as they can be.
    """
    sums = list(accumulate(size for _, size in reads))
    staying = min(bisect_right(sums, resident), len(sums) - count)
    kept = sums[staying - 1] if staying else 0
    bounds = [staying] if staying else []
    for number in range(1, count):
        aim = kept + number * (sums[-1] - kept) / count
        least = (bounds[-1] if bounds else 0) + 1
        most = len(reads) - (count - number)
        bounds.append(min(max(bisect_right(sums, aim), least), most))
    places = [reads[bound - 1][0] + 1 for bound in bounds]
    nexts = [reads[bound][0] for bound in bounds]
    # Of places alike the last: what ONNX Runtime fuses with the node that reads weights is then in its piece.
    ends = [
        min(range(first, last + 1), key=lambda place: (live[place], -place))
        for first, last in zip(places, nexts, strict=True)
    ]
    edges = [0, *[sums[bound - 1] for bound in bounds], sums[-1]]
    return PiecePlan((*ends, len(order)), tuple(end - first for first, end in pairwise(edges)), bool(staying))


def _live(order: Sequence[onnx.NodeProto]) -> list[int]:
    """How many tensors that a node before a place has made are read from there on; [nodes + 1]."""
    made = {name: index for index, node in enumerate(order) for name in node.output if name}
    last: dict[str, int] = {}
    for index, node in enumerate(order):
        last.update((name, index) for name in (*node.input, *outer_names(node)) if name in made)
    changes = [0] * (len(order) + 2)
    for name, index in last.items():
        changes[made[name] + 1] += 1
        changes[index + 1] -= 1
    return list(accumulate(changes))[:-1]


def cut_pieces(model: onnx.ModelProto, plan: PiecePlan) -> list[onnx.ModelProto]:
    """The models of a plan. Each takes the inputs of the whole that it reads and what those before it made, and gives
    what those after it read. They share nothing with ``model``, and its external data stays where it is."""
    graph = model.graph
    inputs, order = graph_inputs(graph), running_order(graph.node)
    types, shapes = tensor_types(model, inputs, graph.node)
    parts, outputs = Parts(model, inputs, types, shapes), {info.name for info in graph.output}
    made = {
        name: number
        for number, (first, end) in enumerate(pairwise((0, *plan.ends)))
        for node in order[first:end]
        for name in node.output
        if name
    }
    reads = [
        {name for node in order[first:end] for name in (*node.input, *outer_names(node)) if name}
        for first, end in pairwise((0, *plan.ends))
    ]
    models = []
    for number, (first, end) in enumerate(pairwise((0, *plan.ends))):
        taken = [name for name in inputs if name in reads[number]]
        cut = [name for name in made if name in reads[number] and made[name] < number]
        later = outputs.union(*reads[number + 1 :])
        given = [name for name, maker in made.items() if maker == number and name in later]
        models.append(parts.model(f"piece{number}", Needed(list(order[first:end]), taken, cut), given))
    return models
