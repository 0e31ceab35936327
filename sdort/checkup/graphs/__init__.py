"""The models that are measured: the demo, and Stable Diffusion 1.5's shape with noise for weights.

Their graphs are files of this folder (``scripts/checkup_graphs.py``), so that neither torch nor a download is needed.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from sdort.checkpoints.safetensors import read_tensors
from sdort.demo import DEMO_FOLDER
from sdort.exporter.bind import bind
from sdort.exporter.template import Template, fill, unpack
from sdort.families.component_names import DECODER
from sdort.families.unet_signature import UNET_COMPONENT
from sdort.graph.model import Model
from sdort.graph.signature import Array
from sdort.graph.weights import Absent, Weight
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import from_proto
from sdort.onnx_io.wire import parse_graph
from sdort.providers import load_target

UNET = UNET_COMPONENT
COMPONENTS = (UNET, DECODER)
DEMO, TRUE_SIZE = MODELS = ("demo", "sd15")
TOKENS = 77
FACTOR, CHANNELS = 8, 4
"""Pixels and channels of a latent."""

_NOISE = 1 << 22
"""Values of the noise that every weight repeats."""
_LARGEST = 5e-3
"""Of the noise: less than 1 / sqrt(inputs) of the widest layer, so that nothing overflows in fp16."""


@dataclass(frozen=True)
class Load:
    """A component at a size, and how many samples it gets at once; width and height are pixels."""

    model: str
    component: str
    samples: int
    width: int
    height: int

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The dimensions of every input by name."""
        latent = (self.samples, CHANNELS, self.height // FACTOR, self.width // FACTOR)
        return {"sample": latent, "latent_sample": latent}


class Noise(Weight):
    """Values of one random tensor, again and again: of another scale than a trained model's, and of its speed.

    Args:
        name: of a parameter that is no other's; parameters without a name and of the same shape are one in the file.
    """

    def __init__(self, name: str, shape: Sequence[int]) -> None:
        super().__init__(shape, np.float32)
        self.name = name

    def load(self) -> Array:
        values = np.resize(_noise(), self.shape)
        return (values + np.float32(len(self.shape) == 1)).astype(self.dtype)


@cache
def _noise() -> Array:
    values: Array = np.random.default_rng(15).uniform(-_LARGEST, _LARGEST, _NOISE - 3).astype(np.float32)
    return values


def graph_file(model: str, component: str) -> Path:
    """The file of a graph, a template of :mod:`sdort.exporter.template`."""
    return Path(__file__).parent / f"{model}-{component}.trace.xz"


def template_of(model: str, component: str) -> Template:
    """The graph of a component without weights."""
    return unpack(lzma.decompress(graph_file(model, component).read_bytes()), component)


def weights_of(model: str, component: str, template: Template, *, apart: bool) -> Mapping[str, Weight]:
    """The weights of a component's parameters: those of the demo, or noise.

    Args:
        apart: whether parameters of noise are apart, as a trained model's: 1.7 GB of a UNet in fp16. Else those of one
            shape share their values: 0.3 GB, and what is computed is the same.
    """
    if model != DEMO:
        return {name: Noise(name if apart else "", shape) for name, shape in template.parameters.items()}
    folder = DEMO_FOLDER / ("vae" if component == DECODER else component)
    return bind(read_tensors(folder / "diffusion_pytorch_model.safetensors"), template.parameters, component)


def optimized(model: str, component: str, provider: str, *, half: bool, own: bool) -> Model:
    """A component as ``sdort optimize`` makes it for a provider.

    Args:
        half: in fp16, with the weights of a true size.
        own: whether sdort's own operators are used.
    """
    template = template_of(model, component)
    content = fill(template, weights_of(model, component, template, apart=half))
    made = _model(content.proto, {blob.name: blob.weight for blob in content.blobs}, component)
    optimize_model(made, OptimizeOptions(load_target(provider), fp16=half, sdort_ops=own))
    return made


def shaped(load: Load, provider: str, *, half: bool, own: bool) -> Model:
    """A component at one size without values of its weights: its nodes are counted (:mod:`sdort.checkup.work`)."""
    template = template_of(load.model, load.component)
    proto = onnx.ModelProto()
    proto.CopyFrom(template.proto)
    for value in proto.graph.input:
        fixed = load.input_shapes.get(value.name)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                dim.dim_value = fixed[axis] if fixed else load.samples if axis == 0 else TOKENS
    absent = {
        tensor.name: Absent(tensor.name, tensor.dims, np.float32)
        for tensor in proto.graph.initializer
        if tensor.external_data or tensor.name in template.small
    }
    made = _model(proto.SerializeToString(), absent, load.component)
    optimize_model(made, OptimizeOptions(load_target(provider), fp16=half, sdort_ops=own))
    return made


def _model(content: bytes, weights: Mapping[str, Weight], component: str) -> Model:
    return from_proto(parse_graph(content, "the graph", component), lambda tensor: weights.get(tensor.name), component)


def loads(on_gpu: bool, full: bool) -> Sequence[Load]:
    """The components to measure.

    Args:
        on_gpu: a step with guidance and a decode at 512x512; else one sample of 256x256.
        full: the sizes of a GPU on a processor.
    """
    samples, side = (2, 512) if on_gpu or full else (1, 256)
    demo, true_size = (2, 64, 64), (samples, side, side)
    return [
        Load(model, component, size[0] if component == UNET else 1, *size[1:])
        for model, size in ((DEMO, demo), (TRUE_SIZE, true_size))
        for component in COMPONENTS
    ]
