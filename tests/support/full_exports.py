"""The full-size architectures as TorchScript writes them, without weights."""

from __future__ import annotations

import io
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import torch
from support import exports, full_size, native
from support.full_size import build_full
from support.models import Built

from sdort.demo import shapes
from sdort.graph.model import Model
from sdort.graph.weights import Absent
from sdort.onnx_io.load import from_proto

LATENT = 8
"""Pixels a side while tracing: the graph is the same at any size."""


@lru_cache(maxsize=1)
def traced(name: str) -> tuple[Built, bytes]:
    """The architecture and its graph, a serialized ModelProto whose parameters are inputs; traced once."""

    def write(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "graph").write_bytes(_trace(build_full(name)))

    sources = {Path(file).name: Path(file).read_bytes() for file in (__file__, full_size.__file__, shapes.__file__)}
    kept = native.built({"name": f"{name} {exports.cache_key()}".encode(), **sources}, write)
    return build_full(name), (kept / "graph").read_bytes()


class _Functional(torch.nn.Module):  # type: ignore[misc]
    """A module whose parameters are arguments, after its own.

    Torch's shape inference copies all parameters of a traced module for every node: 45 of 50 seconds for SDXL's UNet.
    """

    def __init__(self, module: torch.nn.Module, inputs: int) -> None:
        super().__init__()
        self._module = [module]  # in a list, so that its parameters are not this module's
        self._inputs = inputs
        self.names, self.tensors = zip(*module.named_parameters(), strict=True)

    def forward(self, *args: torch.Tensor) -> object:
        for name, tensor in zip(self.names, args[self._inputs :], strict=True):
            owner, _, leaf = name.rpartition(".")
            self._module[0].get_submodule(owner)._parameters[leaf] = tensor  # what functional_call does, which refuses
        return self._module[0](*args[: self._inputs])


def _trace(built: Built) -> bytes:
    built.module.to_empty(device="cpu")  # the storage of its parameters is never touched
    for buffer in built.module.buffers():
        buffer.zero_()
    module = _Functional(built.module, len(built.inputs))
    inputs = [_small(key, tensor) for key, tensor in built.inputs.items()]
    axes = {key: axes for key, axes in built.dynamic.items() if axes}
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (*inputs, *module.tensors), file, input_names=[*built.inputs, *module.names],
            output_names=built.outputs, opset_version=17, dynamo=False, export_params=False,
            do_constant_folding=False, dynamic_axes=axes,
        )  # fmt: skip
    return file.getvalue()


def _small(name: str, tensor: torch.Tensor) -> torch.Tensor:
    sizes = list(tensor.shape)
    if "sample" in name:
        sizes[2:] = [LATENT, LATENT]
    return torch.zeros(sizes, dtype=tensor.dtype)


def weightless(name: str) -> tuple[Built, Model]:
    """The traced graph; whoever asks a parameter for its values gets an error."""
    built, text = traced(name)
    proto = onnx.ModelProto.FromString(text)
    parameters = [i for i in proto.graph.input if i.name not in built.inputs]
    for value in parameters:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        proto.graph.initializer.add(name=value.name, data_type=onnx.TensorProto.FLOAT, dims=dims)
    assert len(parameters) > 0
    return built, from_proto(proto, lambda t: Absent(t.name, t.dims, np.float32), built.component)
