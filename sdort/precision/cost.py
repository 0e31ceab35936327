"""Cost of nodes: their part of the time of a run in fp32, on the CPU, where every operator can be run.

On a GPU a node takes about twice as long in fp32 as in fp16, or more where fp16 has matrix units of its own. The part
that nodes have of the time here tells a few cheap ones from half of the model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from sdort.graph.signature import Array
from sdort.precision.ranges import GRAPH_FILE, inlined, open_inlined, run_plain


def timed_run(
    proto: onnx.ModelProto, feed: Mapping[str, Array], folder: Path, component: str
) -> tuple[dict[str, Array], Counter[str]]:
    """Run a model on the CPU once.

    Args:
        proto: without the weights, which lie in ``folder``; it may be changed.

    Returns:
        All outputs by name, and microseconds by node of ``proto``.

    Raises:
        BadModelError: it does not run on these inputs.
    """
    nodes = [(node.name, list(node.output)) for node in proto.graph.node]
    expanded = inlined(proto)
    owners = name_by_owner(nodes, expanded.graph.node)
    with TemporaryDirectory(dir=folder) as place:
        session = open_inlined(expanded, folder / GRAPH_FILE, component, profile=str(Path(place) / "profile"))
        outputs = run_plain(session, feed)
        events = json.loads(Path(session.ort.end_profiling()).read_text(encoding="utf-8"))
    times: Counter[str] = Counter()
    for event in events:
        owner = owners.get(str(event.get("name", "")).removesuffix("_kernel_time"))
        if owner is not None:
            times[owner] += event["dur"]
    return outputs, times


def name_by_owner(nodes: Sequence[tuple[str, Sequence[str]]], inlined: Sequence[onnx.NodeProto]) -> dict[str, str]:
    """Give each inlined node a name, and tell by it which node it came from.

    Args:
        nodes: before functions were inlined, in order: names and outputs. Inlining keeps the order and the outputs.
    """
    owners, rest = {}, iter(enumerate(inlined))
    for name, outputs in nodes:
        missing = set(outputs) - {""}
        while missing:
            index, node = next(rest)
            node.name = f"timed_{index}"
            owners[node.name] = name
            missing -= set(node.output)
    return owners


def share(times: Mapping[str, int], names: Collection[str]) -> float:
    """The part of all time that the nodes of these names take."""
    return sum(time for name, time in times.items() if name in names) / max(sum(times.values()), 1)
