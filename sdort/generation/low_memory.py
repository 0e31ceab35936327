"""The memory of a run whose models are loaded in turn: that of its largest group of sessions, not of all together.

What a denoiser makes of timesteps is made, and its weights are freed, before its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sdort.console import say
from sdort.errors import UsageError
from sdort.families.component_names import DECODER, ENCODER
from sdort.generation.denoising.session_groups import DENOISING, PICTURES, group_of
from sdort.generation.latents.decode import planner_of
from sdort.generation.memory_need import (
    MARGIN,
    OFFLOAD_HINT,
    SHORTAGE_HINT,
    case_bytes,
    closed_bytes,
    control_bytes,
    control_weights,
    encodes,
    generation_bytes,
    graphs_of,
    opening_bytes,
    parts_bytes,
    pieces_bytes,
    refuse_shortage,
    spared_bytes,
    used_components,
    weight_bytes,
)
from sdort.generation.request_plan import RequestPlan
from sdort.generation.requests.refiner import open_refiner
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import Stage
from sdort.machine.gpus import free_memory
from sdort.pipelines.folder import PipelineFolder
from sdort.providers import LOW, NORMAL
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import can_offload
from sdort.tables import size_text
from sdort.workload.cases import Case


def low_bytes(
    folder: PipelineFolder, plan: RequestPlan, images: int, provider: Provider, free: int, *, offload: bool = False
) -> int:
    """An estimate in bytes of the largest group of a run: its weights, and what its components take beside them.

    Args:
        images: all images of the run.
        free: bytes of free memory, by which the decoder's plan is chosen.
        offload: whether weights of the denoiser take turns where they do not all fit.
    """
    request, together = plan.request, min(images, plan.request.images_at_once)
    groups: dict[str, list[str]] = {}
    for name in used_components(folder, request):
        groups.setdefault(group_of(name), []).append(name)
    found = {
        group: weight_bytes(folder, names) + opening_bytes(provider, len(names)) for group, names in groups.items()
    }
    for group in groups.keys() - {DENOISING, PICTURES}:
        found[group] += max(case_bytes(folder, Case(name, 1, *plan.stages[0].size), provider) for name in groups[group])
    own = [stage for stage in plan.stages if not stage.refines]
    if len(own) == 1:  # another pass has another schedule
        found[DENOISING] -= closed_bytes(folder, request, images)
    found[DENOISING] += max(_denoising(folder, request, together, stage, provider) for stage in own)
    parts, controls = parts_bytes(folder), control_weights(request)
    if offload:
        found[DENOISING] += max(_between(folder, request, together, stage, provider) for stage in own)
        found[DENOISING] -= spared_bytes(folder, provider, found[DENOISING] + controls - free)
        parts = 0  # their weights take turns too, and their pieces are no larger than the step's
    found[DENOISING] = max(found[DENOISING], parts) + controls
    left = max(free - found[PICTURES], 0)
    found[PICTURES] += max(_pictures(folder, request, together, stage, provider, left) for stage in plan.stages)
    return max(*found.values(), *_refining(folder, plan, images, together, provider))


def _denoising(folder: PipelineFolder, request: Request, together: int, stage: Stage, provider: Provider) -> int:
    """Bytes of the UNet's activations, and of what steers it."""
    samples = together * len(request.guidance())
    case = Case(folder.denoiser, samples, *stage.size)
    controls = 0 if stage.refines else control_bytes(folder, request, samples, stage.size, provider)
    return controls + case_bytes(folder, case, provider, steps=stage.calls, graphs=graphs_of(request))


def _between(folder: PipelineFolder, request: Request, together: int, stage: Stage, provider: Provider) -> int:
    """Bytes of what the UNet's pieces give each other."""
    samples, factor = together * len(request.guidance()), folder.vae_factor
    latents = (samples, stage.size[0] // factor, stage.size[1] // factor)
    return pieces_bytes(folder.file(folder.denoiser), latents, provider, folder.tokens(folder.denoiser))


def step_bytes(
    folder: PipelineFolder, request: Request, stages: Sequence[Stage], images: int, provider: Provider
) -> int:
    """An estimate in bytes of what a denoiser in pieces takes beside its weights.

    Args:
        stages: of the request in which it runs.
        images: all images of the run.
    """
    together = min(images, request.images_at_once)
    controls = control_weights(request)
    return controls + max(
        _denoising(folder, request, together, stage, provider) + _between(folder, request, together, stage, provider)
        for stage in stages
    )


def _pictures(
    folder: PipelineFolder, request: Request, together: int, stage: Stage, provider: Provider, free: int
) -> int:
    """Bytes of the decoder's and the encoder's activations."""
    decoded, planner = Case(DECODER, together, *stage.size), planner_of(folder, provider)
    plan = planner.plan(planner.size(decoded), request.vae_tiling, request.vae_slicing, free)
    encoded = case_bytes(folder, Case(ENCODER, 1, *stage.size), provider, plan) if encodes(request) else 0
    return max(case_bytes(folder, decoded, provider, plan), encoded)


def _refining(
    folder: PipelineFolder, plan: RequestPlan, images: int, together: int, provider: Provider
) -> Iterator[int]:
    """Bytes of a refiner's groups."""
    if plan.request.refiner:
        refiner = open_refiner(plan.request.refiner, folder)
        texts = [name for name in refiner.needed if name not in (refiner.denoiser, DECODER)]
        yield weight_bytes(refiner, texts) + opening_bytes(provider, len(texts))
        denoising = _denoising(refiner, plan.request, together, plan.stages[-1], provider)
        weights = weight_bytes(refiner, [refiner.denoiser]) - closed_bytes(refiner, plan.request, images)
        yield weights + opening_bytes(provider, 1) + denoising


def refuse_low(
    folder: PipelineFolder,
    plan: RequestPlan,
    images: int,
    provider: Provider,
    device_id: int,
    *,
    offload: bool = False,
) -> None:
    """Refuse a run that cannot fit with low memory.

    Args:
        images: all images of the run.
        offload: as :func:`low_bytes` takes it.

    Raises:
        MemoryShortageError: what it needs and what is free.
    """
    free = free_memory(provider.vendor, device_id)
    if free is None:
        return
    height, width = plan.stages[-1].size
    together = min(images, plan.request.images_at_once)
    what = f"generating {width}x{height} pixels, {together} at once, with {'--offload' if offload else '--memory low'}"
    needed = low_bytes(folder, plan, images, provider, free, offload=offload)
    hint = SHORTAGE_HINT
    if not offload and needed > MARGIN * free and _fits_offloaded(folder, plan, images, provider, free):
        hint = OFFLOAD_HINT
    refuse_shortage(needed, free, what, hint)


def _fits_offloaded(folder: PipelineFolder, plan: RequestPlan, images: int, provider: Provider, free: int) -> bool:
    """Whether a run fits that does not fit without ``--offload``."""
    changes = plan.request.lora or plan.request.deep_cut or plan.request.patches
    possible = can_offload(provider) and not changes
    return possible and low_bytes(folder, plan, images, provider, free, offload=True) <= free


def refuse_offload(provider: Provider, options: RuntimeOptions) -> None:
    """Refuse ``--offload`` on a provider whose sessions keep all weights.

    Raises:
        UsageError: it is such a one.
    """
    if options.offload and not can_offload(provider):
        raise UsageError(
            f"--offload is not for {provider.name}, whose sessions hold all weights of their own",
            hint="Take rocm or cuda, or leave it out.",
        )


def choose_memory(
    folder: PipelineFolder, planned: Sequence[tuple[RequestPlan, int]], provider: Provider, device_id: int
) -> str:
    """``low`` where a run fits only so, which is told; else ``normal``.

    Args:
        planned: of each job its plan and its images.

    Raises:
        MemoryShortageError: runs fit with ``--offload`` alone.
    """
    free = free_memory(provider.vendor, device_id)
    if free is None or not planned:
        return NORMAL
    whole = max(whole_bytes(folder, plan, images, provider, free) for plan, images in planned)
    if whole <= free:
        return NORMAL
    low = max(low_bytes(folder, plan, images, provider, free) for plan, images in planned)
    if low > MARGIN * free:
        if all(_fits_offloaded(folder, plan, images, provider, free) for plan, images in planned):
            refuse_shortage(low, free, "the largest part of the run, loaded alone,", OFFLOAD_HINT)
        return NORMAL
    say(
        f"--memory low: all models together need about {size_text(whole)} of memory and {size_text(free)} are free. "
        f"Loaded in turn they need about {size_text(low)}, which takes longer; --memory normal loads them together"
    )
    return LOW


def whole_bytes(folder: PipelineFolder, plan: RequestPlan, images: int, provider: Provider, free: int) -> int:
    """An estimate in bytes of a run without a refiner, whose UNet may take the place of the other one."""
    opened = used_components(folder, plan.request)
    weights = weight_bytes(folder, opened) + control_weights(plan.request) + opening_bytes(provider, len(opened))
    return weights + generation_bytes(folder, plan.request, images, provider, free, plan.stages)
