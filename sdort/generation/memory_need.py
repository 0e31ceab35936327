"""Memory that a run takes, estimated before anything is loaded: what cannot fit is refused in a sentence.

Activations are counted (:mod:`sdort.runtime.activations`), so that a wrong config makes nothing pass. Where a graph
does not tell its tensors' sizes, they are estimated from its first convolution and the form of its attention.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import read_component_config
from sdort.console import detail, say
from sdort.errors import BadModelError, MemoryShortageError
from sdort.families.component_names import CONTROLNET, DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.families.family import CHUNK
from sdort.families.known_families import DENOISERS
from sdort.generation.latents.decode import Plan, planner_of
from sdort.generation.latents.graph_memory import element_bytes, keeps_scores
from sdort.generation.pictures.safety import is_judged
from sdort.generation.requests.control_plan import find_control
from sdort.generation.requests.prompt_copies import copy_schedules
from sdort.generation.requests.refiner import open_refiner
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import Stage, plan_stages
from sdort.machine.gpus import free_memory
from sdort.onnx_io.check_tensors import tensor_nbytes
from sdort.onnx_io.component_file import ComponentFile
from sdort.pipelines.folder import PipelineFolder
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.activations import activation_bytes, between_bytes, step_graph
from sdort.runtime.placed_weights import placeable
from sdort.runtime.session import Session, spare_bytes
from sdort.runtime.step.pieces import plan_pieces
from sdort.runtime.step.prepared_tensors import Prepared, prepared_tensors, rows_bytes, split_file
from sdort.tables import size_text
from sdort.workload.cases import Case
from sdort.workload.samples import Sample
from sdort.workload.steering_inputs import residual_shapes

MARGIN = 1.15
"""An estimate has to exceed the free memory by this factor before a run is refused: it may be too high by as much.
docs/measurements.md has estimates beside the truth."""
_PER_LATENT = 34
"""Elements that a UNet holds at once for each latent and each channel of its first convolution: the hidden layer of a
feed-forward network has 8 of them, its gate and its halves as many again, skip connections the rest. Measured on the
demo's: 33.4 at 64 x 64 latents and batches of 2 and 8. For graphs that cannot be counted."""
_SCORE_COPIES = 2
"""Copies of the scores of an attention that is not fused: before and after the softmax."""


def case_bytes(
    folder: PipelineFolder, case: Case, provider: Provider, plan: Plan | None = None, steps: int = 1, graphs: int = 1
) -> int:
    """An estimate in bytes of what a component takes beside its weights at ``case``.

    Args:
        case: of a component; batch counts its samples, and images for the decoder.
        plan: how the decoder goes; all at once by default.
        steps: of the schedule, each of which has a row of what is prepared for a UNet.
        graphs: of a UNet: with its outer part beside the whole there are two.
    """
    if case.component not in folder.models:
        return 0
    latents = (case.batch, case.height // folder.vae_factor, case.width // folder.vae_factor)
    if case.component in DENOISERS:
        config, tokens = folder.config(folder.denoiser), folder.tokens(folder.denoiser)
        return unet_bytes(folder.file(folder.denoiser), config, latents, provider, steps, graphs, tokens)
    if case.component in (DECODER, ENCODER):
        return planner_of(folder, provider, case.component).bytes_for(latents, plan or Plan())
    return (
        activation_bytes(
            folder.file(case.component), Sample(case.batch, sequence=folder.tokens(case.component)), provider
        )
        or 0
    )


def unet_bytes(
    file: ComponentFile,
    config: dict[str, Any],
    latents: tuple[int, int, int],
    provider: Provider,
    steps: int,
    graphs: int = 1,
    tokens: int = CHUNK,
) -> int:
    """An estimate in bytes of the activations of a UNet, and of what is prepared for its steps.

    Args:
        config: the UNet's, for its heads; without it attention counts with one head.
        latents: samples, and the latents along their height and their width.
        steps: of the schedule.
        graphs: each has activations of its own, where sessions share no memory; the outer part's are as large as the
            whole's, where these are largest.
        tokens: of a prompt.
    """
    counted = activation_bytes(file, Sample(*latents, tokens), provider)
    activations = _usual_bytes(file, config, latents, provider) if counted is None else counted
    return (1 if provider.pools else graphs) * activations + prepared_bytes(file, latents, steps, tokens)


def _usual_bytes(file: ComponentFile, config: dict[str, Any], latents: tuple[int, int, int], provider: Provider) -> int:
    """An estimate of the activations of a UNet whose graph does not tell its tensors' sizes."""
    samples, height, width = latents
    element = element_bytes(file, provider)
    rows = _PER_LATENT * file.derived(_first_channels) * samples * height * width * element
    level, heads = _largest_attention(config)
    tokens = height * width / 4**level
    scores = _SCORE_COPIES * heads * samples * tokens**2 * element if keeps_scores(file) else 0
    return int(rows + scores)


def prepared_bytes(file: ComponentFile, latents: tuple[int, int, int], steps: int, tokens: int = CHUNK) -> int:
    """Bytes of what is prepared for a UNet's or ControlNet's steps and stays until the last of them, for prompts of
    one chunk of tokens; longer ones have a multiple of the largest part. With ``--no-split`` it is not kept.

    Args:
        latents: samples, and the latents along their height and their width.
        steps: of the schedule.
        tokens: of a prompt.
    """
    try:
        prepared = file.derived(_prepared, Sample(*latents, tokens))
    except BadModelError as error:  # of an input that foreign exporters leave open
        detail(f"{file.component}: the estimate lacks what is prepared for its steps: {error.message}")
        return 0
    if prepared is None:
        return 0
    if prepared.unknown:
        detail(f"{file.component}: the estimate lacks {len(prepared.unknown)} prepared tensors of unknown size")
    # A table with a row for each step, the row that the step reads, and what the part that makes rows keeps.
    return prepared.prompt_bytes + (steps + 1) * prepared.step_bytes + rows_bytes(split_file(file))


def _prepared(file: ComponentFile, sample: Sample) -> Prepared | None:
    split = split_file(file)
    return None if split is None else prepared_tensors(split, file.component, sample)


def _first_channels(file: ComponentFile) -> int:
    graph = file.graph.graph
    shapes = {tensor.name: tensor.dims for tensor in graph.initializer}
    kernels = (shapes.get(name) for node in graph.node if "Conv" in node.op_type for name in node.input[1:2])
    return next((min(shape[0], max(shape)) for shape in kernels if shape), 64)


def _largest_attention(config: dict[str, Any]) -> tuple[int, int]:
    """The first level of the UNet that has attention, and its heads."""
    kinds = config.get("down_block_types")
    kinds = kinds if isinstance(kinds, list) else []
    level = next((index for index, kind in enumerate(kinds) if "Attn" in str(kind)), 0)
    heads = config.get("num_attention_heads") or config.get("attention_head_dim") or 1
    heads = heads[min(level, len(heads) - 1)] if isinstance(heads, list) and heads else heads
    return level, heads if isinstance(heads, int) else 1


def weight_bytes(folder: PipelineFolder, components: Collection[str]) -> int:
    """Bytes of the files of components, each counted once."""
    folders = {folder.models[name].parent for name in components}
    return sum(_folder_bytes(place) for place in folders)


def closed_bytes(folder: PipelineFolder, request: Request, images: int) -> int:
    """Bytes of a denoiser's weights that are not in memory during its steps, where its parts open in turn: of what
    depends on the timestep alone, and of what the prompt decides if there is one.

    Args:
        images: all images of the run.
    """
    split = split_file(folder.file(folder.denoiser))
    if split is None or request.lora:  # weights that change stay
        return 0
    closed = [split.time] if _prompts_change(folder, request, images) else [split.time, split.prompt]
    sizes = {
        tensor.name: tensor_nbytes(tensor, folder.denoiser)
        for part in closed
        if part
        for tensor in part.graph.initializer
    }
    kept = [part for part in (split.step, split.prompt) if part and part not in closed]
    names = {tensor.name for part in kept for tensor in part.graph.initializer}
    return sum(size for name, size in sizes.items() if name not in names)


def parts_bytes(folder: PipelineFolder) -> int:
    """Bytes of what runs before the steps of a denoiser while it runs: its weights, and the rows that it makes at once,
    there and in the host's memory."""
    split = split_file(folder.file(folder.denoiser))
    parts = [part for part in (split.time, split.prompt) if part] if split else []
    weights = sum(tensor_nbytes(tensor, folder.denoiser) for part in parts for tensor in part.graph.initializer)
    return weights + 2 * rows_bytes(split)


def _prompts_change(folder: PipelineFolder, request: Request, images: int) -> bool:
    """Whether a run has several prompts, or one that changes on the way."""
    encoders = [encoder.component for encoder in folder.family.encoders]
    copies = copy_schedules(request, encoders, guided=True, empty_is_zero=False)
    return images > request.num_images or any(schedule.changes for each in copies for schedule in each or ())


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def generation_bytes(
    folder: PipelineFolder,
    request: Request,
    images: int,
    provider: Provider,
    free: int,
    stages: Sequence[Stage] | None = None,
) -> int:
    """An estimate in bytes of what generating takes beside the weights: the largest component, and all images' pixels.

    Args:
        images: all images of the run, which are kept until its end.
        free: bytes of free memory, by which the decoder's plan is chosen.
        stages: of the request, where they are planned already.
    """
    together = min(images, request.images_at_once)
    planner = planner_of(folder, provider)
    samples = together * len(request.guidance())
    stages = stages or plan_stages(folder, request)
    largest = 0
    for size, steps in ((stage.size, stage.calls) for stage in stages):
        decoded = Case(DECODER, together, *size)
        plan = planner.plan(planner.size(decoded), request.vae_tiling, request.vae_slicing, free)
        largest = max(
            largest,
            case_bytes(folder, Case(folder.denoiser, samples, *size), provider, steps=steps, graphs=graphs_of(request))
            + control_bytes(folder, request, samples, size, provider),
            case_bytes(folder, decoded, provider, plan),
            case_bytes(folder, Case(ENCODER, 1, *size), provider, plan) if encodes(request) else 0,
        )
    return largest + 3 * images * math.prod(stages[-1].size)


def control_bytes(
    folder: PipelineFolder, request: Request, samples: int, size: tuple[int, int], provider: Provider
) -> int:
    """An estimate in bytes of what a request's controls take beside their weights while the UNet runs: ControlNets'
    activations, and what lies between them and the UNet.

    Args:
        samples: that the UNet runs on at once.
        size: height and width of the images in pixels.
    """
    if not request.control:
        return 0
    nets = [file for file in control_files(request) if file.component == CONTROLNET]
    latents = (samples, size[0] // folder.vae_factor, size[1] // folder.vae_factor)
    inputs = folder.file(folder.denoiser).signature.inputs
    shapes = residual_shapes(inputs, (samples, folder.sample_channels, *latents[1:]))
    between = sum(math.prod(shape) * inputs[name].dtype.itemsize for name, shape in shapes.items())
    configs = [read_component_config(file.path.parent / "config.json", CONTROLNET) for file in nets]
    pairs = zip(nets, configs, strict=True)
    activations = sum(unet_bytes(*pair, latents, provider, request.steps) for pair in pairs)
    # Several write to buffers of their own, which are added up.
    return activations + between * (1 + len(nets) if len(nets) > 1 else 1)


def control_files(request: Request) -> list[ComponentFile]:
    """The models of a request's controls, each once."""
    return [find_control(path) for path in dict.fromkeys(control.path.resolve() for control in request.control)]


def control_weights(request: Request, but: Collection[Path] = ()) -> int:
    """Bytes of the files of a request's controls.

    Args:
        but: models that do not count.
    """
    files = [file.path for file in control_files(request) if file.path.resolve() not in but]
    return sum(_folder_bytes(path.parent) for path in files)


def encodes(request: Request) -> bool:
    """Whether images are encoded on the way."""
    return bool(request.encoding_option)


def refiner_bytes(
    refiner: PipelineFolder, size: tuple[int, int], request: Request, images: int, provider: Provider
) -> int:
    """An estimate in bytes of a refiner's weights, without a decoder, and of its UNet's activations.

    Args:
        size: height and width of the images in pixels.
        images: all images of the run.
    """
    samples = min(images, request.images_at_once) * len(request.guidance())
    components = [name for name in refiner.needed if name != DECODER]
    return weight_bytes(refiner, components) + case_bytes(
        refiner, Case(refiner.denoiser, samples, *size), provider, steps=request.steps, graphs=graphs_of(request)
    )


def frees_parts(folder: PipelineFolder, unet: Session, request: Request, images: int, stage: Stage) -> bool:
    """Whether what runs before the steps of a denoiser that is open is to be closed once the steps need no more of it,
    rather than stay open for other schedules and prompts: where free memory, as it is now, is too small for what
    generating takes.

    Args:
        images: of the batch.
        stage: of the batch.
    """
    provider = unet.provider
    free = free_memory(provider.vendor, unet.options.device_id)
    if unet.preparation is None or free is None:
        return False
    needed = generation_bytes(folder, request, images, provider, free, [stage])
    frees, held = free < needed, sum(part.nbytes for part in unet.preparation.parts)
    detail(
        f"{unet.component}: what runs before the steps ({size_text(held)} of weights) "
        f"{'is closed once it has run' if frees else 'stays open'}: an image needs about {size_text(needed)}, and "
        f"{size_text(free)} are free"
    )
    return frees


def graphs_of(request: Request) -> int:
    """How many graphs of a UNet a request runs."""
    return 2 if request.deep_cut or request.patches else 1


def fits_beside(
    refiner: PipelineFolder,
    size: tuple[int, int],
    request: Request,
    images: int,
    provider: Provider,
    options: RuntimeOptions,
) -> bool:
    """Whether a refiner fits into memory beside the base, which is loaded; if not, that is told.

    Args:
        size: height and width of the images in pixels.
        images: all images of the run.
    """
    free = free_memory(provider.vendor, options.device_id)
    if free is None:
        return True
    needed = refiner_bytes(refiner, size, request, images, provider)
    if needed <= free:
        return True
    say(
        f"the refiner needs about {size_text(needed)} of memory and {size_text(free)} are free: it takes the place of "
        "the UNet when all images are through that"
    )
    return False


def has_room(folder: PipelineFolder, components: Collection[str], provider: Provider, options: RuntimeOptions) -> bool:
    """Whether the weights of components fit into the free memory once more."""
    free = free_memory(provider.vendor, options.device_id)
    return free is None or weight_bytes(folder, components) <= free


def refuse_generation(
    folder: PipelineFolder,
    request: Request,
    images: int,
    provider: Provider,
    device_id: int,
    held: int | None = None,
    refiner_open: bool = False,
    controls_open: Collection[Path] = (),
    stages: Sequence[Stage] | None = None,
) -> int:
    """Refuse a run that cannot fit; the estimate in bytes of what it takes beside the weights, 0 where nothing tells.

    Args:
        images: all images of the run.
        held: bytes that sessions which are loaded keep of earlier runs and take again; None before they are loaded.
        refiner_open: whether the request's refiner is loaded.
        controls_open: models of controls that are loaded.
        stages: of the request, where they are planned already.

    Raises:
        MemoryShortageError: what it needs and what is free.
        UsageError: a size that the pipeline cannot do.
    """
    free = free_memory(provider.vendor, device_id)
    if free is None:
        return 0
    free += held or 0
    stages = stages or plan_stages(folder, request)
    height, width = stages[-1].size
    needed = generation_bytes(folder, request, images, provider, free, stages)
    opened = used_components(folder, request)
    weights = weight_bytes(folder, opened) + opening_bytes(provider, len(opened)) if held is None else 0
    weights += control_weights(request, controls_open)
    what = f"generating {width}x{height} pixels, {min(images, request.images_at_once)} at once,"
    refuse_shortage(weights + needed, free, what)
    if request.refiner and not refiner_open:
        # At the least it takes the place of the base's UNet.
        refiner = open_refiner(request.refiner, folder)
        more = refiner_bytes(refiner, (height, width), request, images, provider) - weight_bytes(
            folder, [folder.denoiser]
        )
        refuse_shortage(weights + more, free, f"{what} with the refiner {refiner.path.name}")
    return needed


def refuse_other_device(
    folder: PipelineFolder,
    request: Request,
    images: int,
    provider: Provider,
    device_id: int,
    held: int | None,
    stages: Sequence[Stage],
) -> None:
    """Refuse a run for which a device has no memory that has the UNet and the decoder alone, and a part of the work.

    Args:
        images, held: as :func:`refuse_generation` takes them.

    Raises:
        MemoryShortageError: what it needs at the most, and what is free.
    """
    free = free_memory(provider.vendor, device_id)
    if free is None:
        return
    shared = [folder.denoiser, DECODER]
    weights = weight_bytes(folder, shared) + opening_bytes(provider, len(shared)) if held is None else 0
    free += held or 0
    needed = generation_bytes(folder, request, images, provider, free, stages)
    refuse_shortage(weights + needed, free, f"a part of each image on GPU {device_id}")


def used_components(folder: PipelineFolder, request: Request) -> list[str]:
    """The components of a pipeline that a request uses."""
    encoder = [ENCODER] if encodes(request) else []
    image_encoder = [IMAGE_ENCODER] if request.ip_adapter_image else []
    return [*folder.needed, *encoder, *image_encoder, *([SAFETY_CHECKER] if is_judged(request.safety) else [])]


def opening_bytes(provider: Provider, sessions: int) -> int:
    """Bytes of the device that are taken by opening so many sessions, beside weights and activations."""
    return provider.context_bytes + sessions * provider.session_bytes


def refuse_case(
    folder: PipelineFolder, case: Case, provider: Provider, device_id: int, plan: Plan | None = None
) -> None:
    """Refuse a component's case that cannot fit, before it is loaded.

    Args:
        plan: how the decoder goes; all at once by default.

    Raises:
        MemoryShortageError: what it needs and what is free.
    """
    free = free_memory(provider.vendor, device_id)
    if free is not None:
        refuse_shortage(case_bytes(folder, case, provider, plan), free, str(case))


def spared_bytes(folder: PipelineFolder, provider: Provider, lacking: int) -> int:
    """Bytes by which a denoiser's steps take less memory where its weights take turns.

    Args:
        lacking: bytes that they take beyond those that are free, with all of the weights.
    """
    weights = folder.file(folder.denoiser).derived(_step_weights)
    total = sum(weights.values())
    graph = step_graph(folder.file(folder.denoiser))
    plan = plan_pieces(graph, weights, total - lacking - spare_bytes(provider), provider.session_bytes)
    return 0 if plan is None else total - plan.held - (len(plan.ends) - 1) * provider.session_bytes


def pieces_bytes(file: ComponentFile, latents: tuple[int, int, int], provider: Provider, tokens: int = CHUNK) -> int:
    """Bytes of the tensors between a denoiser's pieces, where it runs in as many as there are at most.

    Args:
        latents, tokens: as :func:`unet_bytes` takes them.
    """
    plan = plan_pieces(step_graph(file), file.derived(_step_weights), 0)
    return between_bytes(file, Sample(*latents, tokens), provider, plan.ends) if plan else 0


def _step_weights(file: ComponentFile) -> Mapping[str, int]:
    """Bytes of the weights of a denoiser's step that can take turns, by name."""
    split = split_file(file)
    weights = placeable(split.step if split else file.graph, file.path, file.component)
    return {name: values.nbytes for name, values in weights.items()}


SHORTAGE_HINT = (
    "Take smaller images or fewer at once; --vae-tiling and --vae-slicing decode in parts, --memory low loads the "
    "models in turn."
)
OFFLOAD_HINT = (
    "With --offload it fits: weights of the denoiser that the GPU has no room for are copied to it in every step, "
    "which takes longer."
)


def refuse_shortage(needed: int, free: int, what: str, hint: str = SHORTAGE_HINT) -> None:
    """Refuse what needs more memory than is free, by more than the estimate may be wrong.

    Raises:
        MemoryShortageError: what it needs and what is free.
    """
    if needed > MARGIN * free:
        raise MemoryShortageError(
            f"{what} needs about {size_text(needed)} of memory, and {size_text(free)} are free",
            hint=hint,
        )
