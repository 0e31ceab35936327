"""Move the bias of a convolution or projection into what reads the result and adds something anyway.

GPU providers add a bias by a kernel of its own, which reads and writes the whole image once more. A forward sweep
keeps, for every tensor that such a bias was left out of, the tensor without it and what it lacks in each channel. Sums,
concatenations, views and nearest upsampling hand that on; norms, residual sums and the projection of a time embedding
take it into a bias of theirs. A bias stays where it is unless every reader of its tensor does one or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.domains import MICROSOFT, OWN_DOMAIN
from sdort.graph.weights import Combined, Concatenated, Inline, Reshaped, Weight, as_weight
from sdort.rewrite.editor import Editor, array, producer
from sdort.rewrite.fusion import Support
from sdort.workload.steering_inputs import is_residual


def run(editor: Editor, support: Support) -> int:
    """Move the biases of channels-last convolutions, and those of projections that an Add of their own adds.

    Returns:
        The number of biases moved.
    """
    sweep = Sweep(editor, support)
    for node in list(editor.graph.nodes):
        sweep.visit(node)
    sweep.complete_forms()
    editor.finish()
    return sweep.moved


class Lean(NamedTuple):
    """The replacement of a tensor of which a bias was left out."""

    tensor: gs.Tensor
    bias: Weight
    """The bias that ``tensor`` lacks, [channels]."""
    reader: gs.Node | None
    """The only one that reads ``tensor``, and writes the sum for the others; None where all readers do."""


class Sweep:
    """The lean tensors found so far, and which tensors need not be computed with their biases."""

    def __init__(self, editor: Editor, support: Support) -> None:
        self.editor = editor
        self.support = support
        self.lean: dict[str, Lean] = {}
        self.spared: set[str] = set()
        """Tensors that no reader needs: each takes the lean one and the bias."""
        self.moved = 0
        for node in reversed(editor.graph.nodes):
            self.spared |= {tensor.name for tensor in node.outputs if self._is_spared(tensor)}

    def _is_spared(self, tensor: gs.Tensor) -> bool:
        if self.editor.is_output(tensor) or self.channels(tensor) is None:
            return False
        readers = list(tensor.outputs)  # asking whether a kernel takes a node makes one for a moment
        return all(
            (reader := READERS.get(_name(node))) is not None
            and index in reader.inputs(node)
            and reader.takes(self, node)
            for node in readers
            for index, read in enumerate(node.inputs)
            if read is tensor
        )

    def visit(self, node: gs.Node) -> None:
        bias = self._own_bias(node)
        if bias is not None:
            self._leave_out(node, bias)
        elif _name(node) in READERS and any(self.known(tensor, node) for tensor in node.inputs):
            READERS[_name(node)].move(self, node)

    # --- where biases come from ---

    def _own_bias(self, node: gs.Node) -> gs.Constant | None:
        """The bias that a node adds to each channel of an image or sequence."""
        if _name(node) == f"{MICROSOFT}.NhwcConv":
            bias = node.inputs[2] if len(node.inputs) > 2 else None
        elif _name(node) == "Add":
            bias = next((tensor for tensor in node.inputs if isinstance(tensor, gs.Constant)), None)
            shapes = [self.editor.shape(tensor) for tensor in node.inputs if tensor is not bias]
            if shapes != [self.editor.shape(node.outputs[0])]:
                return None
        else:
            return None
        fits = bias is not None and _is_vector(bias) and bias.shape[0] == self.channels(node.outputs[0])
        return bias if fits else None

    def _leave_out(self, node: gs.Node, bias: gs.Constant) -> None:
        """Compute the node's output without the bias, if that helps."""
        output = node.outputs[0]
        reader = None if output.name in self.spared else self._writer(output)
        if output.name not in self.spared and reader is None:
            return
        self.moved += 1
        rest = [tensor for tensor in node.inputs if tensor is not bias]
        made = rest[0] if node.op == "Add" else self.editor.op(node.op, rest, dict(node.attrs), domain=MICROSOFT)
        self.lean[output.name] = Lean(made, as_weight(bias._values), reader)

    def _writer(self, tensor: gs.Tensor) -> gs.Node | None:
        """The first group normalization that could write the sum with the bias on its way."""
        norms = [node for node in tensor.outputs if _name(node) == f"{MICROSOFT}.GroupNorm"]
        # One whose scales are computed from the tensor would wait for itself.
        fixed = [norm for norm in norms if all(isinstance(weight, gs.Constant) for weight in norm.inputs[1:])]
        able = [norm for norm in fixed if _has_own_norm(self, norm)]
        return None if self.editor.is_output(tensor) else min(able, key=self.editor.position, default=None)

    # --- for those that take them ---

    def channels(self, tensor: gs.Tensor) -> int | None:
        """The size of the last axis of an image or sequence."""
        shape = self.editor.shape(tensor)
        return shape[-1] if shape and len(shape) in (3, 4) and isinstance(shape[-1], int) else None

    def supports(self, op: str, domain: str, inputs: list[gs.Tensor], attrs: dict[str, object] | None = None) -> bool:
        """Whether the target has a kernel for such a node."""
        node = gs.Node(op, "", dict(attrs or {}), inputs, [gs.Variable("")], domain=domain)
        supported = self.support.unsupported(node, self.editor) is None
        node.inputs.clear()
        return supported

    def known(self, tensor: gs.Tensor, reader: gs.Node) -> Lean | None:
        """The replacement that a reader may read; None if it reads the tensor itself."""
        lean = self.lean.get(tensor.name)
        return None if lean is None or (lean.reader is not None and lean.reader is not reader) else lean

    def take(self, node: gs.Node, index: int) -> Weight | None:
        """Let a node read a lean tensor; the bias that it lacks."""
        lean = self.known(node.inputs[index], node)
        if lean is None:
            return None
        node.inputs[index] = lean.tensor
        self.editor.origins[node.name] = (*self.editor.origins.get(node.name, ()), self.editor.step)
        return lean.bias

    def add_to(self, node: gs.Node, index: int, biases: Iterable[Weight | None]) -> None:
        """Add biases to that which is an input of a node, or might be."""
        while len(node.inputs) <= index:
            node.inputs.append(gs.Variable.empty())
        present = node.inputs[index]
        own = as_weight(present._values) if isinstance(present, gs.Constant) else None
        node.inputs[index] = self.editor.constant(total([own, *biases]), "bias")

    def complete_forms(self) -> None:
        """Give a bias to every sdort.GroupNorm if one has it: a model has one form of each (own_functions.py)."""
        norms = [node for node in self.editor.graph.nodes if _name(node) == f"{OWN_DOMAIN}.GroupNorm"]
        if not any(len(node.inputs) > 5 and node.inputs[5].name for node in norms):
            return
        for node in norms:
            x, channels = node.inputs[0], self.channels(node.outputs[0])
            if len(node.inputs) < 6 and channels is not None:
                self.add_to(node, 5, [Inline(np.zeros(channels, self.editor.dtype(x)))])

    def hand_on(self, node: gs.Node, inputs: list[gs.Tensor], bias: Weight) -> None:
        """Compute a node's output without the bias."""
        made = self.editor.op(node.op, inputs, dict(node.attrs), domain=node.domain or "")
        self.lean[node.outputs[0].name] = Lean(made, bias, None)


def total(biases: Iterable[Weight | None]) -> Weight:
    """The sum of those that are there."""
    parts = [bias for bias in biases if bias is not None]
    if len(parts) == 1:
        return parts[0]
    rows = Concatenated([Reshaped(part, [1, *part.shape]) for part in parts], 0)
    return Reshaped(Combined(rows, 0, [[1] * len(parts)]), parts[0].shape)


def _name(node: gs.Node) -> str:
    return f"{node.domain}.{node.op}" if node.domain else str(node.op)


def _is_vector(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) and len(tensor.shape) == 1 and tensor.shape[0] > 1


def _free(node: gs.Node, index: int) -> bool:
    """Whether a node's bias is a constant or left out."""
    return len(node.inputs) <= index or not node.inputs[index].name or _is_vector(node.inputs[index])


# --- those that add a bias of their own ---


def _skip_group_norm(sweep: Sweep, node: gs.Node) -> None:
    """The bias goes into the projection of a time embedding that is added to every pixel; else it is the norm's own."""
    biases = [sweep.take(node, index) for index in (0, 3)]
    gemm = producer(node.inputs[3], "Gemm")
    adds = gemm is not None and len(gemm.inputs) > 2 and _is_vector(gemm.inputs[2]) and gemm.attrs.get("beta", 1) == 1
    if gemm is not None and adds and len(node.inputs[3].outputs) == 1 and not sweep.editor.is_output(node.inputs[3]):
        # Another node: what it gives is no longer the projection that the original graph has under this name.
        node.inputs[3] = sweep.editor.op("Gemm", list(gemm.inputs), dict(gemm.attrs))
        sweep.add_to(node.inputs[3].inputs[0], 2, biases)
    else:
        sweep.add_to(node, 4, biases)


def _bias_at(index: int, *inputs: int) -> Callable[[Sweep, gs.Node], None]:
    """The node's input ``index`` is a bias that it adds to ``inputs``."""

    def move(sweep: Sweep, node: gs.Node) -> None:
        sweep.add_to(node, index, [sweep.take(node, i) for i in inputs])

    return move


def _has_own_norm(sweep: Sweep, node: gs.Node) -> bool:
    x, gamma, beta = node.inputs
    return sweep.supports("BiasGroupNorm", OWN_DOMAIN, [x, gamma, beta, gamma], node.attrs)


def _group_norm(sweep: Sweep, node: gs.Node) -> None:
    """ONNX Runtime's GroupNorm takes no bias, sdort's does; it writes the sum where others need it."""
    x, gamma, beta = node.inputs
    lean = sweep.known(x, node)
    assert lean is not None
    inputs = [lean.tensor, gamma, beta, sweep.editor.constant(lean.bias, "bias")]
    outputs = [node.outputs[0], x if lean.reader is not None else gs.Variable.empty()]
    sweep.editor.node("BiasGroupNorm", inputs, dict(node.attrs), outputs=outputs, domain=OWN_DOMAIN)


def _has_own_layer_norm(sweep: Sweep, node: gs.Node) -> bool:
    x, axis = node.inputs[0], node.attrs.get("axis", -1)
    if len(node.inputs) != 3 or len(node.outputs) != 1 or axis not in (-1, len(sweep.editor.shape(x) or ()) - 1):
        return False
    gamma, beta = node.inputs[1:]
    return sweep.supports("BiasLayerNormalization", OWN_DOMAIN, [x, gamma, beta, gamma])


def _layer_norm(sweep: Sweep, node: gs.Node) -> None:
    """ONNX's LayerNormalization adds nothing to what it reads, sdort's own does."""
    lean = sweep.known(node.inputs[0], node)
    assert lean is not None
    inputs = [lean.tensor, *node.inputs[1:], sweep.editor.constant(lean.bias, "bias")]
    settings = {"epsilon": node.attrs.get("epsilon", 1e-5)}
    sweep.editor.node("BiasLayerNormalization", inputs, settings, outputs=list(node.outputs), domain=OWN_DOMAIN)


def _concat_group_norm(sweep: Sweep, node: gs.Node) -> None:
    sizes = [sweep.channels(tensor) for tensor in node.inputs[:2]]
    parts = [sweep.take(node, index) for index in (0, 1)]
    sweep.add_to(node, 5, [_joined(parts, [size for size in sizes if size is not None])])


def _joined(parts: list[Weight | None], sizes: list[int]) -> Weight:
    """The biases of tensors of which some lack none, one after the other."""
    dtype = next(part.dtype for part in parts if part is not None)
    whole = [part or Inline(np.zeros(size, dtype)) for part, size in zip(parts, sizes, strict=True)]
    return whole[0] if len(whole) == 1 else Concatenated(whole, 0)


# --- those that hand it on ---


def _drop(sweep: Sweep, node: gs.Node) -> None:
    """A tensor's shape does not depend on its values."""
    sweep.take(node, 0)


def _is_sum(sweep: Sweep, node: gs.Node) -> bool:
    """Whether two tensors of one shape are added, and the sum may lack a bias or can be made to add it."""
    x, skip = node.inputs
    alike = sweep.channels(x) is not None and sweep.editor.shape(x) == sweep.editor.shape(skip)
    if not alike or isinstance(x, gs.Constant) or isinstance(skip, gs.Constant):
        return False
    if _hands_on(sweep, node):
        return True
    # What a control adds stays a node of its own (control_inputs.py).
    return not any(map(_is_control, node.inputs)) and sweep.supports("BiasAdd", MICROSOFT, [x, x, skip])


def _is_control(tensor: gs.Tensor) -> bool:
    """Whether a tensor is one of a UNet's inputs for controls, moved or scaled at most."""
    while tensor.inputs and tensor.inputs[0].op in ("Cast", "Mul", "Reshape", "Transpose"):
        tensor = tensor.inputs[0].inputs[0]
    return is_residual(tensor.name)


def _add(sweep: Sweep, node: gs.Node) -> None:
    biases = [sweep.take(node, index) for index in (0, 1)]
    bias = total(biases)
    if node.outputs[0].name in sweep.spared:
        return sweep.hand_on(node, list(node.inputs), bias)
    _bias_add(sweep.editor, node, sweep.editor.constant(bias, "bias"))
    return None


def _bias_add(editor: Editor, node: gs.Node, bias: gs.Constant) -> None:
    """The sum as a BiasAdd, which takes sequences: the pixels of an image are one."""
    x, skip = node.inputs
    if len(editor.shape(x) or ()) == 3:
        editor.node("BiasAdd", [x, bias, skip], domain=MICROSOFT, outputs=list(node.outputs))
        return
    pixels = editor.ints([0, -1, bias.shape[0]])
    rows = [editor.op("Reshape", [tensor, pixels]) for tensor in (x, skip)]
    added = editor.op("BiasAdd", [rows[0], bias, rows[1]], domain=MICROSOFT)
    editor.node("Reshape", [added, editor.op("Shape", [skip])], outputs=list(node.outputs))


def _joins_channels(sweep: Sweep, node: gs.Node) -> bool:
    rank = len(sweep.editor.shape(node.outputs[0]) or ())
    return _hands_on(sweep, node) and node.attrs["axis"] % rank == rank - 1 and all(map(sweep.channels, node.inputs))


def _concat(sweep: Sweep, node: gs.Node) -> None:
    sizes = [sweep.channels(tensor) for tensor in node.inputs]
    biases = [sweep.take(node, index) for index in range(len(node.inputs))]
    sweep.hand_on(node, list(node.inputs), _joined(biases, [size for size in sizes if size is not None]))


def _hands_on(sweep: Sweep, node: gs.Node) -> bool:
    return node.outputs[0].name in sweep.spared


def _keeps_channels(sweep: Sweep, node: gs.Node) -> bool:
    """Whether each channel of the input is one of the output: a view of rows, or an upsampling."""
    x, y = node.inputs[0], node.outputs[0]
    return _hands_on(sweep, node) and sweep.channels(x) == sweep.channels(y)


def _repeats_pixels(sweep: Sweep, node: gs.Node) -> bool:
    """Whether a Resize takes each pixel from one, and leaves channels alone."""
    nearest = node.attrs.get("mode", "nearest") == "nearest"
    cropping = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    scales = array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2].name else None
    scaled = scales is not None and (scales.size != len(sweep.editor.shape(node.inputs[0]) or ()) or scales[-1] != 1)
    return nearest and not cropping and not scaled and "axes" not in node.attrs and _keeps_channels(sweep, node)


def _first(sweep: Sweep, node: gs.Node) -> None:
    bias = sweep.take(node, 0)
    assert bias is not None
    sweep.hand_on(node, list(node.inputs), bias)


class Reader(NamedTuple):
    """An operator that makes do with tensors that lack a bias."""

    inputs: Callable[[gs.Node], Collection[int]]
    """Those of its inputs that may lack one."""
    takes: Callable[[Sweep, gs.Node], bool]
    """Whether a node does."""
    move: Callable[[Sweep, gs.Node], None]
    """Take what its inputs lack."""


def _reader(
    inputs: Collection[int], takes: Callable[[Sweep, gs.Node], bool], move: Callable[[Sweep, gs.Node], None]
) -> Reader:
    return Reader(lambda node: inputs, takes, move)


READERS = {
    "Shape": _reader([0], lambda sweep, node: True, _drop),
    "Add": _reader([0, 1], _is_sum, _add),
    "Concat": Reader(lambda node: range(len(node.inputs)), _joins_channels, _concat),
    "Reshape": _reader([0], _keeps_channels, _first),
    "Resize": _reader([0], _repeats_pixels, _first),
    f"{MICROSOFT}.BiasAdd": _reader([0, 2], lambda sweep, node: _free(node, 1), _bias_at(1, 0, 2)),
    f"{MICROSOFT}.SkipLayerNormalization": _reader([0, 1], lambda sweep, node: _free(node, 4), _bias_at(4, 0, 1)),
    "LayerNormalization": _reader([0], _has_own_layer_norm, _layer_norm),
    f"{MICROSOFT}.SkipGroupNorm": _reader([0, 3], lambda sweep, node: _free(node, 4), _skip_group_norm),
    f"{MICROSOFT}.GroupNorm": _reader([0], _has_own_norm, _group_norm),
    f"{OWN_DOMAIN}.GroupNorm": _reader([0, 1], lambda sweep, node: _free(node, 5), _concat_group_norm),
}
