"""Move the convolutional trunk to channels-last as one region.

A forward sweep keeps, for every image tensor, its channels-last twin. Operators that have a channels-last form read and
write twins; a transpose to or from channels-last is then only a change of name. What is left are the transposes at
the region's border: an image that comes in, an image that goes out.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sdort.model.domains import MICROSOFT
from sdort.model.symbolic import Shape
from sdort.model.weights import Reshaped, Transposed, as_weight, cast_values
from sdort.rewrite.editor import Editor, array
from sdort.rewrite.fusion import Support

TO_LAST = [0, 2, 3, 1]
TO_FIRST = [0, 3, 1, 2]
UNARY = frozenset({"Sigmoid", "Gelu", "Erf", "Tanh", "Identity", "Cast", "Sqrt", "Exp", "Neg", "Clip"})
BINARY = frozenset({"Add", "Sub", "Mul", "Div"})


def run(editor: Editor, support: Support) -> int:
    """Convert every region that holds a convolution or group normalization.

    Returns:
        The number of nodes that are channels-last now, and of transposes at the regions' borders.
    """
    region = Region(editor, support)
    for node in list(editor.graph.nodes):
        if node.outputs and not (node.domain or ""):
            region.visit(node)
    region.leave()
    editor.finish()
    return region.changes


def _can_turn(conv: gs.Node) -> bool:
    """Whether the filters can be turned, and how far the image is padded is no question of its size."""
    return isinstance(conv.inputs[1], gs.Constant) and conv.attrs.get("auto_pad", "NOTSET") == "NOTSET"


class Region:
    """The channels-last twins found so far."""

    def __init__(self, editor: Editor, support: Support) -> None:
        self.editor = editor
        self.support = support
        self.twins: dict[str, gs.Tensor] = {}
        self.originals: dict[str, gs.Tensor] = {}
        self.changes = 0

    # --- twins ---

    def twin(self, tensor: gs.Tensor) -> gs.Tensor | None:
        """The channels-last twin, made where it costs nothing or enters the region; None if the shape is unknown."""
        shape = self.editor.shape(tensor)
        if tensor.name in self.twins:
            return self.twins[tensor.name]
        if shape is None or len(shape) != 4:
            return None
        if isinstance(tensor, gs.Constant):
            return self.editor.constant(Transposed(as_weight(tensor._values), TO_LAST), tensor.name)
        if shape[2:] == (1, 1):  # one pixel: channels-last is a view
            made = self.editor.op("Reshape", [tensor, self.editor.ints([0, 1, 1, -1])])
        else:
            made = self.editor.op("Transpose", [tensor], {"perm": TO_LAST})
        self._remember(tensor, made)
        return made

    def _remember(self, tensor: gs.Tensor, twin: gs.Tensor) -> None:
        self.twins[tensor.name] = twin
        self.originals[tensor.name] = tensor
        self.editor.layouts[twin.name] = tensor.name

    def _convert(self, node: gs.Node, twin: gs.Tensor) -> None:
        """The node's output is computed as ``twin`` from now on."""
        self.changes += 1
        self._remember(node.outputs[0], twin)
        node.inputs.clear()
        node.outputs.clear()

    def leave(self) -> None:
        """Give readers outside the region their channels-first tensors back."""
        for name, tensor in self.originals.items():
            lost = isinstance(tensor, gs.Variable) and not tensor.inputs
            if lost and not any(tensor is i for i in self.editor.graph.inputs):
                self.editor.node("Transpose", [self.twins[name]], {"perm": TO_FIRST}, outputs=[tensor])
                self.changes += 1

    # --- operators ---

    def visit(self, node: gs.Node) -> None:
        if node.op in ("Conv", "GroupNormalization"):
            self._kernel(node)
        elif node.op == "Transpose":
            self._transpose(node)
        elif any(t.name in self.twins for t in node.inputs):
            if node.op in UNARY:
                self._elementwise(node, 1)
            elif node.op == "Relu":
                self._relu(node)
            elif node.op in BINARY:
                self._elementwise(node, 2)
            elif node.op == "Concat":
                self._concat(node)
            elif node.op == "Resize":
                self._resize(node)
            elif node.op == "Pad":
                self._pad(node)

    def _shape(self, tensor: gs.Tensor) -> Shape:
        return self.editor.shape(tensor) or ()

    def _kernel(self, node: gs.Node) -> None:
        """Conv -> NhwcConv (weights OHWI), GroupNormalization -> GroupNorm, if the target has the kernel."""
        if not (_can_turn(node) if node.op == "Conv" else self._fixed_channels(node)):
            return
        x = self.twin(node.inputs[0])
        if x is None:
            return
        if node.op == "Conv":
            kernel = self.editor.constant(Transposed(as_weight(node.inputs[1]._values), TO_LAST), node.inputs[1].name)
            # ORT infers shapes from this attribute: from the weights it would take the wrong axes.
            attrs = {**node.attrs, "kernel_shape": [int(d) for d in node.inputs[1].shape[2:]]}
            made = self.editor.node("NhwcConv", [x, kernel, *node.inputs[2:]], attrs, domain=MICROSOFT)
        else:
            attrs = {"groups": node.attrs["num_groups"], "epsilon": node.attrs.get("epsilon", 1e-5)}
            attrs |= {"activation": 0, "channels_last": 1}
            made = self.editor.node("GroupNorm", [x, *map(self._float32, node.inputs[1:])], attrs, domain=MICROSOFT)
        # A GroupNorm of a form that the kernel refuses is decomposed later: channels-first would cost two transposes.
        if node.op == "Conv" and self.support.unsupported(made, self.editor):
            made.inputs.clear()
            made.outputs.clear()
            return
        self._convert(node, made.outputs[0])

    def _fixed_channels(self, norm: gs.Node) -> bool:
        """Whether the image has as many channels as gamma and beta, and a number of them: its kernel asks for both."""
        image, *weights = (self._shape(tensor) for tensor in norm.inputs)
        return len(image) == 4 and isinstance(image[1], int) and all(shape == image[1:2] for shape in weights)

    def _float32(self, tensor: gs.Tensor) -> gs.Tensor:
        """ORT's kernels read gamma and beta as fp32 whatever the image is."""
        if self.editor.dtype(tensor) in (None, np.float32):
            return tensor
        if isinstance(tensor, gs.Constant):
            return self.editor.constant(cast_values(tensor._values, np.float32), tensor.name)
        return self.editor.cast(tensor, np.dtype(np.float32)).outputs[0]

    def _transpose(self, node: gs.Node) -> None:
        source, output = node.inputs[0], node.outputs[0]
        if node.attrs.get("perm") == TO_LAST and source.name in self.twins:
            self.changes += 1
            self.editor.replace(output, self.twins[source.name])
            node.inputs.clear()
            node.outputs.clear()
        elif node.attrs.get("perm") == TO_FIRST:
            self._remember(output, source)

    def _elementwise(self, node: gs.Node, count: int) -> None:
        shape = self._shape(node.outputs[0])
        if len(shape) != 4:
            return
        inputs = []
        for tensor in node.inputs[:count]:
            twin = self._operand(tensor)
            if twin is None:
                return
            inputs.append(twin)
        made = self.editor.op(node.op, [*inputs, *node.inputs[count:]], dict(node.attrs))
        self._convert(node, made)

    def _relu(self, node: gs.Node) -> None:
        """Relu -> Max with 0.

        Of a NhwcConv and a Relu behind it ONNX Runtime makes a NhwcFusedConv (its ConvActivationFusion), which no
        provider has a kernel for.
        """
        x = self.twin(node.inputs[0])
        if x is not None:
            zero = self.editor.constant(np.zeros((), self.editor.dtype(x) or np.float32), "zero")
            self._convert(node, self.editor.op("Max", [x, zero]))

    def _operand(self, tensor: gs.Tensor) -> gs.Tensor | None:
        """An operand of an elementwise operator; lower ranks broadcast from the right, so only some have a twin."""
        shape = self._shape(tensor)
        if len(shape) == 4:
            return self.twin(tensor)
        if all(d == 1 for d in shape):
            return tensor
        if isinstance(tensor, gs.Constant) and len(shape) == 3 and shape[1:] == (1, 1):
            return self.editor.constant(Reshaped(as_weight(tensor._values), tensor.shape[:1]), tensor.name)
        return None

    def _concat(self, node: gs.Node) -> None:
        if node.attrs["axis"] % 4 != 1 or len(self._shape(node.outputs[0])) != 4:
            return
        twins = [self.twin(t) for t in node.inputs]
        if all(t is not None for t in twins):
            self._convert(node, self.editor.op("Concat", [t for t in twins if t is not None], {"axis": 3}))

    def _resize(self, node: gs.Node) -> None:
        """Scales and sizes move with their axes.

        Only where no neighbours are weighed: ORT's linear and cubic kernels take the last two axes for height and width
        (onnxruntime/core/providers/cuda/tensor/resize_impl.cu).
        """
        cropping = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        if node.attrs.get("mode", "nearest") != "nearest" or cropping or "axes" in node.attrs:
            return
        x = self.twin(node.inputs[0])
        if x is None:
            return
        empty = gs.Variable.empty()
        scales = array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2].name else None
        if scales is not None and scales.size == 4:
            permuted = self.editor.constant(np.asarray(scales)[TO_LAST], "scales")
            made = self.editor.op("Resize", [x, empty, permuted], dict(node.attrs))
        elif len(node.inputs) > 3:
            # All four sizes: ORT's transpose optimizer does not know Resize's ``axes``.
            sizes = self.editor.op("Gather", [node.inputs[3], self.editor.ints(TO_LAST)], {"axis": 0})
            made = self.editor.op("Resize", [x, empty, empty, sizes], dict(node.attrs))
        else:
            return
        self._convert(node, made)

    def _pad(self, node: gs.Node) -> None:
        pads = self.editor.dims(node.inputs[1])
        axes = len(node.inputs) > 3
        if axes or pads is None or len(pads) != 8 or not all(isinstance(p, int) for p in pads):
            return
        x = self.twin(node.inputs[0])
        if x is None:
            return
        permuted = [int(pads[start + axis]) for start in (0, 4) for axis in TO_LAST]  # type: ignore[arg-type]
        value = [node.inputs[2]] if len(node.inputs) > 2 else []
        self._convert(node, self.editor.op("Pad", [x, self.editor.ints(permuted), *value], dict(node.attrs)))
