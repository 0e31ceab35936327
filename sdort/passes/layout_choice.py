"""Which nodes of a graph turn to another layout: those by which it has fewer passes over its images.

Costs are counted in eighths of a Transpose, that is of one kernel that reads and writes an image once. A node that
stays, a graph's input and a graph's output are in the layout that the graph has; a node that turns is in the other.
Each image that is written in one layout and read in the other costs one Transpose, however many read it. Against that
stands what a kernel saves that is there in one layout only (:data:`CONVOLUTION`, :data:`NORM`). The cheapest choice of
all is a minimum cut of the graph, so a region is as large as it pays, and is not there where it does not. Of choices
that cost the same the one with most nodes in it is taken: what lies between a norm and the border fuses with the norm.

Sizes of images are not weighed: they are symbols, and a region's border is seldom its largest image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_graphsurgeon as gs

from sdort.graph.min_cut import UNLIMITED, Network
from sdort.passes.layout_rules import Layout, Turn, is_turning
from sdort.rewrite.editor import Editor, producer

TRANSPOSE = 8
"""One pass over an image."""
VIEW = 1
"""One small node that moves nothing: so that none is there for nothing."""
CONVOLUTION = 14
"""Saved by a channels-last convolution of fp16, whose fast kernels all are: channels-first, cuDNN turns the image in
and the result back by itself, two passes. That is a little less than two Transposes, as its own are written for it: a
convolution alone is slower turned, up to 3.5 times (docs/measurements.md, the line extractor)."""
NORM = 24
"""Saved by GroupNorm, one pass with the SiLU behind it; channels-first it is an InstanceNormalization, a product and a
sum of the channels' weights, and the SiLU's two: never less than three passes more."""
DECOMPOSED_NORM = -8
"""A GroupNorm of a form that no kernel takes has about one pass more in channels-last."""


def choose(layout: Layout, plans: Mapping[int, Turn]) -> set[int]:
    """The nodes to turn, by their ``id``, of those that can."""
    return _Choice(layout, plans).chosen()


class _Choice:
    """The network whose source side is the other layout."""

    def __init__(self, layout: Layout, plans: Mapping[int, Turn]) -> None:
        self.layout, self.plans, self.network = layout, plans, Network()
        self.numbers = {number: self.network.node() for number in plans}
        for tensor in _images(layout.editor, plans):
            self._border(tensor)
        for number, turn in plans.items():
            self.network.edge(Network.SOURCE, self.numbers[number], turn.gain)
            self.network.edge(self.numbers[number], Network.SINK, -turn.gain)

    def chosen(self) -> set[int]:
        turned = self.network.source_side()
        return {number for number, place in self.numbers.items() if place in turned}

    def _border(self, image: gs.Tensor) -> None:
        """Count the cost of an image that is written in one layout and read in the other."""
        cost = VIEW if self.layout.is_pixel(image) else TRANSPOSE
        writer, readers = self._writer(image), self._readers(image)
        leaves, enters = self.network.node(), self.network.node()  # whether one reads it as it was; turned
        self.network.edge(writer, leaves, cost)
        self.network.edge(enters, writer, cost)
        for reader in readers:
            self.network.edge(leaves, reader, UNLIMITED)
            self.network.edge(reader, enters, UNLIMITED)

    def _writer(self, image: gs.Tensor) -> int:
        node = producer(image)
        if node is None:
            return Network.SINK
        if is_turning(node, self.layout.back):
            return Network.SOURCE
        turn = self.plans.get(id(node))
        return self.numbers[id(node)] if turn is not None and turn.turned else Network.SINK

    def _readers(self, image: gs.Tensor) -> set[int]:
        readers = {Network.SINK} if self.layout.editor.is_output(image) else set[int]()
        for node in image.outputs:
            turn = self.plans.get(id(node))
            reads_twin = turn is not None and any(read is image for read in turn.images)
            fixed = Network.SOURCE if is_turning(node, self.layout.to) else Network.SINK
            readers.add(self.numbers[id(node)] if reads_twin else fixed)
        return readers


def _images(editor: Editor, plans: Mapping[int, Turn]) -> Iterator[gs.Tensor]:
    """All images that a node that can turn reads or writes."""
    seen: set[int] = set()
    for node in editor.graph.nodes:
        turn = plans.get(id(node))
        if turn is not None:
            for image in (*turn.images, *(node.outputs if turn.turned else ())):
                if id(image) not in seen:
                    seen.add(id(image))
                    yield image
