"""Graphs of convolutional networks, written from their weights: no torch, no trace, and every shape is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.graph.signature import Array
from sdort.graph.weights import Reshaped, Scaled, Transposed, Weight, as_weight, cast
from sdort.onnx_io.load import from_proto

COMPONENT = "upscaler"
"""The component's name, for messages."""
IMAGE, RESULT = "image", "result"
"""Names of the graph's input and output: float [images, channels, height, width], from 0 to 1."""
_OPSET = 20
_LARGEST = 1 << 14
"""Channels of a tensor; those of published upscalers have hundreds."""


class Network:
    """A graph that grows from its input. An image is its name; the number of its channels is known to it.

    Args:
        weights: the parameters by name. All have to be used.
        channels: of the input.
    """

    def __init__(self, weights: Mapping[str, Weight], channels: int) -> None:
        self.weights = weights
        self.channels = {IMAGE: channels}
        self.used: set[str] = set()
        self._nodes: list[onnx.NodeProto] = []
        self._values: dict[str, Array | Weight] = {}

    def op(self, kind: str, inputs: Sequence[str], channels: int, **attributes: Any) -> str:
        """One operator with one output of ``channels`` channels."""
        name = f"x{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(kind, list(inputs), [name], name=f"{kind.lower()}_{len(self._nodes)}", **attributes)
        )
        self.channels[name] = channels
        return name

    def convolution(self, image: str, name: str, *, scale: float = 1.0) -> str:
        """The convolution ``NAME.weight`` with ``NAME.bias``, if there is one, which keeps the image's size.

        Args:
            scale: a factor of its result, which the filters and biases take in.
        """
        weight = self.parameter(f"{name}.weight", rank=4)
        filters, taken, height, width = weight.shape
        if taken != self.channels[image] or height != width or height % 2 == 0:
            raise self.wrong(f"{name}.weight", f"[{filters}, {self.channels[image]}, odd, the same]")
        inputs = [image, f"{name}.weight"]
        if f"{name}.bias" in self.weights:
            self.parameter(f"{name}.bias", shape=(filters,))
            inputs.append(f"{name}.bias")
        if scale != 1.0:
            for parameter in inputs[1:]:
                self.constant(Scaled(as_weight(self._values[parameter]), scale), parameter)
        return self.op("Conv", inputs, filters, kernel_shape=[height, width], pads=[height // 2] * 4)

    def parameter(self, name: str, *, rank: int | None = None, shape: tuple[int, ...] | None = None) -> Weight:
        """A parameter, which becomes a constant of the graph in fp32.

        Raises:
            BadModelError: there is none, or it has another shape.
        """
        weight = self.weights.get(name)
        if weight is None:
            raise BadModelError(
                f"the upscaler has no tensor {name!r}", hint="It is damaged, or of another architecture."
            )
        if len(weight.shape) != (rank or len(shape or ())) or (shape is not None and weight.shape != shape):
            raise self.wrong(name, str(list(shape)) if shape is not None else f"of {rank} axes")
        if not all(0 < side <= _LARGEST for side in weight.shape):
            raise self.wrong(name, "smaller and not empty")
        self.used.add(name)
        self.constant(weight if weight.dtype == np.float32 else cast(weight, np.float32), name)
        return weight

    def wrong(self, name: str, expected: str) -> BadModelError:
        """The error for a parameter of another shape."""
        return BadModelError(
            f"the upscaler's tensor {name!r} has the shape {list(self.weights[name].shape)}, not {expected}",
            hint="It is damaged, or of an architecture that sdort does not know.",
        )

    def constant(self, values: Array | Weight, name: str) -> str:
        """A constant of the graph."""
        self._values[name] = values
        return name

    def number(self, value: float) -> str:
        """A scalar."""
        return self.constant(np.array(value, np.float32), f"number_{value!r}")

    def scaled(self, image: str, factor: float) -> str:
        return self.op("Mul", [image, self.number(factor)], self.channels[image])

    def add(self, image: str, other: str) -> str:
        return self.op("Add", [image, other], self.channels[image])

    def concat(self, images: Sequence[str]) -> str:
        return self.op("Concat", images, sum(self.channels[image] for image in images), axis=1)

    def leaky_relu(self, image: str, slope: float) -> str:
        return self.op("LeakyRelu", [image], self.channels[image], alpha=slope)

    def prelu(self, image: str, name: str) -> str:
        """PRelu with a slope for each channel, or one for all."""
        count = self.channels[image]
        slopes = self.weights.get(name)
        self.parameter(name, shape=(1,) if slopes is not None and slopes.shape == (1,) else (count,))
        shape = self.constant(np.array([-1, 1, 1], np.int64), "of_channels")
        return self.op("PRelu", [image, self.op("Reshape", [name, shape], 1)], count)

    def nearest(self, image: str, factor: int) -> str:
        """Each pixel as a square of ``factor`` by ``factor`` pixels."""
        if factor == 1:
            return image
        scales = self.constant(np.array([1, 1, factor, factor], np.float32), f"times_{factor}")
        settings = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.op("Resize", [image, "", scales], self.channels[image], **settings)

    def pixel_shuffle(self, image: str, factor: int) -> str:
        """torch's ``PixelShuffle``: groups of ``factor**2`` channels become squares of pixels."""
        if factor == 1:
            return image
        return self.op("DepthToSpace", [image], self.channels[image] // factor**2, blocksize=factor, mode="CRD")

    def of_unshuffled(self, image: str, name: str, factor: int) -> str:
        """The convolution ``NAME`` of torch's ``PixelUnshuffle``: squares of pixels as channels.

        torch has them in the order channel, row, column, and ONNX's SpaceToDepth channel last: the filters are turned.
        """
        if factor == 1:
            return self.convolution(image, name)
        count = self.channels[image]
        deep = self.op("SpaceToDepth", [image], count * factor**2, blocksize=factor)
        made = self.convolution(deep, name)
        filters, _, height, width = self.weights[f"{name}.weight"].shape
        stored = Reshaped(as_weight(self._values[f"{name}.weight"]), [filters, count, factor**2, height, width])
        turned = Transposed(stored, (0, 2, 1, 3, 4))
        self.constant(Reshaped(turned, [filters, count * factor**2, height, width]), f"{name}.weight")
        return made

    def model(self, image: str, factor: int, metadata: Mapping[str, str]) -> Model:
        """The graph that ends with ``image``, which is ``factor`` times as large as the input.

        Raises:
            BadModelError: parameters were not used, so that it is another architecture than it seemed.
        """
        unused = sorted(set(self.weights) - self.used)
        if unused:
            raise BadModelError(
                f"the upscaler has tensors that its architecture does not know: {', '.join(unused[:3])}"
                f"{' ...' * (len(unused) > 3)}",
                hint="It is a variant that sdort does not know. Give the model as .onnx, if its author has one.",
            )
        self._nodes.append(helper.make_node("Identity", [image], [RESULT], name="identity"))
        sides = ["height", "width"]
        result = [f"{factor}*{side}" for side in sides] if factor != 1 else sides
        graph = helper.make_graph(
            self._nodes,
            COMPONENT,
            [helper.make_tensor_value_info(IMAGE, TensorProto.FLOAT, ["images", self.channels[IMAGE], *sides])],
            [helper.make_tensor_value_info(RESULT, TensorProto.FLOAT, ["images", self.channels[image], *result])],
            [self._initializer(name, values) for name, values in self._values.items()],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
        helper.set_model_props(proto, dict(metadata))
        weights = {name: values for name, values in self._values.items() if isinstance(values, Weight)}
        return from_proto(proto, lambda tensor: weights.get(tensor.name), COMPONENT)

    @staticmethod
    def _initializer(name: str, values: Array | Weight) -> TensorProto:
        if isinstance(values, Weight):
            return TensorProto(name=name, dims=values.shape, data_type=TensorProto.FLOAT)
        return numpy_helper.from_array(values, name)


def square_root(number: int) -> int | None:
    """The whole root of a number, None where it has none."""
    root = math.isqrt(max(number, 0))
    return root if root * root == number and root > 0 else None


def shuffled(filters: int, channels: int) -> tuple[int, int] | None:
    """Scale and channels of an image that ``filters`` channels are shuffled into; as many as the input has, if that is
    possible, else 3, 4 or 1, as spandrel's ``get_scale_and_output_channels``."""
    for count in (channels, 3, 4, 1):
        root = square_root(filters // count) if filters % count == 0 else None
        if root:
            return root, count
    return None
