"""The models in a folder, and the components of a pipeline that they are."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import onnx
from onnx import TensorProto

from sdort.console import say
from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import CONTROLNET, DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER, T2I_ADAPTER
from sdort.families.known_families import COMPONENTS, DENOISERS, TEXT_ENCODERS, find_roles, find_text_encoder
from sdort.families.safety_signature import safety_kind
from sdort.families.unet import UNET
from sdort.files.model_folder import check_model_folder
from sdort.graph.operator import Category
from sdort.onnx_io.check_tensors import type_name
from sdort.onnx_io.component_file import read_component
from sdort.operators import channels_axis, of_category

_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
_INTS = {TensorProto.INT32, TensorProto.INT64}
LATENT_CHANNELS = 4
"""No autoencoder of a diffusion model has fewer in its latent: what has 1 to 3 is a map of masks, depths or texts."""
_POOLING = {"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"}
_ENLARGING = {"Resize", "Upsample", "ConvTranspose", "DepthToSpace", "InterleavePhases"}
"""Operators of upsampling: of an autoencoder's two halves only the decoder has them."""

_EXPECTED = (
    "Expected one of: a UNet (4-D sample, timestep, 3-D encoder_hidden_states -> 4-D), a text encoder (2-D token "
    "ids -> 3-D), a VAE decoder (4-D latent -> 3 channels), a VAE encoder (3 channels -> 4-D latent), a ControlNet (a "
    "UNet's inputs and an image -> several 4-D), a T2I-Adapter (an image -> several 4-D), an image encoder (an "
    "image -> 3-D), or a safety checker (clip_input -> concept_scores and special_care_scores, or has_nsfw_concepts). "
    "sdort optimize --any-graph takes any other graph, as it is."
)
NAMED = 5
"""Models of a folder that a message describes; of the others it gives the number."""


@dataclass(frozen=True)
class Survey:
    """The ``.onnx`` files of a folder, or the only one, by name."""

    path: Path
    components: dict[str, Path] = field(default_factory=dict)
    """Components of a pipeline, in pipeline order."""
    misfits: dict[str, Path] = field(default_factory=dict)
    """Models in the folder of a component that they cannot be."""
    others: dict[str, Path] = field(default_factory=dict)
    """Models that are no component that sdort knows, named as their folder, or as their file if it holds several."""
    spare: dict[str, Path] = field(default_factory=dict)
    """Models beside a folder's ``model.onnx``, such as another precision of it."""

    @property
    def models(self) -> dict[str, Path]:
        """All of them."""
        return {**self.components, **self.misfits, **self.others, **self.spare}


def survey(path: Path, *, recognise_lone: bool = True) -> Survey:
    """The models in a file or folder, by what sdort takes them for.

    Args:
        path: a pipeline folder as ``sdort export``, optimum or diffusers' conversion script write it, the folder of
            one component, any other folder, or one ``.onnx`` file. Hidden folders are not looked into.
        recognise_lone: whether a model in no component's folder may be a component, by its inputs and outputs.

    Raises:
        UsageError: there is nothing at ``path``.
        BadModelError: what may be a component cannot be read, or the folder holds what is no file of a model
            (:func:`sdort.files.model_folder.check_model_folder`).
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    root = path if path.is_dir() else path.parent
    if path.is_dir():
        check_model_folder(path)
    files = [file for file in walk(path) if file.suffix == ".onnx"] if path.is_dir() else [path]
    known = {name: file for name in COMPONENTS if (file := _main_model(root / name, files))}
    fits = [name for name, file in known.items() if _fits(name, file)]
    lone = None if known else _main_model(root, files)
    kind = recognise(read_component(lone).proto, lone) if lone and recognise_lone else None
    if lone and kind:
        known, fits = {kind: lone}, [kind]
    rest = _named(root, [file for file in files if file not in known.values()], known)
    spare = [name for name, file in rest.items() if _main_model(file.parent, files) not in (None, file)]
    return Survey(
        path,
        components={name: known[name] for name in fits},
        misfits={name: file for name, file in known.items() if name not in fits},
        others={name: file for name, file in rest.items() if name not in spare},
        spare={name: rest[name] for name in spare},
    )


def walk(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those in it that are not hidden, in order.

    Folders behind links are gone into too: those directly in ``folder`` under each of their names, others once.

    Raises:
        BadModelError: one of the folders cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise BadModelError(f"cannot read {error.filename}: {error.strerror}") from error

    root = Path(os.path.realpath(folder))
    seen: set[Path] = set()
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        real = Path(os.path.realpath(place))
        named = Path(place).parent == Path(folder) and not root.is_relative_to(real)
        if real in seen and not named:
            folders.clear()
            continue
        seen.add(real)
        # What is there itself before what a link leads to.
        visible = [name for name in folders if not name.startswith(".")]
        folders[:] = sorted(visible, key=lambda name: (os.path.islink(os.path.join(place, name)), name))
        yield from (Path(place) / name for name in sorted(files))


def find_components(path: Path) -> dict[str, Path]:
    """Component name -> ``.onnx`` file, in pipeline order. A message names what else lies in the folder.

    Args:
        path: as for :func:`survey`.

    Raises:
        UsageError: there is nothing at ``path``.
        BadModelError: no ONNX model is there, or one is not the component that its folder says, or none is one.
    """
    result = survey(path)
    refuse_misfits(result)
    _refuse_ambiguous({name: file for name, file in result.others.items() if file.parent.name in COMPONENTS})
    if not result.components:
        refuse_others(result)
        refuse_none(result)
    if left := [*result.others, *result.spare]:
        say(f"left alone in {path}, as no component of a pipeline that sdort knows: {', '.join(left)}")
    return result.components


def survey_models(path: Path) -> Survey:
    """:func:`survey`, of which no model lies in the folder of another component.

    Raises:
        UsageError: there is nothing at ``path``.
        BadModelError: no ONNX model is there, or one is not the component that its folder says.
    """
    result = survey(path)
    refuse_misfits(result)
    if not result.models:
        refuse_none(result)
    return result


def find_models(path: Path) -> dict[str, Path]:
    """Name -> ``.onnx`` file of every model, in pipeline order; those that are no component follow.

    Args:
        path: as for :func:`survey`.

    Raises:
        UsageError, BadModelError: as :func:`survey_models`.
    """
    return survey_models(path).models


def refuse_misfits(result: Survey, among: Collection[str] = ()) -> None:
    """Raise BadModelError if a model lies in a component's folder and cannot be that component.

    ``among`` names the ones that matter; empty for all.
    """
    for name, file in [(name, file) for name, file in result.misfits.items() if name in (among or result.misfits)]:
        raise BadModelError(f"{file} is no {name}: {_signature(file, name)}", component=name, hint=_EXPECTED)


def refuse_others(result: Survey) -> None:
    """Raise BadModelError if there are models that are no component, with what each of them is."""
    _refuse_ambiguous(result.others)
    others = list(result.others.items())
    if len(others) == 1 and not result.components:
        ((name, file),) = others
        raise BadModelError(f"{file} is no diffusion component: {_signature(file, name)}", hint=_EXPECTED)
    if others:
        descriptions = [
            f"\n  {file.relative_to(result.path)}: {_signature(file, name)}" for name, file in others[:NAMED]
        ]
        more = f"\n  and {len(others) - NAMED} more" if len(others) > NAMED else ""
        choice = " ".join(f"--component {name}" for name in result.components) or "--component NAME"
        raise BadModelError(
            f"{result.path} holds models that are no component that sdort knows:{''.join(descriptions)}{more}",
            hint=f"Take them as graphs like any other with --any-graph, or choose: {choice}.",
        )


def refuse_none(result: Survey) -> NoReturn:
    """Raise BadModelError for a folder that holds no model at all."""
    raise BadModelError(
        f"{result.path} holds no ONNX pipeline: none of {', '.join(COMPONENTS)} with a model.onnx",
        hint="Make one:\n    sdort export MODEL OUT",
    )


def _refuse_ambiguous(models: dict[str, Path]) -> None:
    """Raise BadModelError if a folder holds several models and none is called ``model.onnx``."""
    folders: dict[Path, list[str]] = {}
    for file in models.values():
        folders.setdefault(file.parent, []).append(file.name)
    for folder, names in folders.items():
        if len(names) > 1:
            raise BadModelError(
                f"{folder} holds several models ({', '.join(names[:NAMED])}) and no model.onnx",
                hint="Name one of them; or take all of them, as graphs like any other: sdort optimize --any-graph",
            )


def _main_model(folder: Path, files: Collection[Path]) -> Path | None:
    """The folder's ``model.onnx``, or the only model in it."""
    models = [file for file in files if file.parent == folder]
    if folder / "model.onnx" in models:
        return folder / "model.onnx"
    return models[0] if len(models) == 1 else None


def _named(root: Path, files: Collection[Path], taken: Collection[str]) -> dict[str, Path]:
    """A name for each model: its folder's if it is the folder's model, else its own; its path where that is taken."""
    named: dict[str, Path] = {}
    for file in files:
        place = file.relative_to(root)
        names = [place.with_suffix("").as_posix(), place.as_posix()]
        if file.stem == "model" or (file.parent != root and _main_model(file.parent, files) == file):
            names.insert(0, place.parent.as_posix() if file.parent != root else root.resolve().name or "graph")
        named[next(name for name in names if name not in taken and name not in named)] = file
    return named


def _fits(name: str, path: Path) -> bool:
    """Whether a model in a component's folder can be that component."""
    if name == SAFETY_CHECKER:  # a classifier like any other
        return True
    kind = recognise(read_component(path, name).proto, path)
    return kind == name or {kind, name} <= set(TEXT_ENCODERS)


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
    if safety_kind([info.name for info in inputs], [info.name for info in outputs]):
        return SAFETY_CHECKER
    if _is_denoiser(inputs) and all(map(_is_image, outputs)):
        # A ControlNet has the same inputs, an image too, and one output a level.
        return _which_denoiser(inputs, hints) if len(outputs) == 1 else CONTROLNET
    if _is_text_encoder(inputs, outputs):
        return find_text_encoder(hints, pooled=_rank(outputs[0]) == 2)
    if len(inputs) == 1 and _is_image(inputs[0]) and all(_rank(info) == 3 for info in outputs):
        return IMAGE_ENCODER
    if len(inputs) == 1 and all(map(_is_image, [*inputs, *outputs])):
        return _which_vae(proto.graph, inputs[0], outputs[0], hints) if len(outputs) == 1 else T2I_ADAPTER
    return None


def _is_denoiser(inputs: list[onnx.ValueInfoProto]) -> bool:
    timestep = any(_rank(info) in (0, 1) for info in inputs)
    context = any(_rank(info) == 3 and _kind(info) in _FLOATS for info in inputs)
    return timestep and context and any(map(_is_image, inputs))


def _which_denoiser(inputs: list[onnx.ValueInfoProto], hints: set[str]) -> str:
    """The name of a denoiser: its folder's, or by the names of its inputs; where neither tells, a UNet's."""
    roles = find_roles([info.name for info in inputs])
    named = [name for name in DENOISERS if name in hints]
    alike = [name for name, each in DENOISERS.items() if each.roles == roles]
    return next(iter([*named, *alike]), UNET.component)


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
        return next((name for name in (ENCODER, DECODER) if name in hints), None)
    operators = {node.op_type for node in graph.node}
    if channels_out == 3 and channels_in >= LATENT_CHANNELS and not operators & _POOLING:
        return DECODER
    if channels_in == 3 and channels_out >= LATENT_CHANNELS and not operators & (_POOLING | _ENLARGING):
        return ENCODER
    return None


def _conv_channels(graph: onnx.GraphProto) -> tuple[int, int]:
    """Channels into the first and out of the last convolution, 0 if unknown.

    diffusers' conversion script leaves the channels of inputs and outputs dynamic, so the weights have to tell.
    """
    shapes = {tensor.name: tensor.dims for tensor in graph.initializer if len(tensor.dims) == 4}
    convolutions = of_category(Category.CONVOLUTION) | {"Conv"}
    nodes = [n for n in graph.node if n.op_type in convolutions and len(n.input) > 1 and n.input[1] in shapes]
    filters = [(axis, shapes[node.input[1]]) for node in nodes if (axis := channels_axis(node)) is not None]
    if not filters:
        return 0, 0
    (axis, first), (_, last) = filters[0], filters[-1]
    return first[axis], last[0]


def _rank(info: onnx.ValueInfoProto) -> int | None:
    tensor = info.type.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _kind(info: onnx.ValueInfoProto) -> int:
    return int(info.type.tensor_type.elem_type)


def _signature(path: Path, component: str) -> str:
    proto = read_component(path, component).proto
    inputs, outputs = ([_describe(info) for info in values[:6]] for values in (proto.graph.input, proto.graph.output))
    return f"it maps {', '.join(inputs) or 'nothing'} to {', '.join(outputs) or 'nothing'}"


def _describe(info: onnx.ValueInfoProto) -> str:
    dims = [str(d.dim_value or d.dim_param or "?") for d in info.type.tensor_type.shape.dim]
    return f"{info.name}: {type_name(_kind(info)).lower()}[{', '.join(dims)}]"
