"""The maker of a component's inputs: shapes from what its ONNX file declares, values from a :class:`Numbers`.

Exporters name symbolic dims as they like (one even gives the batch and the height one name), so a dim is known by its
input's rank and its axis, never by its symbol. What a file leaves open altogether, such as the channels in graphs of
diffusers' old conversion script, is read from the first weight behind the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import TensorProto

from sdort.errors import BadModelError
from sdort.families.component_names import ENCODER, T2I_ADAPTER
from sdort.families.known_families import role_names
from sdort.graph.signature import Array
from sdort.operators import channels_axis
from sdort.rewrite.size_names import size_at
from sdort.workload.steering_inputs import IMAGE, SCALES, is_image_scale, is_residual

SampleDim = int | None

TRAIN_TIMESTEPS = 1000
SAMPLE, TIMESTEP, CONTEXT, SIZES, GUIDANCE = map(role_names, ("sample", "timestep", "context", "sizes", "guidance"))
"""Names of inputs by what they are for, of all families; a VAE's image has one of the first, too."""
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
    shape: tuple[SampleDim, ...]
    rows: int | None = None
    """For token ids, the rows of the embedding they index."""
    per_sample: bool = False
    """For a timestep, whether it is declared as long as the batch."""
    names: tuple[str | None, ...] = ()
    """Name of each dim of the latents and of inputs whose sizes follow from theirs (:func:`follows`)."""


def follows(name: str) -> bool:
    """Whether an input's sizes follow from the latents', or are the latents'."""
    return name in SAMPLE or name == IMAGE or is_residual(name)


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
        names = tuple(dim.dim_param or None for dim in kind.shape.dim)
        inputs.append(Input(value.name, dtype, tuple(shape), rows, per_sample, names if follows(value.name) else ()))
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
    batched = [item for item in inputs if item.name != SCALES]
    leading = [item.shape[0] for item in batched if item.shape and (len(item.shape) > 1 or item.shape[0] != 1)]
    return next((size for size in leading if size), sample.batch)


class Numbers(Protocol):
    """Values for the inputs of a component, one input after the other."""

    def __call__(self, item: Input, shape: tuple[int, ...]) -> Array:
        """Values of ``shape`` for one input, in a dtype that casts to its own."""


def random_guidance(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Random embeddings of guidance scales, float64: sines of any angle, as those of real scales are in [-1, 1]; or the
    scales, [samples], low ones: their angles are thousands, of which fp32 keeps few digits."""
    if len(shape) < 2:
        return np.asarray(generator.uniform(1, 2, shape))
    return np.asarray(np.sin(generator.uniform(0, 2 * np.pi, shape)))


@dataclass(frozen=True)
class RandomNumbers:
    """Values over the whole range of each input, of one generator: what a graph and its original are compared on.

    Latents and embeddings are normal, images normal and clipped to [-1, 1], token ids within their table, timesteps and
    SDXL's ``time_ids`` whole numbers, as schedulers and prompts give them whatever the input's dtype. The embedding of
    the guidance scale is made of sines.
    """

    component: str
    generator: np.random.Generator

    def __call__(self, item: Input, shape: tuple[int, ...]) -> Array:
        if item.name in GUIDANCE:
            return random_guidance(self.generator, shape).astype(item.dtype)
        if item.name in (SCALES, IMAGE) or is_image_scale(item.name) or self.component == T2I_ADAPTER:
            return self.generator.uniform(0, 1, shape).astype(item.dtype)
        if len(shape) < 2:
            return self.generator.integers(0, TRAIN_TIMESTEPS, shape).astype(item.dtype)
        if item.dtype.kind in "iu":
            return self.generator.integers(0, item.rows or 2, shape).astype(item.dtype)
        if item.name in SIZES:
            return self.generator.integers(0, LARGEST_SIZE_ID + 1, shape).astype(item.dtype)
        values = self.generator.standard_normal(shape)
        return (np.clip(values, -1, 1) if self.component == ENCODER else values).astype(item.dtype)


def no_values(item: Input, shape: tuple[int, ...]) -> Array:
    """An array of this shape that takes no memory, where its shape is all that is asked for."""
    return np.broadcast_to(np.zeros((), item.dtype), shape)


def make_inputs(inputs: list[Input], sample: Sample, component: str, seed: int) -> dict[str, Array]:
    """:class:`RandomNumbers` for every input, at the batch that the model is fixed to, if it is.

    Args:
        inputs: from :func:`declared_inputs` of the model that serves as the reference.
        sample: sizes of the open dims.
        component: for messages, and because a VAE encoder takes images in [-1, 1].
        seed: of the generator; equal arguments give equal values.

    Raises:
        BadModelError: a dim is open and nothing says how large it is.
    """
    sample = replace(sample, batch=fixed_batch(inputs, sample))
    return fill_inputs(inputs, sample, component, RandomNumbers(component, np.random.default_rng(seed)))


def fill_inputs(inputs: Iterable[Input], sample: Sample, component: str, numbers: Numbers) -> dict[str, Array]:
    """Values for every input, by name: dims that the model fixes are as they are, the others as ``sample`` says.

    Args:
        component: for messages.
        numbers: called once an input, in their order.

    Raises:
        BadModelError: a dim is open and nothing says how large it is.
    """
    inputs = list(inputs)
    sizes = next((_sizes(item, sample) for item in inputs if item.name in SAMPLE), {})
    return {item.name: numbers(item, _shape(item, sample, component, sizes)) for item in inputs}


def _sizes(item: Input, sample: Sample) -> dict[str, int]:
    """Values of the names of the latents' dims."""
    sides = sample_sizes(item, sample) or []
    return {name: side for name, side in zip(item.names, sides, strict=False) if name and side}


def sample_sizes(item: Input, sample: Sample) -> list[SampleDim] | None:
    """An input's dims by rank, None for what a sample does not say; None for an input of a rank that has no meaning.

    (B, C, H, W), (B, S, C), ids (B, S), vectors (B, C), a timestep (1) or (B).
    """
    by_rank: dict[int, list[SampleDim]] = {
        4: [sample.batch, None, sample.height, sample.width],
        3: [sample.batch, sample.sequence, None],
        2: [sample.batch, sample.sequence if item.dtype.kind in "iu" else None],
        1: [sample.batch if item.per_sample else 1],
        0: [],
    }
    return by_rank.get(len(item.shape))


def _shape(item: Input, sample: Sample, component: str, named: Mapping[str, int]) -> tuple[int, ...]:
    sizes = sample_sizes(item, sample)
    if sizes is not None and item.names and item.name not in SAMPLE:
        told = [size_at(name, named) if name else None for name in item.names]
        sizes = [follow or size for follow, size in zip(told, sizes, strict=True)]
    if sizes is None:
        raise BadModelError(f"an input of {len(item.shape)} dims", component=component, node=item.name)
    sizes = [declared or size for declared, size in zip(item.shape, sizes, strict=True)]
    if None in sizes:
        raise BadModelError(f"nothing says how large dim {sizes.index(None)} is", component=component, node=item.name)
    return tuple(size for size in sizes if size is not None)
