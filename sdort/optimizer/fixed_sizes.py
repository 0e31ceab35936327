"""The one size of a graph whose provider plans for its sizes: that of an image, given or the model's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sdort.console import say, warn
from sdort.errors import UsageError
from sdort.families.component_names import CONTROLNET
from sdort.families.family import Family
from sdort.families.known_families import DENOISERS, family_of
from sdort.graph.model import Model
from sdort.graph.signature import TensorSpec
from sdort.onnx_io.component_file import read_component
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.options.number_ranges import parse_size, size_words
from sdort.pipelines.folder import PipelineFolder, image_channels
from sdort.providers import load_target
from sdort.rewrite.editor import Editor
from sdort.workload.cases import Case, make_feeds

Shapes = Mapping[str, tuple[int, ...]]
"""Input -> its dims."""
_USUAL_FACTOR = 8
"""Pixels a latent of a model without a config of its autoencoder."""


def fixed_shapes(request: OptimizeRequest, components: Mapping[str, Path]) -> dict[str, Shapes]:
    """Component -> the shapes of its inputs for one image, where the request or its provider asks for one size.

    A denoiser gets two latents, as guidance runs it with and without the prompt.

    Args:
        components: those that are known, with their files.

    Raises:
        UsageError: the provider wants one, and neither the request nor the model has it; a model has another one, or
            takes none.
    """
    wanted = load_target(request.provider).fixed_sizes
    signatures = {name: read_component(path, name).signature.inputs for name, path in components.items()}
    free = [name for name, inputs in signatures.items() if request.size or any(map(_is_free, inputs.values()))]
    if request.size and not free:
        raise UsageError("--size is for components of a pipeline, and there is none", hint="Leave it out.")
    if not free or not (request.size or wanted):
        return {}
    folder = PipelineFolder(request.source, dict(components)) if request.source.is_dir() else None
    family = folder.family if folder else family_of({*components}, lambda name: None)
    if any(each.plain and not each.plain.padded for each in family.encoders):
        return _keep_free(request, f"{family.title} reads prompts in as many tokens as they have")
    height, width = _size(request, folder, free)
    factor = folder.vae_factor if folder else _USUAL_FACTOR
    step = factor * family.denoiser.patch
    if height % step or width % step:
        raise UsageError(f"--size {size_words((height, width))}: height and width must be multiples of {step}")
    say(
        f"graphs for images of {size_words((height, width))} alone, one at a time"
        f"{'' if request.size else ', the size that the model was made for (--size gives another one)'}"
    )
    return {
        name: _shapes(
            Case(name, _batch(name, family), height, width), components[name], signatures[name], factor, family
        )
        for name in free
    }


def _is_free(spec: TensorSpec) -> bool:
    return any(not isinstance(size, int) for size in spec.shape)


def _keep_free(request: OptimizeRequest, reason: str) -> dict[str, Shapes]:
    if request.size:
        raise UsageError(f"--size: {reason}, so that no size holds for its graphs", hint="Leave it out.")
    warn(f"{request.provider} plans its graphs for the sizes that it has, and here they stay free: {reason}")
    return {}


def _size(request: OptimizeRequest, folder: PipelineFolder | None, free: list[str]) -> tuple[int, int]:
    """Height and width in pixels."""
    if request.size:
        return parse_size(request.size)
    if folder is None or not folder.config(folder.denoiser):
        raise UsageError(
            f"{request.provider} plans a graph for its sizes, and those of {', '.join(free)} are free",
            hint="Give the size of the images that it is for, such as --size 512x512.",
        )
    return folder.default_size


def _batch(component: str, family: Family) -> int:
    guided = component in (*DENOISERS, CONTROLNET) and not family.denoiser.distilled
    return 2 if guided else 1


def _shapes(case: Case, path: Path, inputs: Mapping[str, TensorSpec], factor: int, family: Family) -> Shapes:
    feeds = make_feeds(case, inputs, factor, image_channels(path, case.component), family.tokens(case.component))
    return {name: value.shape for name, value in feeds.items()}


def fix_inputs(model: Model, shapes: Shapes) -> None:
    """Give a model's inputs these shapes, before it is optimized."""
    for tensor in model.graph.inputs:
        tensor.shape = list(shapes.get(tensor.name, tensor.shape))


def fix_outputs(model: Model) -> None:
    """Give the outputs of an optimized model the sizes that follow from its inputs'."""
    editor = Editor(model)
    for tensor in model.graph.outputs:
        known, declared = editor.shape(tensor), tensor.shape
        if known is not None and declared is not None:
            tensor.shape = [a if isinstance(a, int) else b for a, b in zip(known, declared, strict=True)]
