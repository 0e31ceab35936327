"""ControlNets and T2I-Adapters of a request, found on disk and held against the UNet before anything is loaded."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import read_component_config
from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import CONTROLNET, CONTROLS
from sdort.families.known_families import roles_of
from sdort.generation.requests.control_choice import Control
from sdort.graph.signature import TensorSpec
from sdort.onnx_io.component_file import ComponentFile, read_component
from sdort.onnx_io.components import find_components
from sdort.pipelines.folder import PipelineFolder
from sdort.workload.steering_inputs import IMAGE, SCALES, named_sizes, residual_inputs, shape_at

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ControlModel:
    """A control of a request, with its model."""

    control: Control
    file: ComponentFile

    @property
    def component(self) -> str:
        """``controlnet`` or ``t2i_adapter``."""
        return self.file.component

    @property
    def pooled(self) -> bool:
        """Whether its outputs are means over the image, as a shuffle ControlNet's; it then steers the prompt's half."""
        return bool(read_component_config(self.file.path.parent / "config.json", self.component).get(_POOLED))

    def image_shape(self, pixels: tuple[int, int]) -> Shape:
        """Channels, height and width of the image that it takes."""
        name = IMAGE if self.component == CONTROLNET else next(iter(self.file.signature.inputs))
        channels = self.file.signature.inputs[name].shape[1]
        return (channels if isinstance(channels, int) else 3, *pixels)


_POOLED = "global_pool_conditions"


def plan_controls(
    folder: PipelineFolder, controls: Sequence[Control], pixels: tuple[int, int]
) -> tuple[ControlModel, ...]:
    """The models of a request's controls.

    Args:
        pixels: height and width that are generated.

    Raises:
        BadModelError: a folder holds no exported ControlNet or T2I-Adapter, one is of another family than the UNet, or
            the UNet was exported without inputs for it.
        UsageError: the size does not fit a T2I-Adapter.
    """
    planned = tuple(ControlModel(control, find_control(control.path)) for control in controls)
    for model in planned:
        _check_fit(folder, model, pixels)
    return planned


def find_control(path: Path) -> ComponentFile:
    """The model of a ControlNet or T2I-Adapter in a folder.

    Raises:
        UsageError: there is no folder.
        BadModelError: it holds no such model, or the model is broken.
    """
    if path.is_dir() and (path / "config.json").is_file() and not any(path.rglob("*.onnx")):
        raise BadModelError(
            f"--control {path} holds no ONNX model yet",
            hint=f"Export it first:\n    sdort export {shlex.quote(str(path))} OUT",
        )
    if not path.is_dir():
        raise UsageError(f"--control: there is no folder {path}", hint="Its form is DIR:IMAGE[:SCALE[:START:END]].")
    models = find_components(path)
    component = next((name for name in CONTROLS if name in models), None)
    if component is None:
        raise no_control(str(path), models)
    return read_component(models[component], component)


def no_control(given: str, names: Collection[str]) -> BadModelError:
    """The error for a pipeline of these components that is given as a control."""
    return BadModelError(f"--control {given} holds {', '.join(names)}, and neither a ControlNet nor a T2I-Adapter")


def _check_fit(folder: PipelineFolder, model: ControlModel, pixels: tuple[int, int]) -> None:
    unet = folder.file(folder.denoiser).signature.inputs
    names = residual_inputs(unet)[model.component]
    if not names:
        raise BadModelError(
            f"the UNet of {folder.given} has no inputs for a control image",
            component=folder.denoiser,
            hint="Export the pipeline again, with them: sdort export MODEL OUT --control",
        )
    signature, factor = model.file.signature, folder.vae_factor
    latent = tuple(side // factor for side in pixels)
    if model.component == CONTROLNET:
        problem = _other_inputs(unet, signature.inputs)
        sizes = named_sizes(signature.inputs[roles_of(signature.inputs).sample], (1, 4, *latent))
    else:
        problem = None
        sizes = named_sizes(next(iter(signature.inputs.values())), (1, 3, *pixels))
    outputs = [shape_at(spec, sizes)[1:] for spec in signature.outputs.values()]
    expected = [shape_at(unet[name], named_sizes(unet[roles_of(unet).sample], (1, 4, *latent)))[1:] for name in names]
    problem = problem or _other_outputs(model.component, outputs, expected)
    if problem:
        raise BadModelError(
            f"{model.control.path} does not fit this pipeline: {problem}",
            component=model.component,
            hint="It is for models of another family, or for another size: each belongs to SD 1.x, SD 2.x or SDXL.",
        )


def _other_inputs(unet: Mapping[str, TensorSpec], net: Mapping[str, TensorSpec]) -> str | None:
    foreign = net.keys() - unet.keys() - {IMAGE, SCALES}
    if foreign:
        return f"it takes {', '.join(sorted(foreign))}, which the UNet does not"
    roles = roles_of(unet)
    for name in filter(None, (roles.context, roles.pooled, roles.sizes)):
        widths = [specs[name].shape[-1] for specs in (net, unet) if name in specs]
        if len({width for width in widths if isinstance(width, int)}) > 1:
            return f"its {name} have {widths[0]} numbers, and the UNet's {widths[1]}"
    for name in net.keys() & unet.keys():
        if net[name].dtype != unet[name].dtype:
            return f"its {name} is {net[name].dtype}, and the UNet's {unet[name].dtype} (optimize both alike)"
    return None


def _other_outputs(component: str, outputs: list[Any], expected: list[Any]) -> str | None:
    if component == CONTROLNET and len(outputs) != len(expected):
        return f"it has {len(outputs)} outputs, and the UNet takes {len(expected)}"
    if len(outputs) > len(expected):
        return f"it has {len(outputs)} features, and the UNet takes {len(expected)}"
    for number, (output, wanted) in enumerate(zip(outputs, expected, strict=False)):
        if any(a is not None and b is not None and a != b for a, b in zip(output, wanted, strict=True)):
            return f"its output {number} is {_text(output)}, and the UNet takes {_text(wanted)}"
    return None


def _text(shape: Sequence[int | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape)
