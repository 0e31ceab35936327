"""Random inputs for a component, made from what its ONNX file declares.

Exporters name symbolic dims as they like (one even gives the batch and the height one name), so a dim is told by its
input's rank and its place, never by its symbol. What a file leaves open altogether, such as the channels in graphs of
diffusers' old conversion script, is read from the first weight behind the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from sdort.errors import BadModelError
from sdort.operators import channels_axis

Array = npt.NDArray[Any]
Dim = int | None

TRAIN_TIMESTEPS = 1000
LARGEST_SIZE_ID = 1024
"""SDXL's time_ids are image sizes and crops in pixels."""
PASSED_THROUGH = ("Cast", "Identity", "Reshape", "Slice", "Transpose", "Unsqueeze")
"""Operators between an input and the first weight that reads it."""


@dataclass(frozen=True)
class Sample:
    """One set of sizes. A dim that the model fixes stays as it is.

    ``height`` and ``width`` are those of the component's own image-like input: latent units for the UNet and the VAE
    decoder, pixels for the VAE encoder.
    """

    batch: int = 1
    height: int = 64
    width: int = 64
    sequence: int = 77


@dataclass(frozen=True)
class Input:
    """A declared input; None is a dim that the model leaves open."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...]
    rows: int | None = None
    """For token ids, the rows of the embedding they index."""
    per_sample: bool = False
    """For a timestep, whether it is declared as long as the batch."""


def declared_inputs(model: onnx.ModelProto, component: str) -> list[Input]:
    """The inputs of a model that are no initializers; its weights are not looked at and may be external.

    Raises:
        BadModelError: an input is no tensor.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    inputs = []
    shapes = [value.type.tensor_type.shape.dim for value in model.graph.input if value.name not in weights]
    batches = {dims[0].dim_param for dims in shapes if len(dims) > 1} - {""}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        if not kind.elem_type or not kind.HasField("shape"):
            raise BadModelError("an input that is no tensor of known rank", component=component, node=value.name)
        shape = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        first = next(_first_weights(value.name, readers, weights), None)
        if len(shape) in (3, 4) and first is not None:
            axis = 1 if len(shape) == 4 else -1
            shape[axis] = shape[axis] or int(first[1].dims[channels_axis(first[0]) or 0])
        rows = first[1].dims[0] if first and first[0].op_type == "Gather" else None
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        per_sample = len(shape) == 1 and kind.shape.dim[0].dim_param in batches
        inputs.append(Input(value.name, dtype, tuple(shape), rows, per_sample))
    return inputs


def _first_weights(
    name: str, readers: Mapping[str, list[onnx.NodeProto]], weights: Mapping[str, TensorProto]
) -> Iterator[tuple[onnx.NodeProto, TensorProto]]:
    """The nodes that combine an input with a matrix or filters, nearest first, with that weight."""
    queue, seen = [name], {name}
    for value in queue:
        for node in readers.get(value, []):
            index = 0 if node.op_type == "Gather" else 1
            weight = weights.get(node.input[index]) if len(node.input) > index else None
            if weight and len(weight.dims) > 1 and (node.op_type == "Gather" or channels_axis(node) is not None):
                yield node, weight
            elif node.op_type in PASSED_THROUGH and node.output[0] not in seen:
                seen.add(node.output[0])
                queue.append(node.output[0])


def fixed_batch(inputs: list[Input], sample: Sample) -> int:
    """The batch that the model is fixed to, or the sample's. A timestep may be one number for the whole batch."""
    leading = [item.shape[0] for item in inputs if item.shape and (len(item.shape) > 1 or item.shape[0] != 1)]
    return next((size for size in leading if size), sample.batch)


def make_inputs(inputs: list[Input], sample: Sample, component: str, seed: int) -> dict[str, Array]:
    """Random values for every input: noise for latents and embeddings, ids within their table, a timestep.

    Args:
        inputs: from :func:`declared_inputs` of the model that serves as the reference.
        sample: sizes of the open dims.
        component: for messages, and because a VAE encoder takes images in [-1, 1].
        seed: of the generator; equal arguments give equal values.

    Raises:
        BadModelError: a dim is open and nothing says how large it is.
    """
    generator = np.random.default_rng(seed)
    batch = fixed_batch(inputs, sample)
    return {item.name: _values(item, sample, batch, component, generator) for item in inputs}


def _values(item: Input, sample: Sample, batch: int, component: str, generator: np.random.Generator) -> Array:
    shape = _sizes(item, sample, batch, component)
    if "timestep" in item.name or len(shape) < 2:
        # Schedulers give whole numbers, whatever the input's dtype.
        return generator.integers(0, TRAIN_TIMESTEPS, shape).astype(item.dtype)
    if item.dtype.kind in "iu":
        return generator.integers(0, item.rows or 2, shape).astype(item.dtype)
    if item.name == "time_ids":
        return generator.integers(0, LARGEST_SIZE_ID + 1, shape).astype(item.dtype)
    values = generator.standard_normal(shape)
    return (np.clip(values, -1, 1) if component == "vae_encoder" else values).astype(item.dtype)


def _sizes(item: Input, sample: Sample, batch: int, component: str) -> tuple[int, ...]:
    """Fill in the open dims by rank: (B, C, H, W), (B, S, C), ids (B, S), vectors (B, C), a timestep (1)."""
    ids = item.dtype.kind in "iu"
    by_rank: dict[int, list[Dim]] = {
        4: [batch, None, sample.height, sample.width],
        3: [batch, sample.sequence, None],
        2: [batch, sample.sequence if ids else None],
        1: [batch if item.per_sample else 1],
        0: [],
    }
    wanted = by_rank.get(len(item.shape))
    if wanted is None:
        raise BadModelError(f"an input of {len(item.shape)} dims", component=component, node=item.name)
    sizes = [declared or filled for declared, filled in zip(item.shape, wanted, strict=True)]
    if None in sizes:
        raise BadModelError(f"nothing says how large dim {sizes.index(None)} is", component=component, node=item.name)
    return tuple(size for size in sizes if size is not None)
