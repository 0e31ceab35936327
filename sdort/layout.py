"""Which files of a folder are which component, and what a lone ``.onnx`` file is."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto

from sdort.errors import BadModelError, UsageError
from sdort.tensor_checks import type_name
from sdort.wire import read_graph

COMPONENTS = ("text_encoder", "text_encoder_2", "unet", "vae_encoder", "vae_decoder", "safety_checker")
"""Folder names shared by sdort, optimum and diffusers' conversion script."""

_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
_INTS = {TensorProto.INT32, TensorProto.INT64}
_CONVS = {"Conv": 1, "NhwcConv": 3}
"""Convolutions and the axis of their weight that is the channels in."""

_EXPECTED = (
    "Expected one of: a UNet (4-D sample, timestep, 3-D encoder_hidden_states -> 4-D), a text encoder (2-D token "
    "ids -> 3-D), a VAE decoder (4-D latent -> 3 channels) or a VAE encoder (3 channels -> 4-D latent)."
)


def find_components(path: Path) -> dict[str, Path]:
    """Component name -> ``.onnx`` file, in pipeline order.

    Args:
        path: a pipeline folder as ``sdort export``, optimum or diffusers' conversion script write it, the folder of
            one component, or one ``.onnx`` file.

    Raises:
        UsageError: there is nothing at ``path``.
        BadModelError: no ONNX model is there, or one is no diffusion component.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if not path.is_dir():
        return {identify(path): path}
    found = {name: _model_file(path / name) for name in COMPONENTS}
    models = {name: file for name, file in found.items() if file}
    for name, file in models.items():
        _check_component(name, file)
    lone = None if models else _model_file(path)
    if lone:
        return {identify(lone): lone}
    if not models:
        raise BadModelError(
            f"{path} holds no ONNX pipeline: none of {', '.join(COMPONENTS)} with a model.onnx",
            hint="Make one with: sdort export MODEL OUT",
        )
    return models


def _model_file(folder: Path) -> Path | None:
    if (folder / "model.onnx").is_file():
        return folder / "model.onnx"
    files = sorted(folder.glob("*.onnx")) if folder.is_dir() else []
    if len(files) > 1:
        raise BadModelError(
            f"{folder} holds several models ({', '.join(f.name for f in files[:5])}) and no model.onnx",
            hint="Name one of them.",
        )
    return files[0] if files else None


def identify(path: Path) -> str:
    """The component that the model in ``path`` is, by its inputs and outputs.

    Raises:
        BadModelError: the file is broken, or its model is no component of a diffusion pipeline.
    """
    proto = read_graph(path, path.stem)
    component = recognise(proto, path)
    if component is None:
        raise BadModelError(f"{path} is no diffusion component: {_signature(proto)}", hint=_EXPECTED)
    return component


def _check_component(name: str, path: Path) -> None:
    """Refuse a model that lies in a component's folder and cannot be that component."""
    if name == "safety_checker":  # a classifier like any other
        return
    proto = read_graph(path, name)
    kind = recognise(proto, path)
    fits = kind == name or {kind, name} == {"text_encoder", "text_encoder_2"}
    if not fits:
        raise BadModelError(f"{path} is no {name}: {_signature(proto)}", component=name, hint=_EXPECTED)


def recognise(proto: onnx.ModelProto, path: Path | None = None) -> str | None:
    """The component by structure, None if it is none.

    ``path`` only decides between the text encoders of SDXL, and between VAE encoder and decoder if their channels are
    not known.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [info for info in proto.graph.input if info.name not in constants]
    outputs = list(proto.graph.output)
    hints = {path.parent.name, path.stem} if path else set()
    if not inputs or not outputs:
        return None
    if _is_unet(inputs, outputs):
        return "unet"
    if _is_text_encoder(inputs, outputs):
        return "text_encoder_2" if "text_encoder_2" in hints or _rank(outputs[0]) == 2 else "text_encoder"
    if len(inputs) == 1 and len(outputs) == 1 and _is_image(inputs[0]) and _is_image(outputs[0]):
        return _which_vae(proto.graph, inputs[0], outputs[0], hints)
    return None


def _is_unet(inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> bool:
    timestep = any(_rank(info) in (0, 1) for info in inputs)
    context = any(_rank(info) == 3 and _kind(info) in _FLOATS for info in inputs)
    # A ControlNet has the same inputs, and one output a level.
    return timestep and context and any(map(_is_image, inputs)) and len(outputs) == 1 and _is_image(outputs[0])


def _is_text_encoder(inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> bool:
    ids = all(_rank(info) == 2 and _kind(info) in _INTS for info in inputs)
    return ids and any(_rank(info) == 3 and _kind(info) in _FLOATS for info in outputs)


def _is_image(info: onnx.ValueInfoProto) -> bool:
    return _rank(info) == 4 and _kind(info) in _FLOATS


def _which_vae(
    graph: onnx.GraphProto, source: onnx.ValueInfoProto, target: onnx.ValueInfoProto, hints: set[str]
) -> str | None:
    first, last = _conv_channels(graph)
    channels_in = source.type.tensor_type.shape.dim[1].dim_value or first
    channels_out = target.type.tensor_type.shape.dim[1].dim_value or last
    if 3 not in (channels_in, channels_out) and 0 in (channels_in, channels_out):
        return next((name for name in ("vae_encoder", "vae_decoder") if name in hints), None)
    if channels_out == 3 and channels_in != 3:
        return "vae_decoder"
    return "vae_encoder" if channels_in == 3 and channels_out != 3 else None


def _conv_channels(graph: onnx.GraphProto) -> tuple[int, int]:
    """Channels into the first and out of the last convolution, 0 if unknown.

    diffusers' conversion script leaves the channels of inputs and outputs dynamic, so the weights have to tell.
    """
    shapes = {tensor.name: tensor.dims for tensor in graph.initializer if len(tensor.dims) == 4}
    weights = [(n.op_type, shapes.get(n.input[1], ())) for n in graph.node if n.op_type in _CONVS and len(n.input) > 1]
    weights = [(op_type, dims) for op_type, dims in weights if dims]
    if not weights:
        return 0, 0
    (op_type, first), (_, last) = weights[0], weights[-1]
    return first[_CONVS[op_type]], last[0]


def _rank(info: onnx.ValueInfoProto) -> int | None:
    tensor = info.type.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _kind(info: onnx.ValueInfoProto) -> int:
    return int(info.type.tensor_type.elem_type)


def _signature(proto: onnx.ModelProto) -> str:
    inputs, outputs = ([_describe(info) for info in values[:6]] for values in (proto.graph.input, proto.graph.output))
    return f"it maps {', '.join(inputs) or 'nothing'} to {', '.join(outputs) or 'nothing'}"


def _describe(info: onnx.ValueInfoProto) -> str:
    dims = [str(d.dim_value or d.dim_param or "?") for d in info.type.tensor_type.shape.dim]
    return f"{info.name}: {type_name(_kind(info)).lower()}[{', '.join(dims)}]"
