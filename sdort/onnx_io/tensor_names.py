"""Names of tensors in a written file."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from sdort.onnx_io.graph_import import unique_name


class TensorNames:
    """Unique names: those of the graph's inputs and outputs stay, others that clash get a number."""

    def __init__(self, graph: gs.Graph, nodes: list[gs.Node]) -> None:
        self.taken: set[str] = set()
        self._names: dict[int, str] = {}
        for tensor in (*graph.inputs, *graph.outputs):
            self.of(tensor)
        for node in nodes:
            for tensor in (*node.inputs, *node.outputs):
                if not isinstance(tensor, gs.Constant):
                    self.of(tensor)

    def of(self, tensor: gs.Tensor) -> str:
        """The tensor's name in the file; empty for an omitted input."""
        if tensor.is_empty():
            return ""
        if id(tensor) not in self._names:
            self._names[id(tensor)] = unique_name(tensor.name, self.taken)
        return self._names[id(tensor)]

    def alias(self, tensor: gs.Tensor, name: str) -> None:
        """Let ``tensor`` stand for another one, which has the name already."""
        self._names[id(tensor)] = name

    def is_fixed(self, tensor: gs.Tensor) -> bool:
        """Whether the tensor has its name already, as inputs and outputs have."""
        return id(tensor) in self._names
