"""Files of upscalers, of whatever architecture, as models in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs

from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.graph.symbolic import Dim
from sdort.graph.weights import Weight
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.load import load_model
from sdort.rewrite.inference.facts import Facts
from sdort.upscaling import compact, rrdb, span
from sdort.upscaling.network import COMPONENT, IMAGE, Network
from sdort.upscaling.upscaler_weights import read_upscaler_weights

ARCHITECTURES = (rrdb, compact, span)
KNOWN = "sdort knows ESRGAN (RRDB), Real-ESRGAN, BSRGAN, compact (SRVGG) and SPAN, and any upscaler as .onnx."
FACTS_KEY = "sdort.upscaler"
"""Entry of the graph's metadata with :class:`UpscalerFacts` as JSON."""
_SIDE = 64
"""Pixels of a side at which a graph is measured: a multiple of every architecture's window."""
_WINDOWS = (1, 2, 4, 8, 16)
"""Pixels that the sides of an image may have to be a multiple of: windows have 8 or 16."""
_OTHERS = {
    "SwinIR": ("layers.0.residual_group.blocks.0.attn.qkv.weight", "patch_embed.norm.weight"),
    "DAT": ("layers.0.blocks.0.attn.attns.0.pos.pos_proj.weight", "layers.0.blocks.0.ffn.fc1.weight"),
    "HAT": ("layers.0.residual_group.overlap_attn.qkv.weight",),
    "OmniSR": ("residual_layer.0.residual_layer.0.layer.0.fn.0.weight",),
    "RealPLKSR": ("feats.0.weight", "feats.1.lk.conv.weight"),
    "ATD": ("layers.0.residual_group.layers.0.attn_win.qkv.weight",),
    "SAFMN": ("feats.0.safm.mfr.0.weight",),
    "Real-CUGAN": ("unet1.conv1.conv.0.weight",),
}
"""Architecture -> tensors that its files have, any of them: to name what is refused (spandrel's own marks)."""


@dataclass(frozen=True)
class UpscalerFacts:
    """How an upscaler's graph is to be used.

    Attributes:
        architecture: its name, or ``ONNX``.
        scale: how many times as high and wide the result is.
        channels: of the input and of the result: 3 for RGB, 1 for grey.
        multiple: the input's sides are a multiple of this many pixels.
        fixed: the input's height and width, where the graph takes no other.
        bytes_per_pixel: most bytes of activations that live at once, for each pixel of the input.
    """

    architecture: str
    scale: int
    channels: int
    multiple: int
    fixed: tuple[int, int] | None = None
    bytes_per_pixel: int = 0

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def read_facts(metadata: Mapping[str, str]) -> UpscalerFacts | None:
    """The facts in a graph's metadata, as :func:`read_upscaler` wrote them; None where there are none."""
    try:
        values = json.loads(metadata[FACTS_KEY])
        fixed = values.pop("fixed")
        facts = UpscalerFacts(**values, fixed=tuple(fixed) if fixed else None)
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    numbers = (facts.scale, facts.channels, facts.multiple, *(facts.fixed or ()))
    whole = all(type(number) is int and 0 < number < 1 << 16 for number in numbers)
    return facts if whole and type(facts.bytes_per_pixel) is int else None


def known_scale(path: Path) -> int | None:
    """How many times as large an upscaler makes an image, as far as that is seen without reading its graph: None of an
    ``.onnx`` file.

    Raises:
        BadModelError: the file cannot be read, or is none that sdort knows.
    """
    if path.suffix.lower() == ".onnx":
        read_component(path, COMPONENT)
        return None
    weights = read_upscaler_weights(path)
    return _built(path, weights)[2]


def _built(path: Path, weights: dict[str, Weight]) -> tuple[Network, str, int, int, str]:
    """The network of an architecture, as :func:`sdort.upscaling.rrdb.build`, and the architecture's name."""
    architecture = next((each for each in ARCHITECTURES if each.recognise(weights)), None)
    if architecture is None:
        raise _unknown(path, list(weights))
    try:
        return (*architecture.build(weights), architecture.NAME)
    except BadModelError as error:
        raise BadModelError(f"{path.name}: {error.message}", hint=error.hint) from error


def read_upscaler(path: Path) -> tuple[Model, UpscalerFacts]:
    """An upscaler's graph in fp32, whose weights are described, and how to use it.

    Args:
        path: ``.safetensors``, a file of ``torch.save`` (``.pth``, ``.pt``, ``.ckpt``), or ``.onnx``.

    Raises:
        BadModelError: it cannot be read, is damaged, or is none that sdort knows.
    """
    if path.suffix.lower() == ".onnx":
        return _of_graph(path)
    network, image, scale, multiple, name = _built(path, read_upscaler_weights(path))
    channels = network.channels[IMAGE], network.channels[image]
    _check_channels(path, *channels)
    try:
        return network.model(image, scale, {}), UpscalerFacts(name, scale, channels[0], multiple)
    except BadModelError as error:
        raise BadModelError(f"{path.name}: {error.message}", hint=error.hint) from error


def _of_graph(path: Path) -> tuple[Model, UpscalerFacts]:
    """An ``.onnx`` file of somebody's, whose scale is read from its sizes."""
    model = load_model(path, COMPONENT)
    graph = model.graph
    if len(graph.inputs) != 1 or len(graph.outputs) != 1 or len(graph.inputs[0].shape or ()) != 4:
        counts = f"{len(graph.inputs)} inputs and {len(graph.outputs)} outputs"
        raise BadModelError(
            f"{path} is no upscaler: it has {counts}, and an upscaler takes and gives one image "
            "[images, channels, height, width]",
            hint=KNOWN,
        )
    (source,), (result,) = graph.inputs, graph.outputs
    if np.dtype(source.dtype).kind != "f":
        raise BadModelError(f"{path} takes {source.dtype}, and an upscaler takes floats from 0 to 1")
    _, channels, *sides = source.shape
    fixed = tuple(sides) if all(isinstance(side, int) and side > 0 for side in sides) else None
    height, width = fixed or (_SIDE, _SIDE)
    count = channels if isinstance(channels, int) and channels > 0 else 3
    shape = facts_at(graph, model.component, (1, count, height, width)).shape(result)
    scale = _scale(shape, (height, width))
    if scale is None or shape is None or len(shape) != 4:
        text = "unknown sizes" if shape is None else f"[{', '.join(map(str, shape))}]"
        raise BadModelError(
            f"{path}: of an image of {width}x{height} pixels it makes {text}, no whole number of times as large",
            hint=KNOWN,
        )
    made = shape[1] if isinstance(shape[1], int) else count
    _check_channels(path, count, made)
    return model, UpscalerFacts("ONNX", scale, count, 1 if fixed else _multiple(model, count, scale), fixed)


def _multiple(model: Model, channels: int, scale: int) -> int:
    """The least number of pixels whose multiples a graph takes as sides, as far as its sizes tell."""
    for window in _WINDOWS[:-1]:
        sides = 5 * window, 7 * window
        with suppress(BadModelError):
            shape = facts_at(model.graph, model.component, (1, channels, *sides)).shape(model.graph.outputs[0])
            if _scale(shape, sides) == scale:
                return window
    return _WINDOWS[-1]


def _scale(shape: Sequence[Dim] | None, sides: tuple[int, int]) -> int | None:
    if shape is None or len(shape) != 4:
        return None
    height, width = shape[2:]
    if not isinstance(height, int) or not isinstance(width, int):
        return None
    scale = height // sides[0]
    return scale if 0 < scale <= 16 and (scale * sides[0], scale * sides[1]) == (height, width) else None


def _check_channels(path: Path, taken: int, made: int) -> None:
    if taken != made or taken not in (1, 3):
        raise BadModelError(
            f"{path} takes images of {taken} channels and makes some of {made}: sdort upscales RGB and grey images",
            hint="Choose an upscaler for RGB images.",
        )


def _unknown(path: Path, names: list[str]) -> BadModelError:
    name = next((kind for kind, marks in _OTHERS.items() if any(mark in names for mark in marks)), None)
    if name:
        return BadModelError(
            f"{path} is an upscaler of the architecture {name}, which sdort does not build from its weights",
            hint=f"Give it as .onnx: many are published so, and chaiNNer converts others. {KNOWN}",
        )
    shown = ", ".join(names[:3])
    return BadModelError(
        f"{path} is no upscaler that sdort knows: its first tensors are {shown}", hint=f"Is it the right file? {KNOWN}"
    )


def facts_at(graph: gs.Graph, component: str, shape: tuple[int, ...]) -> Facts:
    """Shapes and types of all tensors of a graph whose first input has a shape of numbers."""
    source = graph.inputs[0]
    facts = Facts(graph.opset, component)
    facts.declare([gs.Variable(source.name, source.dtype, shape)])
    for node in graph.nodes:
        facts.infer(node)
    return facts


def peak_bytes_per_pixel(model: Model, facts: UpscalerFacts) -> int:
    """Most bytes of tensors that live at once when the graph runs node by node, for each pixel of its input.

    A tensor lives from its node to its last reader. What a convolution needs beside, and what the runtime reuses in
    place, is not counted.

    Args:
        model: a graph that takes bytes.
    """
    height, width = facts.fixed or (_SIDE, _SIDE)
    known = facts_at(model.graph, model.component, (1, height, width, facts.channels))
    last = {tensor.name: number for number, node in enumerate(model.graph.nodes) for tensor in node.inputs}
    ends: dict[int, int] = {}
    live = peak = 0
    for number, node in enumerate(model.graph.nodes):
        for tensor in node.outputs:
            size, end = _nbytes(known, tensor), last.get(tensor.name, len(model.graph.nodes))
            live += size
            ends[end] = ends.get(end, 0) + size
        peak = max(peak, live)
        live -= ends.pop(number, 0)
    return math.ceil(peak / (height * width))


def _nbytes(known: Facts, tensor: gs.Tensor) -> int:
    shape, dtype = known.shape(tensor), known.of(tensor).dtype
    if shape is None or not all(isinstance(side, int) for side in shape):
        return 0
    return (
        math.prod(side for side in shape if isinstance(side, int))
        * (np.dtype(np.float32) if dtype is None else dtype).itemsize
    )
