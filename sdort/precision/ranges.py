"""Ranges of the numbers in a graph, measured while it runs in fp32.

First every tensor is reduced to its extremes where it is made. So it lives no longer than in an ordinary run, and all
are measured in one: memory is that of the run itself. ONNX Runtime keeps the order of the nodes if asked to; its own
order leaves the reductions to the end, with all tensors alive. The few that fp16 cannot hold are then looked at closer,
some at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import inliner

from sdort.errors import BadModelError, ParityError, ProviderError
from sdort.graph.float16 import LARGEST, SMALLEST_NORMAL, VANISHING
from sdort.graph.model import Model
from sdort.graph.signature import Array, Feeds
from sdort.graph.weights import as_weight
from sdort.onnx_io.component_file import copied, read_component
from sdort.onnx_io.save import save_model
from sdort.onnx_io.standard_operators import expand
from sdort.operator_library.library import OFF
from sdort.precision import probes
from sdort.precision.probes import MEANT
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.rewrite.editor import Editor
from sdort.runtime.opener import NONE
from sdort.runtime.session import Session, open_graph

HEADROOM = 4.0
"""The factor by which the largest number seen may grow under another prompt, seed or size before fp16 overflows."""
CLOSER = 32
"""Tensors that are looked at closely in one run."""
MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten", "Expand"})
"""Operators that only move numbers; their output has their input's range."""


@dataclass(frozen=True)
class Range:
    """The largest magnitude of a tensor, and which shares of it fp16 makes infinite, or zero though they are not."""

    largest: float = 0.0
    overflow: float = 0.0
    vanish: float = 0.0

    @property
    def too_large(self) -> bool:
        """Whether it overflows, or comes so near that another input may."""
        return self.largest * HEADROOM > LARGEST

    @property
    def too_small(self) -> bool:
        """Even its largest number has less than fp16's 11 bits."""
        return 0 < self.largest < SMALLEST_NORMAL

    def joined(self, other: Range) -> Range:
        """The worst of both."""
        return Range(
            max(self.largest, other.largest), max(self.overflow, other.overflow), max(self.vanish, other.vanish)
        )


NO_RANGE = Range()


@dataclass
class Ranges:
    """``tensors`` by name, and a bound on the scores inside each attention, ``logits``, by the node's name."""

    tensors: dict[str, Range] = field(default_factory=dict)
    logits: dict[str, Range] = field(default_factory=dict)

    def of(self, tensor: gs.Tensor) -> Range:
        return self.tensors.get(tensor.name, NO_RANGE)


GRAPH_FILE = "model.onnx"
"""The file that :func:`written` writes."""


def measure_ranges(editor: Editor, feeds: Sequence[Feeds], scratch: Path) -> Ranges:
    """Run the graph of ``editor`` in fp32 on the CPU, on each of ``feeds``.

    Args:
        feeds: values for every input, cast to what the graph declares.
        scratch: an existing folder for a copy of the model; it needs the space of its weights in fp32.

    Raises:
        ParityError: the graph gives NaN or infinity in fp32 already.
        BadModelError: it does not run.
    """
    component = editor.model.component
    ranges = Ranges(dict(_constants(editor)))
    proto = written(editor.model, scratch)
    results = {output.name for output in proto.graph.output}
    probed = copied(proto)
    probes.add_extremes(probed, _computed(editor))
    probes.add_logits(probed)
    for outputs in _run_all(probed, scratch, feeds, component):
        _refuse_infinite({name: outputs[name] for name in results}, component)
        _note_extremes(ranges, outputs)
    odd = [name for name in _computed(editor) if _is_odd(ranges.tensors.get(name, NO_RANGE))]
    for first in range(0, len(odd), CLOSER):
        probed = copied(proto)
        probes.add_shares(probed, odd[first : first + CLOSER])
        for name in odd[first : first + CLOSER]:
            del ranges.tensors[name]  # the extremes count masks
        for outputs in _run_all(probed, scratch, feeds, component):
            _note_shares(ranges, outputs)
    _fill_views(editor, ranges)
    return ranges


def written(model: Model, folder: Path) -> onnx.ModelProto:
    """The model as it is written to ``folder``, without the weights, which stay there."""
    save_model(model, folder / GRAPH_FILE)
    return read_component(folder / GRAPH_FILE, model.component).copy()


def open_plain(proto: onnx.ModelProto, path: Path, component: str) -> Session:
    """A session on the CPU that runs the nodes in their order and fuses nothing.

    Args:
        proto: may be changed.
        path: the file that it was made from, whose folder has the weights.

    Raises:
        BadModelError: ONNX Runtime does not load it.
    """
    return open_inlined(inlined(proto), path, component)


def inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in standard operators alone; ``proto`` is changed."""
    expand(proto)
    # ONNX Runtime takes ten times as long to do it.
    return inliner.inline_local_functions(proto)


def open_inlined(proto: onnx.ModelProto, path: Path, component: str, profile: str = "") -> Session:
    """:func:`open_plain` of what :func:`inlined` gave.

    Args:
        profile: how the name of the file starts that the times of all nodes are written to; empty for none.
    """
    options = RuntimeOptions(CPU.name, custom_ops=OFF, profile=profile, control_inputs=True, split=False)
    with _measured(component):
        return open_graph(proto, path, component, CPU, options, NONE)


def run_plain(session: Session, feed: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs by name.

    Raises:
        BadModelError: it does not run on these inputs.
    """
    with _measured(session.component):
        return session.run(feed)


@contextmanager
def _measured(component: str) -> Iterator[None]:
    """Blame the model, and no provider, for what the CPU cannot run."""
    try:
        yield
    except (BadModelError, ProviderError) as error:
        raise BadModelError(f"it cannot be measured: {error.message}", component=component) from error


def range_of(pieces: Iterable[Array]) -> Range:
    """The range of an array that comes in pieces."""
    largest, count, over, gone = 0.0, 0, 0, 0
    for piece in pieces:
        sizes = np.abs(piece)
        sizes = np.where(sizes >= MEANT, 0, sizes)
        count += sizes.size
        largest = max(largest, float(sizes.max(initial=0.0)))
        over += int((sizes > LARGEST).sum())
        gone += int(((sizes > 0) & (sizes <= VANISHING)).sum())
    return Range(largest, over / max(count, 1), gone / max(count, 1))


def _run_all(
    proto: onnx.ModelProto, folder: Path, feeds: Sequence[Feeds], component: str
) -> Iterable[dict[str, Array]]:
    session = open_plain(proto, folder / GRAPH_FILE, component)
    return (run_plain(session, feed) for feed in feeds)


def _refuse_infinite(outputs: Mapping[str, Array], component: str) -> None:
    bad = [name for name, value in outputs.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if bad:
        raise ParityError(
            f"output {bad[0]!r} has NaN or infinite values in fp32 already",
            component=component,
            hint="The model itself is broken: export it again, or check the checkpoint.",
        )


def _computed(editor: Editor) -> list[str]:
    """The fp32 tensors that are no weights, without those that only show another one."""
    made = [t for node in editor.graph.nodes if node.op not in MOVES for t in node.outputs]
    tensors = (t for t in [*editor.graph.inputs, *made] if t.name and editor.dtype(t) == np.float32)
    return list({tensor.name: None for tensor in tensors})


def _constants(editor: Editor) -> Iterable[tuple[str, Range]]:
    seen = {t.name: t for n in editor.graph.nodes for t in n.inputs if isinstance(t, gs.Constant)}
    for name, tensor in seen.items():
        if editor.dtype(tensor) == np.float32:
            yield name, range_of(as_weight(tensor._values).pieces())


def _is_odd(measured: Range) -> bool:
    # Not a number compares as false.
    return measured.too_large or measured.too_small or not measured.largest < MEANT


def _note_extremes(ranges: Ranges, outputs: Mapping[str, Array]) -> None:
    for name, value in outputs.items():
        tensor, _, what = name.rpartition("//")
        if f"//{what}" in (probes.HIGHEST, probes.LOWEST):
            ranges.tensors[tensor] = ranges.tensors.get(tensor, NO_RANGE).joined(Range(abs(float(value))))
        elif f"//{what}" == probes.LOGITS:
            ranges.logits[tensor] = ranges.logits.get(tensor, NO_RANGE).joined(Range(float(value[0])))


def _note_shares(ranges: Ranges, outputs: Mapping[str, Array]) -> None:
    for name, value in outputs.items():
        if name.endswith(probes.SHARES):
            tensor = name.removesuffix(probes.SHARES)
            ranges.tensors[tensor] = ranges.tensors.get(tensor, NO_RANGE).joined(Range(*map(float, value)))


def _fill_views(editor: Editor, ranges: Ranges) -> None:
    """Nodes are in topological order."""
    for node in editor.graph.nodes:
        if node.op in MOVES and not node.domain and node.inputs[0].name in ranges.tensors:
            ranges.tensors[node.outputs[0].name] = ranges.tensors[node.inputs[0].name]
