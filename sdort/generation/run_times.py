"""Seconds of runs on this machine, remembered for each pipeline: what the next run of the same kind will take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdort.files.user_folders import schedules_folder
from sdort.files.verified_cache import VerifiedCache
from sdort.generation.job import Job
from sdort.generation.request_plan import RequestPlan
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import total_calls
from sdort.generation.result import Generation
from sdort.pipelines.folder import PipelineFolder
from sdort.providers import NORMAL

_CACHE_LIMIT = 1 << 20
OFFLOADED = "offloaded"
"""In the place of a kind of memory: weights are copied in every step."""
_MOST_KINDS = 64
"""Kinds of runs that are remembered of a pipeline, the latest ones."""


@dataclass(frozen=True)
class RunSeconds:
    """The seconds of a run.

    Attributes:
        load: loading the models.
        encode: the text encoders, for a batch.
        call: a call of the UNet on a batch.
        decode: the decoder, for an image.
    """

    load: float
    encode: float
    call: float
    decode: float


def keep_speed(folder: PipelineFolder, jobs: Sequence[Job], plans: Sequence[RequestPlan], result: Generation) -> None:
    """Remember how long a run took, if it was of one job and of the usual stages alone.

    Args:
        plans: of the jobs.
    """
    if len(jobs) != 1 or not result.images or not _is_usual(jobs[0].requests[0]):
        return
    job, seconds = jobs[0], result.seconds
    batches = _batches(job)
    calls = total_calls(plans[0].stages) * len(batches)
    load = seconds.load + sum(each.seconds for each in result.opened)
    kept = RunSeconds(load, seconds.encode / len(batches), seconds.denoise / calls, seconds.decode / len(result.images))
    cache, key = _cache(), _key(folder, result.provider, result.device)
    known = cache.load_json("speed", key)
    kinds: dict[str, Any] = known if isinstance(known, dict) else {}
    kind = _kind(folder, job, OFFLOADED if result.offloaded else result.memory)
    kinds.pop(kind, None)
    latest = dict([*kinds.items(), (kind, vars(kept))][-_MOST_KINDS:])
    cache.store("speed", key, json.dumps(latest).encode())


def known_seconds(
    folder: PipelineFolder,
    jobs: Sequence[Job],
    plans: Sequence[RequestPlan],
    provider: str,
    device: str,
    memory: str = NORMAL,
) -> float | None:
    """The seconds of jobs, by the last runs of the same pipeline, size and batch here; None where there is none.

    Args:
        plans: of the jobs.
    """
    known = _cache().load_json("speed", _key(folder, provider, device))
    total, load = 0.0, 0.0
    for job, plan in zip(jobs, plans, strict=True):
        kept = known.get(_kind(folder, job, memory)) if isinstance(known, dict) else None
        seconds = _read(kept)
        if seconds is None or not _is_usual(job.requests[0]):
            return None
        calls, sizes = total_calls(plan.stages), _batches(job)
        load = seconds.load if memory == NORMAL else load + seconds.load  # each job loads
        total += seconds.encode * len(sizes) + seconds.decode * job.images
        total += calls * seconds.call * sum(size / max(sizes) for size in sizes)
    return total + load


def _read(kept: object) -> RunSeconds | None:
    names = RunSeconds.__dataclass_fields__
    if not isinstance(kept, dict) or kept.keys() != names.keys():
        return None
    numbers = [value for value in kept.values() if isinstance(value, (int, float)) and 0 <= value < 1e9]
    return RunSeconds(**kept) if len(numbers) == len(names) else None


def _is_usual(request: Request) -> bool:
    """Whether the seconds of a request depend on its size, steps and batch alone."""
    others = request.hires, request.refiner, request.init_image, request.mask, request.control, request.ip_adapter_image
    return not any(others) and request.upscale is None


def _kind(folder: PipelineFolder, job: Job, memory: str) -> str:
    request = job.requests[0]
    height, width = (request.height or folder.default_size[0]), (request.width or folder.default_size[1])
    kind = f"{width}x{height}, {max(_batches(job))} at once, guidance of {len(request.guidance())}"
    kind = kind if memory == NORMAL else f"{kind}, {memory} memory"
    kind = f"{kind}, deep cache {request.whole_every} at {request.deep_cut}" if request.deep_cut else kind
    return f"{kind}, {request.patches} patches after {request.exact_calls}" if request.patches else kind


def _batches(job: Job) -> list[int]:
    """The images of each batch."""
    at_once = job.requests[0].images_at_once
    return [min(at_once, job.images - start) for start in range(0, job.images, at_once)]


def _key(folder: PipelineFolder, provider: str, device: str) -> dict[str, Any]:
    return {"model": folder.model_hash, "provider": provider, "device": device}


def _cache() -> VerifiedCache:
    return VerifiedCache(schedules_folder(), "the record of speeds", ".speed", _CACHE_LIMIT)
