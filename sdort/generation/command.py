"""Text to image of a folder of ONNX models: :class:`Pipeline`, which :func:`sdort.load` makes, and planned runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sdort.console import progress, say, warn
from sdort.errors import ParityError, UsageError
from sdort.families.component_names import DECODER
from sdort.generation.call_queue import CallQueue, refuse_cancelled
from sdort.generation.compiled_sizes import fitting_size
from sdort.generation.denoising.guard import Guard
from sdort.generation.denoising.step_progress import StepProgress
from sdort.generation.files.image_files import check_sides, save_image
from sdort.generation.grid import check_grid, columns_of, save_grid
from sdort.generation.image_writer import ImageWriter
from sdort.generation.job import Job, grid_of, plan_paths
from sdort.generation.keep_tuning import keep_generated
from sdort.generation.latents.decode import Plan, planner_of
from sdort.generation.low_memory import choose_memory, refuse_low, refuse_offload
from sdort.generation.memory_need import generation_bytes, refuse_generation
from sdort.generation.pictures.images import Generated
from sdort.generation.pictures.safety import is_judged, say_unjudged
from sdort.generation.pictures.upscaled_picture import result_size
from sdort.generation.pipeline import LoadPlan, TextToImage, load_pipeline
from sdort.generation.preview_display import previewing
from sdort.generation.request_plan import RequestPlan, plan_request
from sdort.generation.requests.record import GenerationRecord, StageSeconds
from sdort.generation.requests.request import Request, check_prompts
from sdort.generation.requests.stages import Stage, total_calls, total_steps
from sdort.generation.requests.typed_options import GenerationOptions
from sdort.generation.result import Generation, Image, PeakMemory, any_flagged, joined, replaced_text, withheld_text
from sdort.generation.resumed_prompts import Unfinished, find_unfinished, plan_unfinished, recorded_settings
from sdort.generation.run_times import OFFLOADED, keep_speed, known_seconds
from sdort.generation.shared_devices import refuse_patches, refuse_shared, remark_on_devices
from sdort.inspection.profile import measure_cases, remarks
from sdort.machine.phases import phase
from sdort.pipelines.content_check import content_check
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers import LOW, NORMAL
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import can_tune
from sdort.runtime.environment import device_names, versions
from sdort.runtime.memory import DeviceGrowth, peak_resident
from sdort.runtime.probe import choose_provider, expected_provider
from sdort.runtime.provider_message import announce, custom_ops_hash
from sdort.workload.cases import Case, generation_cases

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Pipeline:
    """A text-to-image pipeline whose models are loaded; :func:`sdort.load` makes it.

    Any number of threads may call it: their calls take turns, in the order in which they come. As a context manager it
    is closed at the end of the block.

    Attributes:
        provider: the name of the execution provider that runs the UNet.
    """

    def __init__(self, models: TextToImage, options: RuntimeOptions, load_seconds: float, device: DeviceGrowth) -> None:
        self.provider: str = models.provider.name
        self._loaded: TextToImage | None = models
        self._turns = CallQueue()
        self._options = options
        self._load_seconds = load_seconds
        self._device = device
        self._held = 0
        """Bytes of the largest generation until now, which the sessions keep for the next one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the models' memory back. Calls that run or wait end before; later ones are refused.

        Raises:
            UsageError: it is called from inside of a call of the pipeline.
        """
        with self._turns.take():
            self._loaded = None

    @property
    def _models(self) -> TextToImage:
        if self._loaded is None:
            raise UsageError("the pipeline is closed", hint="Load it again, with sdort.load.")
        return self._loaded

    @cached_property
    def _custom_ops(self) -> str | None:
        """The library that the sessions have."""
        return custom_ops_hash(self._options)

    @property
    def fallback(self) -> str | None:
        """Why the provider, or a component's, is not the requested one; None if all are."""
        return self._models.fallback

    @property
    def default_size(self) -> tuple[int, int]:
        """Height and width in pixels that the pipeline was made for."""
        return self._models.folder.default_size

    def generate(self, prompt: str | Sequence[str] = (), **options: Unpack[GenerationOptions]) -> Generation:
        """Generate images from text.

        Args:
            prompt: what the images are to show. Of several prompts each gets ``num_images`` images of the same seeds,
                the same as alone, in the order of the prompts.
            options: as in :class:`GenerationOptions`.

        Returns:
            The images (uint8 pixels) and the record of the generation.

        Raises:
            UsageError: a value that the pipeline cannot do; or the pipeline is closed, is called from inside of its own
                call, or was loaded before the process was forked.
            CancelledError: ``cancel`` was set; the images until then are written, if ``output`` is given.
            ParityError: a stage gave NaN, or an image shows nothing; the other images are written before.
            ProviderError: a run failed.
            OutputError: ``output`` exists or cannot be written.
            MemoryShortageError: images of this size, and so many at once, cannot fit into the free memory.

        Example:
            >>> result = pipeline.generate("a red star on navy", steps=20, seed=7)
            >>> result.images[0].pixels.shape
            (64, 64, 3)
        """
        jobs = plan_unfinished(prompt, options)
        with self._turns.take(jobs[0].cancel):
            started = time.perf_counter()
            return replace(self._generate_all(jobs), elapsed=_seconds_since(started))

    def _generate_all(self, jobs: Sequence[Job]) -> Generation:
        """The images of jobs, which are checked before the first one begins."""
        models = self._models
        jobs = [job.for_pipeline(models.folder) for job in jobs]
        written = jobs[0].output is not None or jobs[0].quality is not None or jobs[0].grid
        paths, needed = plan_paths(jobs) if written else None, 0
        left = find_unfinished(jobs, paths, models.folder) if paths is not None else Unfinished(list(jobs), [], [])
        if not left.jobs and left.record:
            return _nothing_left(left, left.record)
        paths = None if paths is None else left.paths
        plans: list[RequestPlan] = []
        for job in left.jobs:
            plan, more = self._plan(job, paths)
            needed = max(needed, more)
            plans.append(plan)
        left = replace(left, jobs=[job.sized(plan.request) for job, plan in zip(left.jobs, plans, strict=True)])
        _check_grid_of(left.jobs, plans, paths)
        result = self._run_jobs(left, paths, plans)
        self._held = max(self._held, needed)
        return result

    def generate_job(
        self, job: Job, paths: Sequence[Path], on_image: Callable[[int, Image | None], None] = lambda *_: None
    ) -> Generation:
        """Generate the images of a planned job, and tell each as soon as it is written.

        Args:
            job: of :func:`sdort.generation.job.plan_jobs`.
            paths: the file of each image, in the order of the requests; none where none is written.
            on_image: called with the number of each image, and the image; None where it shows nothing and is not
                written.

        Raises:
            SdortError: as :meth:`generate`, but for images that show nothing.
        """
        with self._turns.take(job.cancel):
            job = job.for_pipeline(self._models.folder)
            plan, needed = self._plan(job, paths)
            job = job.sized(plan.request)
            with _previews_of(self, job, paths):
                result = self._generate(job, plan, list(paths), [], [], on_image)
            self._held = max(self._held, needed)
            return result

    def _plan(self, job: Job, paths: Sequence[Path] | None) -> tuple[RequestPlan, int]:
        """The plan of a job that fits into the memory, and the bytes that it takes beside what is held."""
        models, device_id = self._models, self._options.device_id
        plan = _compiled_plan(
            models.folder, job, check_job(models.folder, job, paths), paths, models.provider, self._options
        )
        with job.named():
            refuse_patches(plan.request, models.provider, self._options)
            refuse_offload(models.provider, self._options)
            if self._options.memory == LOW:  # whose sessions are closed
                offload = self._options.offload
                refuse_low(models.folder, plan, job.images, models.provider, device_id, offload=offload)
                return plan, 0
            held = self._held + models.closable_bytes
            refuse_shared(models.folder, plan, job.images, models.provider, self._options, held)
            return plan, refuse_generation(
                models.folder, plan.request, job.images, models.provider, device_id, held,
                refiner_open=models.refiner is not None, controls_open=models.controls.open_models,
                stages=plan.stages,
            )  # fmt: skip

    def _run_jobs(self, unfinished: Unfinished, paths: list[Path] | None, plans: Sequence[RequestPlan]) -> Generation:
        """The images of jobs, one after the other. One that shows nothing ends the run when all others are done.

        Args:
            plans: of the jobs.
        """
        say_unjudged(self._models.folder, [job.requests[0].safety for job in unfinished.jobs])
        results: list[Generation] = []
        written: list[Path] = []
        bad: list[BadImage] = []
        left = list(paths or [])
        try:
            for job, plan in zip(unfinished.jobs, plans, strict=True):
                own, left = left[: job.images], left[job.images :]
                with _previews_of(self, job, own):
                    results.append(self._generate(job, plan, own, written, bad))
            _refuse_bad(bad, sum(len(job.requests) for job in unfinished.jobs))
        except BaseException:
            _tell_written(written, unfinished)
            raise
        result = replace(joined(results), done_before=unfinished.done)
        first = unfinished.jobs[0]
        return replace(result, grid=_grid(first, result.images, paths)) if first.grid and paths else result

    def _generate(
        self,
        job: Job,
        plan: RequestPlan,
        paths: list[Path],
        written: list[Path],
        bad: list[BadImage],
        on_image: Callable[[int, Image | None], None] = lambda *_: None,
    ) -> Generation:
        """The images of a job, whose files are ``paths``, if there are some; they are added to ``written``, and those
        that show nothing to ``bad``. Each is told to ``on_image``."""
        models, requests = self._models, job.requests
        owners = [request for request in requests for _ in range(request.num_images)]
        places = [job.place_of(at) for at, request in enumerate(requests) for _ in range(request.num_images)]
        images: list[Image] = []

        def done(index: int, image: Image) -> None:
            images.append(image)
            written.extend(filter(None, [image.path]))
            on_image(index, image)

        with _shown_progress(owners, plan.stages, job) as watch, ImageWriter(done) as writer:
            # Each is written as soon as it is done: what ends the rest does not take it away.
            for index, image in enumerate(models.generate_all(requests, watch.step, watch.tile, plan)):
                watch.image_done()
                if image.problem is not None:
                    bad.append(BadImage(places[index], owners[index], image))
                    on_image(index, None)
                    continue
                kept = self._kept(owners[index], image, plan)
                write = None
                if paths and not kept.withheld:
                    write = partial(
                        save_image, paths[index], kept.pixels, kept.record, kept.seed, overwrite=job.overwrite,
                        quality=job.quality,
                    )  # fmt: skip
                writer.take(index, kept, write)
        keep_generated(models, requests, plan.stages)
        return Generation(
            **_values(replace(self._record(requests[0], plan), flagged=any_flagged(images))),
            images=images,
            iterations_per_second=round(len(models.timings.steps) / sum(models.timings.steps), 4),
            memory=self._options.memory or NORMAL,
            opened=models.openings.found,
            offloaded=models.offloaded,
            peak_memory=PeakMemory(peak_resident(), self._device.bytes()),
        )

    def _kept(self, request: Request, image: Generated, plan: RequestPlan) -> Image:
        verdict = self._models.judge(image.pixels) if is_judged(request.safety) else None
        pixels = np.zeros_like(image.pixels) if verdict and verdict.flagged else image.pixels
        flagged, score = (verdict.flagged, verdict.score) if verdict else (None, None)
        record = replace(self._record(request, plan), variation_seed=image.variation_seed, flagged=flagged)
        seeds = image.seed, image.variation_seed
        kept = Image(None, *seeds, request.prompt, request.negative_prompt, pixels, record, flagged, score)
        if flagged:
            warn(withheld_text(kept) if kept.withheld else replaced_text(kept))
        return kept

    def _record(self, request: Request, plan: RequestPlan) -> GenerationRecord:
        models, options, timings = self._models, self._options, self._models.timings
        seconds = StageSeconds(
            load=round(self._load_seconds, 4),
            encode=round(timings.encode, 4),
            encode_image=round(timings.image, 4),
            denoise=round(sum(timings.steps), 4),
            first_step=round(timings.steps[0], 4),
            decode=round(timings.decode, 4),
            upscale=round(timings.upscale, 4),
            judge=round(timings.judge, 4),
        )
        return GenerationRecord(
            **recorded_settings(
                models.folder,
                request,
                lora=models.adapters.record,
                refiner=models.refined_by,
                size=plan.stages[0].size,
            )
            | {"upscale_by": models.upscaled_by(request)},
            model=models.folder.checkpoint,
            checkpoint_sha256=models.folder.checkpoint_sha256,
            provider=self.provider,
            requested_provider=options.provider,
            fallback=models.fallback,
            tuning=options.tuning and can_tune(models.provider, options),
            device=device_names(models.provider, options.all_devices),
            custom_ops=self._custom_ops,
            graph=options.graph,
            decoded=models.decoded,
            flagged=None,
            widened=dict(models.guard.widened) if models.guard else {},
            seconds=seconds,
            versions=versions(),
        )


def load_folder(folder: Path, options: RuntimeOptions, plan: LoadPlan | None = None) -> Pipeline:
    """Load the pipeline in a folder of ONNX models, as :func:`sdort.load` does.

    Args:
        plan: of its loading, where there is one already.
    """
    chosen = (plan.provider, plan.replaced) if plan else choose_provider(options)
    announce(options, chosen)
    remark_on_devices(chosen[0], options)
    device = DeviceGrowth(chosen[0], options.device_id)
    started = time.perf_counter()
    models = load_pipeline(folder, options, plan)
    seconds = time.perf_counter() - started
    models.guard = Guard(models.sessions, models.controls, models.release if models.one_group else None)
    if models.one_group:
        models.one_group.before_closing = device.look
    return Pipeline(models, options, seconds, device)


@dataclass(frozen=True)
class PlannedRun:
    """Jobs that a pipeline can do, which is not loaded yet; :func:`prepare_run` makes it."""

    left: Unfinished
    plans: list[RequestPlan]
    """Of the jobs that are left."""
    loading: LoadPlan
    runtime: RuntimeOptions

    @property
    def folder(self) -> PipelineFolder:
        """The pipeline's folder."""
        return self.loading.folder

    @property
    def provider(self) -> Provider:
        """The execution provider that will run."""
        return self.loading.provider

    @property
    def jobs(self) -> list[Job]:
        """The jobs that are left."""
        return self.left.jobs

    @property
    def seconds(self) -> float | None:
        """Estimated seconds, by the last runs of its kind on this machine; None where there was none."""
        device = device_names(self.provider, self.runtime.all_devices)
        memory = OFFLOADED if self.runtime.offload else self.runtime.memory or NORMAL
        return known_seconds(self.folder, self.jobs, self.plans, self.provider.name, device, memory)

    def execute(self, *, placement: bool = False) -> Generation:
        """Load the pipeline, generate the images and write them.

        Args:
            placement: also open each component anew, and measure which operators run on which execution provider.

        Raises:
            UsageError: ``placement`` of a denoiser that is offloaded.
        """
        if placement and self.runtime.offload:
            raise UsageError(
                "--placement looks at sessions that hold all weights, and --offload copies weights in every step",
                hint="Leave one of the two out.",
            )
        if not self.jobs and self.left.record:
            return _nothing_left(self.left, self.left.record)
        adaptable = self.runtime.adapters or any(job.requests[0].lora for job in self.jobs)
        steered = any(job.requests[0].control or job.requests[0].ip_adapter_image for job in self.jobs)
        cut = max(job.requests[0].deep_cut for job in self.jobs)
        patches = {0 if steered else job.requests[0].patches or 0 for job in self.jobs}
        # Where jobs differ, each opens what it needs.
        patch_cut = patches.pop() if len(patches) == 1 else 0
        options = replace(self.runtime, adapters=adaptable, control_inputs=steered, deep_cut=cut, patch_cut=patch_cut)
        loaded = load_folder(self.folder.path, options, self.loading)
        result = loaded._run_jobs(self.left, self.left.paths, self.plans)
        keep_speed(self.folder, self.jobs, self.plans, result)
        return _with_placement(result, loaded._models, self.jobs[0].requests, self.runtime) if placement else result


def prepare_run(pipeline: Path, jobs: list[Job], paths: list[Path], runtime: RuntimeOptions) -> PlannedRun:
    """Jobs with a pipeline's folder: refused before anything is loaded where it cannot do them.

    Args:
        paths: the files of all images.

    Raises:
        SdortError: as :meth:`Pipeline.generate`; or there is no pipeline, or its provider does not load.
    """
    # A GPU's libraries are read while the models are checked.
    content = content_check(pipeline, runtime.check)
    with ThreadPoolExecutor(1, "sdort-probe") as pool, content.block():
        chosen = pool.submit(choose_provider, runtime)
        folder = open_folder(pipeline)
        left = find_unfinished([job.for_pipeline(folder) for job in jobs], paths, folder)
        with phase("plan"):
            plans = [check_job(folder, job, left.paths) for job in left.jobs]
            _count_ahead(folder, left.jobs[:1], plans[:1], runtime)
        with phase("the provider's libraries"):
            loading = LoadPlan(folder, content, *chosen.result())
        with phase("plan"):
            plans = [
                _compiled_plan(folder, job, plan, left.paths, loading.provider, runtime)
                for job, plan in zip(left.jobs, plans, strict=True)
            ]
            left = replace(left, jobs=[job.sized(plan.request) for job, plan in zip(left.jobs, plans, strict=True)])
            runtime = _refuse_or_choose(folder, left.jobs, plans, loading.provider, runtime)
        _check_grid_of(left.jobs, plans, left.paths)
    return PlannedRun(left, plans, loading, runtime)


def _count_ahead(
    folder: PipelineFolder, jobs: Sequence[Job], plans: Sequence[RequestPlan], runtime: RuntimeOptions
) -> None:
    """Count activations for the provider that is still being loaded: :func:`_refuse_or_choose` finds them counted."""
    for job, plan in zip(jobs, plans, strict=True):
        with job.named():
            generation_bytes(folder, plan.request, job.images, expected_provider(runtime), sys.maxsize, plan.stages)


def _refuse_or_choose(
    folder: PipelineFolder,
    jobs: Sequence[Job],
    plans: Sequence[RequestPlan],
    provider: Provider,
    runtime: RuntimeOptions,
) -> RuntimeOptions:
    """The runtime's options, with low memory where nobody said how and only that fits.

    Raises:
        MemoryShortageError: a job cannot fit.
    """
    if runtime.memory is None and not runtime.other_devices:
        pairs = [(plan, job.images) for plan, job in zip(plans, jobs, strict=True)]
        runtime = replace(runtime, memory=choose_memory(folder, pairs, provider, runtime.device_id))
    for job, plan in zip(jobs, plans, strict=True):
        with job.named():
            refuse_patches(plan.request, provider, runtime)
            refuse_offload(provider, runtime)
            if runtime.memory == LOW:
                refuse_low(folder, plan, job.images, provider, runtime.device_id, offload=runtime.offload)
            else:
                refuse_generation(folder, plan.request, job.images, provider, runtime.device_id, stages=plan.stages)
                refuse_shared(folder, plan, job.images, provider, runtime)
    return runtime


def written_size(request: Request, last: Stage) -> tuple[int, int]:
    """Height and width in pixels of the images of a request, whose last stage is ``last``.

    Raises:
        UsageError, BadModelError: as :func:`upscaled_size`.
    """
    size = request.init_image.size if request.init_image and request.only_masked else last.size
    return upscaled_size(request, size)


def _check_grid_of(jobs: Sequence[Job], plans: Sequence[RequestPlan], paths: list[Path] | None) -> None:
    """Refuse the grid of all images that jobs are to write, as :func:`check_grid`."""
    if not (jobs and jobs[0].grid and paths and len(paths) > 1):
        return
    sizes = [written_size(plan.request, plan.stages[-1]) for plan in plans]
    prompts = [each.prompt for job in jobs for each in job.requests for _ in range(each.num_images)]
    largest = max(height for height, _ in sizes), max(width for _, width in sizes)
    check_grid(grid_of(jobs[0], paths), largest, len(paths), columns_of(prompts))


def check_job(folder: PipelineFolder, job: Job, paths: Sequence[Path] | None) -> RequestPlan:
    """The plan of a job. One that the pipeline cannot do, or whose images the formats of their files do not hold, is
    refused.

    Args:
        paths: the files, which have one format; None where nothing is written.

    Raises:
        UsageError, BadModelError: as :func:`plan_request` and :func:`check_sides`.
    """
    with job.named():
        plan = plan_request(folder, job.requests[0])
        size = written_size(plan.request, plan.stages[-1])
        if paths:
            check_sides(paths[0], size)
    for number, each in enumerate(job.requests[1:], 1):  # their texts are their own
        with job.named(number):
            check_prompts(folder, each)
    return plan


def _compiled_plan(
    folder: PipelineFolder,
    job: Job,
    plan: RequestPlan,
    paths: Sequence[Path] | None,
    provider: Provider,
    options: RuntimeOptions,
) -> RequestPlan:
    """The plan of a job at a size that the provider has programs for, or may compile.

    Raises:
        NotCompiledError: nothing is compiled for it, and nobody asked to.
    """
    with job.named():
        size = fitting_size(folder, plan.request, plan.stages, job.images, provider, options)
    if size is None:
        return plan
    return check_job(folder, job.sized(replace(plan.request, height=size[0], width=size[1])), paths)


def upscaled_size(request: Request, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a request's finished images, as far as that is known before its upscaler is open.

    Args:
        size: without an upscaler.

    Raises:
        UsageError: they are too large.
        BadModelError: an upscaler's file is none that sdort knows.
    """
    if request.hires_upscaler:
        _scale_of(request.hires_upscaler)
    scale = _scale_of(request.upscale) if request.upscale else None
    return result_size(size, request.upscale_by or scale or 1)


def _scale_of(upscaler: Path) -> int | None:
    """How many times as large a file's network makes an image; what reads networks is imported for one alone."""
    from sdort.upscaling.upscaler_file import known_scale

    return known_scale(upscaler)


@contextmanager
def _shown_progress(owners: list[Request], stages: Sequence[Stage], job: Job) -> Iterator[StepProgress]:
    """The progress of a job, on a bar and by its ``on_progress``; where it ends if the job is cancelled.

    Args:
        owners: the request of each image.
        stages: of a batch.
    """
    request = owners[0]
    watch = StepProgress(len(owners), request.images_at_once, total_steps(stages), total_calls(stages))
    with progress(watch.description, watch.total, numbers=watch.numbers) as advance:

        def moved(amount: float) -> None:
            advance(amount)
            if job.on_progress:
                job.on_progress(watch.done, watch.total)
            refuse_cancelled(job.cancel)

        watch.on_step, watch.on_tile = moved, partial(refuse_cancelled, job.cancel)
        yield watch


def _with_placement(
    result: Generation, models: TextToImage, requests: Sequence[Request], options: RuntimeOptions
) -> Generation:
    """The result with the placement of each component, which is opened anew and runs twice."""
    folder, placement, lines = models.folder, [], []
    request = replace(requests[0], num_images=sum(request.num_images for request in requests))
    ran = {each.component: models.provider for each in result.opened}
    ran |= {name: session.provider for name, session in models.sessions.items()}
    for component, provider in [(name, ran[name]) for name in folder.compared if name in ran]:
        case = _case(folder, component, request, result, provider)
        tokens = folder.tokens(component)
        measured = measure_cases(folder.models, [case], provider, options, folder.vae_factor, tokens)
        placement += measured
        lines += remarks(measured, provider)
    return replace(result, placement=placement, placement_remarks=lines)


def _case(folder: PipelineFolder, component: str, request: Request, result: Generation, provider: Provider) -> Case:
    """The last case of a component that the generation ran."""
    inputs = folder.file(component).signature.inputs
    copies, at_once = len(request.guidance()), request.images_at_once
    size = result.height, result.width
    case = generation_cases(component, inputs, request.num_images, size, copies=copies, at_once=at_once)[-1]
    if component != DECODER:
        return case
    # ``decoded`` tells of the last ones that were decoded together.
    case = replace(case, batch=(request.num_images - 1) % at_once + 1)
    return planner_of(folder, provider).part_of(case, result.decoded or Plan())


def _grid(first: Job, images: Sequence[Image], paths: Sequence[Path]) -> Path | None:
    """The file of the grid of a run's images; one image needs none."""
    if len(images) < 2:
        say("one image needs no grid")
        return None
    path = save_grid(grid_of(first, paths), images, overwrite=first.overwrite, quality=first.quality)
    say(f"wrote {path}, a grid of {len(images)} images")
    return path


def _previews_of(pipeline: Pipeline, job: Job, paths: Sequence[Path]) -> AbstractContextManager[None]:
    """A block that shows the previews of a job whose images have these files, or none."""
    first, judged = paths[0] if paths else None, is_judged(job.requests[0].safety)
    return previewing(pipeline._models, job.previews, first, pipeline._options, judged=judged)


def _values(record: GenerationRecord) -> dict[str, Any]:
    return {attribute.name: getattr(record, attribute.name) for attribute in fields(record)}


def _seconds_since(started: float) -> float:
    return round(time.perf_counter() - started, 4)


class BadImage(NamedTuple):
    """An image that shows nothing."""

    place: str
    """Its line in a file of prompts; empty without one."""
    request: Request
    image: Generated


def _tell_written(written: Sequence[Path], unfinished: Unfinished) -> None:
    """Say what a run that ends early has written, and how it goes on."""
    jobs = unfinished.jobs
    if not (jobs and jobs[0].file and written):
        for path in written:
            say(f"wrote {path}")
        return
    count, done = len(unfinished.paths) + len(unfinished.done), len(written) + len(unfinished.done)
    without = ", without --overwrite" if jobs[0].overwrite else ""
    say(
        f"{done} of {count} images are written, the last one {written[-1]}: the same command"
        f"{jobs[0].goes_on_with}{without} goes on with the rest"
    )


def _nothing_left(unfinished: Unfinished, record: GenerationRecord) -> Generation:
    """The result of a run whose images an earlier one has written: none."""
    return Generation(
        **_values(record),
        images=[],
        iterations_per_second=0.0,
        peak_memory=PeakMemory(peak_resident(), None),
        done_before=unfinished.done,
    )


def _refuse_bad(bad: Sequence[BadImage], prompts: int) -> None:
    if not bad:
        return
    raise ParityError(
        "; ".join(
            f"{f'{place}: ' if place else ''}the image of seed {image.seed}"
            f"{f' of {request.prompt!r}' if prompts > 1 else ''} is not written: {image.problem}"
            for place, request, image in bad
        ),
        component=DECODER,
        hint="An fp16 overflow does this: optimize with --fp16 auto, or without --fp16. To compare with the fp32 "
        "pipeline:\n    sdort bench OUT --reference IN --component vae_decoder",
    )
