"""Tracing of a torch module without weights to an ONNX graph without weights.

The graph is taken before the exporter's own optimizer, which folds Linear transposes into nameless constants and
merges parameters that happen to be equal: afterwards a checkpoint could not be bound to it by name. It is cleaned
up by sdort's passes instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx import helper, shape_inference

from sdort.console import quiet_libraries
from sdort.errors import BadModelError, SdortError
from sdort.errors.plain_text import library_reason
from sdort.exporter import torch_modules as architecture
from sdort.exporter.signatures import ComponentSpec, evaluate_dim
from sdort.exporter.template import Trace
from sdort.families.component_names import CONTROLNET, ENCODER, T2I_ADAPTER
from sdort.families.graph_tensor import GraphDim, GraphTensor
from sdort.families.known_families import DENOISERS, find_denoiser
from sdort.families.vae_levels import vae_factor
from sdort.machine.version import __version__


def concrete_casts(proto: onnx.ModelProto) -> None:
    """Replace every CastLike: by its input where that has the dtype already, by Cast elsewhere, in place."""
    nodes = proto.graph.node
    if not any(node.op_type == "CastLike" for node in nodes):
        return
    dtypes = _dtypes(proto)
    same: dict[str, str] = {}
    for node in nodes:
        for index, name in enumerate(node.input):
            node.input[index] = same.get(name, name)
        if node.op_type != "CastLike":
            continue
        target = dtypes.get(node.input[1], 0)
        if target and dtypes.get(node.input[0]) == target:
            same[node.output[0]] = node.input[0]
        elif target:
            cast = helper.make_node("Cast", [node.input[0]], [node.output[0]], node.name, to=target)
            node.CopyFrom(cast)
    outputs = {value.name for value in proto.graph.output}
    kept = [node for node in nodes if node.op_type != "CastLike" or node.output[0] not in same.keys() - outputs]
    del nodes[:]
    nodes.extend(kept)


def _dtypes(proto: onnx.ModelProto) -> dict[str, int]:
    graph = shape_inference.infer_shapes(proto).graph
    values = [*graph.value_info, *graph.input, *graph.output]
    dtypes = {value.name: value.type.tensor_type.elem_type for value in values}
    return dtypes | {tensor.name: tensor.data_type for tensor in graph.initializer}


PARAMETER = "parameter"
"""``location`` of an initializer whose values come from a checkpoint, in a traced graph."""

# Sizes to trace at. Where diffusers branches on a size, these take the branch that is right for all sizes: a latent
# that no power of two divides makes its UNet resize to the skip connection's size instead of doubling. None of them
# is 1 (torch would specialise on it), and no two are equal (torch would take them for the same dim).
_EXAMPLE = {
    "batch_size": 2,
    "sequence_length": 11,
    "height": 33,
    "width": 25,
    "latent_height": 9,
    "latent_width": 7,
    "sample_height": 74,
    "sample_width": 58,
}

_DTYPES = {"float32": torch.float32, "int64": torch.int64}


def trace(component: ComponentSpec, module: Any, opset: int) -> Trace:
    """Trace a module from :func:`architecture.build_module`.

    Raises:
        SdortError: torch cannot trace it.
    """
    shapes = architecture.parameters(module)
    architecture.allocate(module)
    with quiet_libraries(), torch.no_grad():
        try:
            program = _export(component, module, opset)
        except Exception as error:  # torch's exporter raises nearly everything
            reason = f"{type(error).__name__}: {library_reason(error)}"
            raise SdortError(
                f"torch {torch.__version__} cannot export it at opset {opset} ({reason})",
                component=component.name,
                hint="Try the pinned versions of constraints.txt, or another --opset; -v shows the whole error.",
            ) from error
    proto = _weightless(program.model, shapes)
    _finish(proto, component)
    return Trace(proto, shapes)


def _export(component: ComponentSpec, module: Any, opset: int) -> Any:
    names = tuple(_dynamic(spec) for spec in component.inputs)
    dims = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in names)
    sizes = _example_sizes(component)
    examples = tuple(_example(spec, sizes) for spec in component.inputs)
    # Traced by hand: torch.onnx.export would ask for dims that it may specialise, and retry in a slower mode.
    if component.name in (*DENOISERS, CONTROLNET):
        dims = (dims,)  # type: ignore[assignment]  # their forward takes *tensors
    traced = torch.export.export(module, examples, dynamic_shapes=dims, strict=False)
    return torch.onnx.export(
        traced,
        examples,
        input_names=[spec.name for spec in component.inputs],
        output_names=[spec.name for spec in component.outputs],
        opset_version=opset,
        dynamo=True,
        dynamic_shapes=names,
        optimize=False,
        verbose=False,
    )


def _dynamic(spec: GraphTensor) -> dict[int, str]:
    return {axis: _identifier(dim) for axis, dim in enumerate(spec.dims) if isinstance(dim, str)}


def _identifier(dim: str) -> str:
    """A name for torch, which takes no arithmetic for one."""
    return re.sub(r"\W+", "_", dim)


def _example_sizes(component: ComponentSpec) -> Mapping[str, int]:
    """An autoencoder of more than the usual 8 pixels a latent gets a larger image, lest a side of its latent be 1.

    A T2I-Adapter takes whole squares of pixels only, and a transformer whole tokens of latents.
    """
    if denoiser := find_denoiser(component.name, component.class_name):
        return _EXAMPLE | {side: _EXAMPLE[side] * denoiser.patch for side in ("height", "width")}
    if component.name == T2I_ADAPTER:
        factor = int(component.config["downscale_factor"])
        return _EXAMPLE | {f"sample_{side}": _EXAMPLE[side] * factor for side in ("height", "width")}
    if component.name != ENCODER:
        return _EXAMPLE
    larger = max(vae_factor(component.config) // 8, 1)
    return {name: size * larger if name.startswith("sample_") else size for name, size in _EXAMPLE.items()}


def _example(spec: GraphTensor, sizes: Mapping[str, int]) -> Any:
    shape = [evaluate_dim(dim, sizes) for dim in spec.dims]
    # Zeros are valid token ids, timesteps and latents alike; values do not show in a trace.
    return torch.zeros(shape, dtype=_DTYPES[spec.dtype])


def _weightless(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Serialize the graph with parameters as external tensors, which are not read."""
    for name, value in model.graph.initializers.items():
        if name.removeprefix(architecture.PREFIX) in shapes and value.const_value is not None:
            tensor = value.const_value
            shape = ir.Shape(shapes[name.removeprefix(architecture.PREFIX)])
            value.const_value = ir.ExternalTensor(PARAMETER, None, None, tensor.dtype, shape=shape, name=name)
    return ir.to_proto(model)


def _finish(proto: onnx.ModelProto, component: ComponentSpec) -> None:
    """Restore the checkpoint's parameter names, set the signature, drop what only debugs the exporter."""
    graph = proto.graph
    names = {
        tensor.name: tensor.name.removeprefix(architecture.PREFIX)
        for tensor in graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = names.get(name, name)
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in [*graph.value_info, *graph.input, *graph.output, *graph.initializer]:
        value.ClearField("metadata_props")
    graph.ClearField("metadata_props")
    proto.ClearField("metadata_props")
    concrete_casts(proto)
    graph.name = component.name
    proto.producer_name, proto.producer_version = "sdort", __version__
    _check_signature(graph.input, component.inputs, component.name)
    for info, spec in zip(graph.output, component.outputs, strict=True):
        _set_dims(info, spec)


def _check_signature(infos: Any, specs: tuple[GraphTensor, ...], component: str) -> None:
    """A dim that torch specialised would only show when somebody feeds another size."""
    for info, spec in zip(infos, specs, strict=True):
        dims: list[GraphDim] = [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim]
        named = [_identifier(dim) if isinstance(dim, str) else dim for dim in spec.dims]
        if info.name != spec.name or dims != named:
            raise BadModelError(
                f"torch traced input {spec.name} {list(spec.dims)} as {info.name} {dims}", component=component
            )
        _set_dims(info, spec)


def _set_dims(info: onnx.ValueInfoProto, spec: GraphTensor) -> None:
    """Name dims as optimum evaluates them, ``name * factor``; torch has names of its own."""
    shape = info.type.tensor_type.shape
    if len(shape.dim) != len(spec.dims):
        raise SdortError(f"torch traced {spec.name} {list(spec.dims)} with {len(shape.dim)} dims")
    for dim, size in zip(shape.dim, spec.dims, strict=True):
        if isinstance(size, str):
            dim.dim_param = size
        else:
            dim.dim_value = size
