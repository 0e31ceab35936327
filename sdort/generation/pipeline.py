"""Text to image over ONNX Runtime sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from sdort.console import detail, progress, say
from sdort.errors import ParityError, SdortError
from sdort.families.component_names import DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.generation.denoising.adapted_weights import AdapterPlan, RunningAdapters, is_adaptable, remark_inputs
from sdort.generation.denoising.device_loop import Loop
from sdort.generation.denoising.guard import Guard, dead
from sdort.generation.denoising.host_loop import denoise, embed_guidance
from sdort.generation.denoising.ip_adapter_tokens import IpAdapterTokens
from sdort.generation.denoising.running_controls import Controls, RunningControls
from sdort.generation.denoising.session_groups import DENOISING, PICTURES, OneGroup, Openings, group_of
from sdort.generation.keep_tuning import keep_generated
from sdort.generation.latents.decode import Decoder, OnTile, Plan, choose, size_of
from sdort.generation.latents.encode import Encoder, Posterior, pixels_of_images
from sdort.generation.latents.graph_memory import decoder_memory
from sdort.generation.latents.preview import BatchPreviews, Decode, Previewer
from sdort.generation.latents.start_latents import Start
from sdort.generation.low_memory import step_bytes
from sdort.generation.memory_need import fits_beside, frees_parts, has_room
from sdort.generation.pictures.images import Generated, to_image
from sdort.generation.pictures.resampling import enlarged_latents
from sdort.generation.pictures.safety import SafetyChecker, Verdict
from sdort.generation.prompts.encoded_texts import EncodedTexts
from sdort.generation.prompts.plain_tokenizer import PlainTokenizer
from sdort.generation.prompts.prompt_tokenizer import PromptTokenizer
from sdort.generation.prompts.text_conditioning import PromptReader, Texts, encode_prompts, same_length
from sdort.generation.request_plan import RequestPlan, plan_request
from sdort.generation.requests.canvas import Canvas, make_canvas, remark_on_size
from sdort.generation.requests.prompt_copies import CopyTexts, copy_schedules, remark_on_schedules, texts_by_call
from sdort.generation.requests.refiner import open_refiner, remark_on_base
from sdort.generation.requests.request import UPSCALES, Request, check_inputs, for_family, image_size, sampler_of
from sdort.generation.requests.schedule_cache import cached_recurrence
from sdort.generation.requests.stages import Stage
from sdort.generation.requests.tokenizers import load_tokenizers, remark_on_files, remark_on_prompts, remark_on_scale
from sdort.generation.schedules.image_noise import ImageSeed, NoiseSource
from sdort.generation.schedules.recurrence import Recurrence
from sdort.generation.schedules.schedule_part import Part, PartSteps
from sdort.generation.shared_devices import remark_on_shares
from sdort.graph.signature import Array, TensorSpec, static_size
from sdort.machine.phases import phase
from sdort.onnx_io.component_file import ComponentFile
from sdort.pipelines.conditioning import Conditioning, at_size, condition, encoder_outputs, scored
from sdort.pipelines.content_check import ContentCheck, checked, content_check
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers import LOW
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.environment import device_name, versions
from sdort.runtime.memory import return_freed_pages
from sdort.runtime.memory_pool import new_pool_number
from sdort.runtime.piecewise_ort import Offloaded
from sdort.runtime.probe import choose_provider
from sdort.runtime.session import Session, SessionPlace, open_again, open_or_fall_back
from sdort.runtime.side_by_side import open_side_by_side
from sdort.runtime.step.bound_unet import Batch, condition_width
from sdort.runtime.step.control_inputs_removed import remove_control_inputs
from sdort.runtime.step.step_conditions import Copies, StepConditions
from sdort.workload.steering_inputs import steering_inputs

if TYPE_CHECKING:
    from sdort.upscaling.upscaler import Upscaler

T = TypeVar("T")


@dataclass
class Timings:
    """Seconds spent per stage; ``steps`` has one entry per denoising step."""

    encode: float = 0.0
    image: float = 0.0
    """Encoding of images."""
    steps: list[float] = field(default_factory=list)
    decode: float = 0.0
    upscale: float = 0.0
    judge: float = 0.0
    """The safety checker."""


@dataclass(frozen=True)
class DenoisedBatch:
    """A batch of images before they are decoded."""

    numbers: list[int]
    """The request of each image."""
    seeds: list[ImageSeed]
    source: NoiseSource
    latents: Array
    """[images, channels, height, width], fp32, scaled."""


class TextToImage:
    """A pipeline whose sessions are open, on ``provider``, or open when they are first used.

    ``fallback`` says why that is not the requested one, or which components are elsewhere, and why.

    Args:
        options: of its sessions; by default those of the UNet's.
        one_group: closes the sessions of a group of components when another one begins; None where all stay open.
    """

    def __init__(
        self,
        folder: PipelineFolder,
        sessions: dict[str, Session],
        provider: Provider,
        fallback: str | None,
        tokenizers: Mapping[str, PromptTokenizer | PlainTokenizer],
        options: RuntimeOptions | None = None,
        one_group: OneGroup | None = None,
    ) -> None:
        self.folder = folder
        self.denoiser = folder.denoiser
        """The name of the component that takes noise out of latents."""
        self.sessions = sessions
        self.provider = provider
        self.fallback = fallback
        self.tokenizers = tokenizers
        self.one_group = one_group
        self.openings = Openings()
        self.offloaded: Offloaded | None = None
        """How the weights of the last UNet took turns."""
        self._conditioning_outputs(1)
        self.options = options or sessions[self.denoiser].options
        if self.denoiser in sessions:
            self.loop = Loop(sessions[self.denoiser])
        self._steered = False
        """Whether the UNet has its inputs for images, where it opens when it is used."""
        self._running: tuple[Sequence[Request], list[Stage]] = ((), [])
        """The requests, and the stages of which there was a batch since the UNet was opened."""
        self.adapters = RunningAdapters(sessions)
        self.controls = RunningControls(self.openings)
        self.ip_adapter_tokens = IpAdapterTokens()
        self.encoded_texts = EncodedTexts()
        self._samples = 0
        """Samples of the last step."""
        self._set_aside: tuple[Loop, str | None] | None = None
        """The loop of the UNet with, or without, inputs for control images, the one that is not in use, and what was in
        fp32 when it was."""
        self.timings = Timings()
        self.decoded: Plan | None = None
        """How the last latents were decoded, in the end."""
        self.upscalers: dict[Path, Upscaler] = {}
        """Upscalers that are open, by their files."""
        self._scales: dict[Path, float] = {}
        """How many times as large upscalers make an image, by their files."""
        self.previewer: Previewer | None = None
        """Shows previews of the next images."""
        self.preview_decoders: dict[Path | None, Decode] = {}
        """Decoders of previews that are open, by the folders of their small VAEs; None for the pipeline's usual one."""
        self.refiner: TextToImage | None = None
        """The pipeline that takes the last steps where a request asks for it, while it is open."""
        self.refined_by: PipelineFolder | None = None
        """The folder of the last refiner, open or not."""
        self.schedule = folder
        """The folder whose scheduler it uses: a refiner goes on with that of its base."""
        self._checker: SafetyChecker | None = None
        self.guard: Guard | None = None
        """Takes a stage that fails again in a safer precision; without it the failure is raised."""

    @property
    def closable_bytes(self) -> int:
        """Bytes of weights that are given back where steps have too little memory."""
        preparation = self.sessions[self.denoiser].preparation if self.denoiser in self.sessions else None
        return sum(part.nbytes for part in preparation.parts if part.is_open) if preparation else 0

    def size(self, request: Request) -> tuple[int, int]:
        """Height and width in pixels that ``request`` generates first, as :func:`image_size`."""
        return image_size(self.folder, request)

    def generate(self, request: Request, on_step: Callable[[float], None] = lambda _: None) -> Iterator[Generated]:
        """Generate the images of a request; as :meth:`generate_all`."""
        return self.generate_all([request], on_step)

    def generate_all(
        self,
        requests: Sequence[Request],
        on_step: Callable[[float], None] = lambda _: None,
        on_tile: OnTile = lambda tile, tiles: None,
        plan: RequestPlan | None = None,
    ) -> Iterator[Generated]:
        """Generate the images of requests that differ in prompts and seeds alone, each yielded as soon as it is done.

        Args:
            on_step: called after every denoising step with the number of images that it advanced.
            on_tile: called before each call of the decoder with the number of the tile and all there are.
            plan: of the first request, where there is one already.

        Raises:
            UsageError: a value that the pipeline cannot do.
            ParityError: the UNet returned NaN or infinity.
            ProviderError: a run failed.
        """
        requests = [for_family(self.folder.family, each) for each in requests]
        try:
            yield from self._generate_all(requests, plan or plan_request(self.folder, requests[0]), on_step, on_tile)
        finally:
            if self.one_group:
                self.one_group.end()

    def _generate_all(
        self, requests: Sequence[Request], plan: RequestPlan, on_step: Callable[[float], None], on_tile: OnTile
    ) -> Iterator[Generated]:
        request, stages = requests[0], plan.stages
        self._running = (requests, [])
        steered = bool(request.control or request.ip_adapter_image)
        self._use_unet(steered=steered, cut=request.deep_cut, patches=request.patches or 0)
        size = stages[0].size
        canvas = make_canvas(request, size, self.folder.vae_factor) if request.init_image else None
        remark_on_size(request, size)
        self.openings.forget()
        images = sum(each.num_images for each in requests)
        own = [stage for stage in stages if not stage.refines]
        self._leave_room(request, own, images)
        self.use_adapters(plan.adapters)
        self.timings = Timings()
        started = self.openings.clock()
        conditions = self._conditions(requests, own)
        self.timings.encode = self.openings.clock() - started
        start = Start(self.folder) if canvas is None else self._start(request, canvas, stages[0].part)
        batches: Iterable[DenoisedBatch] = self._passes(requests, own, conditions, start, on_step)
        if own != stages:
            batches = self._gathered(self._refined(requests, stages[-1], batches, on_step))
        for batch in batches:
            for image in self._decode(batch.latents, request, batch.seeds, on_tile):
                if image.problem is None:
                    pixels = image.pixels if canvas is None else canvas.finished(image.pixels)
                    image = replace(image, pixels=self._upscaled(pixels, request.upscale, request.upscale_by, on_tile))
                yield image

    def _passes(
        self,
        requests: Sequence[Request],
        stages: Sequence[Stage],
        conditions: list[list[list[Copies]]],
        start: Start,
        on_step: Callable[[float], None],
    ) -> Iterator[DenoisedBatch]:
        """The batches of all images after the stages, whose ``conditions`` are of each stage and request."""
        batches: Iterable[DenoisedBatch] = _undrawn(requests)
        for stage, own in zip(stages, conditions, strict=True):
            begun = self._gathered(self._begun(batches, requests[0], stage, start))
            batches = self._gathered(self._pass(begun, requests[0], stage, own, on_step))
        return iter(batches)

    def _begun(
        self, batches: Iterable[DenoisedBatch], request: Request, stage: Stage, start: Start
    ) -> Iterator[tuple[DenoisedBatch, Start]]:
        """Each batch with what it begins a stage with: ``start``, or what the stage before made."""
        for batch in batches:
            yield batch, self._larger(batch.latents, request, stage, batch.seeds) if batch.latents.size else start

    def _pass(
        self,
        begun: Iterable[tuple[DenoisedBatch, Start]],
        request: Request,
        stage: Stage,
        conditions: list[list[Copies]],
        on_step: Callable[[float], None],
    ) -> Iterator[DenoisedBatch]:
        """The batches after a stage."""

        def stack(batch: DenoisedBatch) -> StepConditions:
            return StepConditions([conditions[number] for number in batch.numbers])

        recurrence, later = self._recurrence(request, stage), list[tuple[int, StepConditions]]()
        if self.one_group:
            begun = list(begun)
            later = [(len(batch.seeds), stack(batch)) for batch, _ in begun]
        for batch, begin in begun:
            stacked, later = stack(batch), later[1:]
            denoise_batch = partial(
                self._denoise_batch, request, stage, recurrence, stacked, begin, batch.source, following=later
            )
            yield replace(batch, latents=self._denoised(denoise_batch, batch.source, on_step))

    def _gathered(self, parts: Iterable[T]) -> Iterable[T]:
        """All parts before the next step begins with the first one, where their sessions are not open together."""
        return parts if self.one_group is None else list(parts)

    def _refined(
        self,
        requests: Sequence[Request],
        stage: Stage,
        batches: Iterable[DenoisedBatch],
        on_step: Callable[[float], None],
    ) -> Iterator[DenoisedBatch]:
        """The batches after the refiner's steps. Where both UNets do not fit into memory, the refiner's takes the
        place of the other one when all batches are through that."""
        request = requests[0]
        folder = self.refined_by = open_refiner(Path(request.refiner or ""), self.folder)
        if self.refiner is not None and self.refiner.folder.path != folder.path:
            self.refiner = None
        remark_on_base(
            self.folder.path, adapters=bool(request.lora), controls=bool(request.control or request.ip_adapter_image)
        )
        images = sum(each.num_images for each in requests)
        alone = not (self.one_group or self.refiner) and not fits_beside(
            folder, stage.size, request, images, self.provider, self.options
        )
        if alone:
            batches = list(batches)
            self._close_unet()
        refiner = self.refiner = self.refiner or self._opened_refiner(folder)
        refiner._leave_room(request, [stage], images)
        refiner._use_unet(steered=False, cut=request.deep_cut, patches=request.patches or 0)
        refiner.timings, refiner.previewer = self.timings, self.previewer
        started = self.openings.clock()
        [conditions] = refiner._conditions(requests, [stage])
        self.timings.encode += self.openings.clock() - started
        recurrence = refiner._recurrence(request, stage)
        for batch in batches:
            stacked = StepConditions([conditions[number] for number in batch.numbers])
            begin = Start(folder, latents=batch.latents)
            denoise_batch = partial(refiner._denoise_batch, request, stage, recurrence, stacked, begin, batch.source)
            yield replace(batch, latents=refiner._denoised(denoise_batch, batch.source, on_step))
        if alone:
            self.refiner = None

    def _opened_refiner(self, folder: PipelineFolder) -> TextToImage:
        """A refiner without a decoder of its own: the base's is the same."""
        names = [name for name in folder.needed if name != DECODER]
        sessions: dict[str, Session] = {}
        if self.one_group is None:
            sessions = {name: self._open(folder, name) for name in names} | {DECODER: self.sessions[DECODER]}
        options = replace(self.options, adapters=False)
        refiner = assemble(folder, sessions, self.provider, None, options=options, one_group=self.one_group)
        refiner.schedule, refiner.openings = self.folder, self.openings
        refiner.guard = self.guard and Guard(sessions, release=refiner.release if self.one_group else None)
        return refiner

    def _close_unet(self) -> None:
        """Give the memory of the UNet back; the next images open it again."""
        self._forget(self.denoiser)
        vars(self).pop("loop", None)
        self._set_aside = None

    def _close_group(self, group: str) -> None:
        """Give the memory of a group's sessions back, once what was tuned in them is kept."""
        requests, stages = self._running
        if requests:
            keep_generated(self, requests, stages)
        for name in [name for name in self.sessions if group_of(name) == group]:
            self._forget(name)
        if group == DENOISING:
            self._close_unet()
            self.controls.close()
            stages.clear()
        if group == PICTURES:
            self.upscalers.clear()
        return_freed_pages()

    def _forget(self, component: str) -> None:
        """Hold a session no longer."""
        self.sessions.pop(component, None)
        self.adapters.forget(component)

    def release(self, component: str) -> None:
        """Give the memory of a session back before another one takes its place, where that matters."""
        if component == self.denoiser:
            self._close_unet()

    def _use_unet(self, *, steered: bool, cut: int = 0, patches: int = 0) -> None:
        """Open the UNet with inputs for control images, or the one without them; and cut, unless ``cut`` is 0: one that
        is cut at a skip connection does for requests that want it whole, and one in patches does not.

        Where memory has room for both the other one stays open for the next request of its kind; where it has not, the
        UNet with these inputs goes on for requests that nothing steers, and zeros are in them.
        """
        if cut or patches != self.options.patch_cut or self.one_group:
            self.options = replace(self.options, deep_cut=cut, patch_cut=patches)
        controlled = steered and bool(steering_inputs(self.folder.file(self.denoiser).signature.inputs))
        if self.one_group:
            self._steered = controlled
            return
        if self.denoiser not in self.sessions:
            self.sessions[self.denoiser] = self._open(self.folder, self.denoiser, controlled)
            self.loop = Loop(self.sessions[self.denoiser])
        options = self.sessions[self.denoiser].options
        if cut not in (0, options.deep_cut) or patches != options.patch_cut:
            self._reopen_unet(replace(options, control_inputs=controlled, deep_cut=cut, patch_cut=patches))
            return
        if options.control_inputs == controlled:
            return
        options = replace(options, control_inputs=controlled)
        widened = self.guard.widened.get(self.denoiser) if self.guard else None
        if self._set_aside and (self._set_aside[0].unet.options, self._set_aside[1]) == (options, widened):
            loop, self._set_aside = self._set_aside[0], (self.loop, widened)
        elif controlled:
            loop = Loop(self._with_control_inputs(options, widened))
        else:
            return
        self.sessions[self.denoiser], self.loop = loop.unet, loop

    def _leave_room(self, request: Request, stages: Sequence[Stage], images: int) -> None:
        """Have a UNet whose weights take turns where they do not fit leave room for the next images."""
        if self.options.offload:
            needed = step_bytes(self.folder, request, stages, images, self.provider)
            self.options = replace(self.options, step_bytes=needed)

    def _reopen_unet(self, options: RuntimeOptions) -> None:
        """Have the UNet cut otherwise, in the place of the one that is open."""
        part = "a patch's for --patches" if options.patch_cut else "its outer part for --deep-cache"
        both = options.patch_cut or options.deep_cut
        detail(f"unet is loaded again, in two graphs: the whole, and {part}" if both else "unet is loaded again, whole")
        place = self.sessions[self.denoiser].place
        self._close_unet()
        self.sessions[self.denoiser] = self._opened_again(place, options)
        self.loop = Loop(self.sessions[self.denoiser])

    def _with_control_inputs(self, options: RuntimeOptions, widened: str | None) -> Session:
        """The UNet with inputs for control images, beside the one that is open or in its place."""
        place, both = (
            self.sessions[self.denoiser].place,
            has_room(self.folder, [self.denoiser], self.provider, self.options),
        )
        where = "beside the one without" if both else "in the place of the one without: memory has no room for both"
        detail(f"unet is loaded with its inputs for control images, {where}")
        self._set_aside = (self.loop, widened) if both else None
        if not both:
            del self.sessions[self.denoiser], self.loop
        return self._opened_again(place, options)

    def _opened_again(self, place: SessionPlace, options: RuntimeOptions) -> Session:
        """A session that was open with other options; what was in fp32 still is."""
        reopened = self.guard.reopened(place, options) if self.guard else None
        return reopened or open_again(place, options)

    def _start(self, request: Request, canvas: Canvas, part: Part) -> Start:
        """The init image encoded, and what its mask leaves, for a UNet that takes that."""
        started = self.openings.clock()
        mask = masked = None
        if request.mask:
            mask = canvas.latent_mask(self.folder.vae_factor)
            if self.folder.sample_channels != self.folder.latent_channels:
                masked = self._posterior(canvas.masked_pixels, request)
        image = self._posterior(canvas.pixels, request) if part.takes_image else None
        self.timings.image += self.openings.clock() - started
        return Start(self.folder, image, mask=mask, masked=masked)

    def _posterior(self, pixels: Array, request: Request) -> Posterior:
        """The distribution of images' latents, float32 [images, 3, height, width] in [-1, 1]."""
        folder = self.folder

        def work() -> Posterior:
            session = self._opened(ENCODER)
            widened = self.guard is not None and ENCODER in self.guard.widened
            graph_memory = decoder_memory(folder.file(ENCODER), session.provider, widened)
            encoder = Encoder(session, folder.vae, folder.vae_factor, graph_memory, folder.latent_channels)
            height, width = (side // folder.vae_factor for side in pixels.shape[2:])
            return encoder.encode(pixels, choose(encoder, session, (1, height, width), request.vae_tiling, True))

        return self._guarded(ENCODER, work, lambda posterior: [posterior.parameters])

    def _opened(self, component: str) -> Session:
        """The session of a component, opened where it is not yet, or not any more."""
        self._begin_group(group_of(component))
        if component not in self.sessions:
            self.sessions[component] = self._open(self.folder, component, component == self.denoiser and self._steered)
            if is_adaptable(component):
                self.adapters.renew()
        return self.sessions[component]

    def _begin_group(self, group: str) -> None:
        """Close the sessions of other groups, where those of one are open at a time."""
        if self.one_group:
            self.one_group.begin(self, group, partial(self._close_group, group))

    def _inputs(self, component: str) -> Mapping[str, TensorSpec]:
        """The inputs of a component, open or not."""
        if component in self.sessions:
            return self.sessions[component].inputs
        file = self.folder.file(component)
        inputs = file.signature.inputs
        if component != self.denoiser or self._steered or not steering_inputs(inputs):
            return inputs
        kept = file.derived(_unsteered_inputs)
        return {name: spec for name, spec in inputs.items() if name in kept}

    def _outputs(self, component: str) -> list[str]:
        """The names of a component's outputs, open or not."""
        if component in self.sessions:
            return [spec.name for spec in self.sessions[component].outputs]
        return list(self.folder.file(component).signature.outputs)

    def _open(self, folder: PipelineFolder, component: str, controlled: bool = False) -> Session:
        """A component, opened as all are; what was in fp32 still is."""
        path, refused = folder.models[component], None
        own = replace(
            self.options,
            graph=self.options.graph and component == folder.denoiser,
            adapters=self.options.adapters and is_adaptable(component),
            control_inputs=controlled,
        )
        with self.openings.of(component), checked(folder.path, own.check) as content:
            content.reads([path])
            guard = self.guard if folder is self.folder else None
            session = guard.reopened(SessionPlace(path, component, self.provider, None), own) if guard else None
            if session is None:
                session, refused = open_or_fall_back(path, component, self.provider, own)
        session.opening = partial(self.openings.step_of, component)
        self._note_fallback(refused)
        return session

    def _note_fallback(self, refused: str | None) -> None:
        """Remember why a component is elsewhere."""
        if refused and refused not in (self.fallback or ""):
            self.fallback = "; ".join(filter(None, [self.fallback, refused]))

    def _fall_back(self, denoiser: Session, refusal: SdortError) -> Session:
        """The denoiser on the CPU, where the provider refuses its step, which opened last.

        Raises:
            SdortError: the refusal, where options do not allow that.
        """

        def refuse() -> Session:
            raise refusal

        place, options = denoiser.place, denoiser.options
        self._close_unet()
        session, refused = open_or_fall_back(place.path, self.denoiser, place.provider, options, refuse)
        self._note_fallback(refused)
        self.sessions[self.denoiser] = session
        self.adapters.renew()
        return session

    def _larger(self, latents: Array, request: Request, stage: Stage, seeds: list[ImageSeed]) -> Start:
        """The beginning of a second pass: the latents of the first, or its images, at the size of ``stage``."""
        from PIL import Image

        height, width = stage.size
        if request.hires_start == UPSCALES[0]:
            sides = height // self.folder.vae_factor, width // self.folder.vae_factor
            return Start(self.folder, latents=enlarged_latents(latents, sides))
        images = list(self._decode(latents, request, seeds, lambda tile, tiles: None))
        bad = next((image for image in images if image.problem), None)
        if bad:
            raise ParityError(f"the first image of seed {bad.seed} shows nothing: {bad.problem}", component=DECODER)
        large = [self._upscaled(image.pixels, request.hires_upscaler) for image in images]
        started = self.openings.clock()
        pictures = [Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS) for pixels in large]
        start = Start(self.folder, self._posterior(pixels_of_images([np.asarray(each) for each in pictures]), request))
        self.timings.image += self.openings.clock() - started
        return start

    def _upscaled(
        self,
        pixels: Array,
        upscaler: Path | None,
        scale: float | None = None,
        on_tile: OnTile = lambda tile, tiles: None,
    ) -> Array:
        """An image, uint8 [height, width, 3], enlarged by the upscaler in a file; as it is without one."""
        if upscaler is None:
            return pixels
        # With all that makes an upscaler's graph: a start without one does not read it.
        from PIL import Image

        from sdort.generation.pictures.upscaled_picture import upscale_picture
        from sdort.upscaling.upscaler import open_upscaler

        started = self.openings.clock()
        self._begin_group(PICTURES)
        if upscaler not in self.upscalers:
            with self.openings.of("upscaler"):
                opened = open_upscaler(upscaler, replace(self.options, provider=self.provider.name))
            self.upscalers[upscaler], self._scales[upscaler] = opened, float(opened.scale)
        picture = upscale_picture(self.upscalers[upscaler], Image.fromarray(pixels), scale, on_tile=on_tile)
        self.timings.upscale += self.openings.clock() - started
        return np.asarray(picture)

    def upscaled_by(self, request: Request) -> float | None:
        """How many times as large a request's finished images became; None without an upscaler."""
        return request.upscale_by or (self._scales.get(request.upscale) if request.upscale else None)

    def use_adapters(self, plan: AdapterPlan) -> None:
        """Let the pipeline have these adapters, and no others, from now on.

        Sessions that were not opened for adapters are opened anew, once; everything later changes weights in place.
        Those that are opened later get them then.

        Raises:
            BadModelError, ProviderError: a session does not open again, or an adapter's file cannot be read.
            ParityError: a weight gets values that its dtype cannot hold.
        """
        if self.one_group and plan.choices:
            self.options = replace(self.options, adapters=True)
        for name, session in self.sessions.items():
            if plan.choices and is_adaptable(name) and not session.options.adapters:
                self._open_for_adapters(name)
        self.adapters.use(plan)

    def _open_for_adapters(self, name: str) -> None:
        say(f"{name} is loaded again so that its weights can change; sdort.load(..., adapters=True) does it at once")
        session = self.sessions[name]
        self.sessions[name] = self._opened_again(session.place, replace(session.options, adapters=True))
        self.adapters.forget(name)
        if name == self.denoiser:
            remark_inputs(self.sessions[name])

    def guidance(self, request: Request) -> list[float]:
        """The weights of an image's samples, as :meth:`Request.guidance`."""
        return request.guidance(self.folder.family.denoiser.roles.guidance in self._inputs(self.denoiser))

    def _guarded(self, component: str, work: Callable[[], T], arrays: Callable[[T], Iterable[Array]]) -> T:
        """The result of ``work``, in a safer precision if one of its ``arrays`` is dead."""
        if self.guard is None:
            return work()
        return self.guard.run(component, work, lambda result: next(filter(None, map(dead, arrays(result))), None))

    def _denoised(
        self,
        denoise_batch: Callable[[Callable[[float], None]], Array],
        source: NoiseSource,
        on_step: Callable[[float], None],
    ) -> Array:
        """The latents of ``denoise_batch``, computed again in a safer precision if an image's latents are dead."""
        advanced, state = [0.0], source.state()

        def advance(amount: float) -> None:
            advanced[0] += amount
            on_step(amount)

        def again() -> list[Array]:
            if advanced[0]:
                on_step(-advanced[0])
                advanced[0] = 0.0
            source.restore(state)
            unet = self._opened(self.denoiser)
            if vars(self).get("loop") is None or self.loop.unet is not unet:
                self.loop = Loop(unet)
            try:
                return list(denoise_batch(advance))
            except SdortError as error:
                if unet.is_open:
                    raise
                refusal = error
            self.loop = Loop(self._fall_back(unet, refusal))
            source.restore(state)
            return list(denoise_batch(advance))

        latents = self._guarded(self.denoiser, again, list)
        return np.stack(latents)

    def _conditions(self, requests: Sequence[Request], stages: Sequence[Stage]) -> list[list[list[Copies]]]:
        """For each stage and each request the conditioning of every call: of the negative prompt, if that is needed,
        then of the prompt's parts. All texts that prompts change between are encoded here."""
        guided = len(self.guidance(requests[0])) > 1
        if self.schedule is self.folder:  # a refiner's base has said it
            remark_on_prompts(requests, guided)
            remark_on_scale(requests[0], self._inputs(self.denoiser), self.folder.family.denoiser.roles)
            remark_on_files(next(iter(self.tokenizers.values())), requests)
        zeros, encoders = self.folder.empty_is_zero, list(self.tokenizers)
        copies = [copy_schedules(each, encoders, guided=guided, empty_is_zero=zeros) for each in requests]
        called = [[texts_by_call(each, stage.clock, stage.calls) for each in copies] for stage in stages]
        if self.schedule is self.folder and not requests[0].refiner:  # whose calls count too
            for number, each in enumerate(copies):
                remark_on_schedules(each, [call for stage in called for call in stage[number]])
        kinds: dict[Texts | None, str] = {}
        for call in [call for stage in called for calls in stage for call in calls]:
            for number, texts in enumerate(call):
                kinds.setdefault(texts, "negative prompt" if guided and number == 0 else "prompt")
        encoded = self._encoded(requests[0], kinds, stages[0].size)
        images = self._image_conditions(requests[0], guided)
        beside = list(zip(requests[0].scores, (images[0], images[-1]), strict=True))
        return [
            self._of_stage(encoded, calls, stage.size, beside, guided)
            for stage, calls in zip(stages, called, strict=True)
        ]

    def _encoded(
        self, request: Request, kinds: Mapping[Texts | None, str], size: tuple[int, int]
    ) -> dict[Texts | None, Conditioning]:
        """The conditioning by texts, all of one length; ``kinds`` says what each is, for messages."""
        roles = self.folder.family.denoiser.roles
        context = self._inputs(self.denoiser).get(roles.context)
        reader = PromptReader(self.tokenizers, context, plain=self.folder.family.plain)
        run = partial(self._encode, self._conditioning_outputs(request.clip_skip))
        encode = partial(encode_prompts, reader, weighting=request.prompt_weighting, encode=run)
        parts: dict[Texts | None, list[Conditioning]] = dict(
            encode({texts: kind for texts, kind in kinds.items() if texts is not None}).items()
        )
        if None in kinds:
            of_any = next(iter(parts.values()))
            parts[None] = [{name: np.zeros_like(value) for name, value in part.items()} for part in of_any]
        width = condition_width(self.sessions.get(self.denoiser) or self.folder.file(self.denoiser).signature)
        scale = (
            {}
            if width is None or not roles.guidance
            else {roles.guidance: embed_guidance(request.guidance_scale, width)}
        )
        made_of = partial(condition, self.folder.family, width=static_size(context.shape, 2) if context else None)
        conditions = {texts: made_of(part, size) | scale for texts, part in parts.items()}
        blank = ("",) * len(self.tokenizers)
        if not reader.plain:
            same_length(
                list(conditions.values()),
                reader.tokens,
                reader.fixed,
                lambda: made_of(encode({blank: "prompt"})[blank], size),
            )
        return conditions

    def _of_stage(
        self,
        encoded: Mapping[Texts | None, Conditioning],
        called: Sequence[Sequence[CopyTexts]],
        size: tuple[int, int],
        beside: Sequence[tuple[float, Conditioning]],
        guided: bool,
    ) -> list[list[Copies]]:
        """For each request the conditioning of every call of a stage; equal texts have the same objects.

        Args:
            beside: the aesthetic score, and the conditioning by images, of the negative prompt and of the prompt.
        """
        family = self.folder.family
        of_negative, of_prompt = (
            {texts: scored(family, at_size(family, each, size), score) | image for texts, each in encoded.items()}
            for score, image in beside
        )
        return [
            [
                [(of_negative if guided and number == 0 else of_prompt)[texts] for number, texts in enumerate(each)]
                for each in calls
            ]
            for calls in called
        ]

    def _image_conditions(self, request: Request, guided: bool) -> list[Conditioning]:
        """The conditioning by the images of IP-Adapters, which a refiner does not take."""
        images = request.ip_adapter_image if self.schedule is self.folder else ()
        inputs, side = self._inputs(self.denoiser), 0
        if images:
            spec = next(iter(self._inputs(IMAGE_ENCODER).values()))
            side = static_size(spec.shape, 2) or 224
        return self.ip_adapter_tokens.conditions(inputs, images, self._image_tokens, side, guided)

    def _image_tokens(self, pixels: Array) -> Mapping[str, Array]:
        """The image encoder's outputs."""

        def work() -> Mapping[str, Array]:
            session = self._opened(IMAGE_ENCODER)
            return session.run({next(iter(session.inputs)): pixels})

        return self._guarded(IMAGE_ENCODER, work, lambda outputs: outputs.values())

    def judge(self, pixels: Array) -> Verdict:
        """The safety checker's answer for an image, uint8 [height, width, 3].

        Raises:
            BadModelError: the checker does not load.
            ParityError: its scores are no numbers, in fp32 too.
        """
        started = self.openings.clock()
        checker = self._checker = self._checker or SafetyChecker(self.folder)
        feeds = checker.feeds(pixels)
        outputs = self._guarded(SAFETY_CHECKER, lambda: self._opened(SAFETY_CHECKER).run(feeds), checker.numbers)
        self.timings.judge += self.openings.clock() - started
        return checker.verdict(outputs)

    def _conditioning_outputs(self, clip_skip: int) -> dict[str, dict[str, str]]:
        """Text encoder -> conditioning input of the UNet -> the encoder's output that goes there.

        Raises:
            BadModelError, UsageError: as :meth:`Encoder.outputs`.
        """
        found = {}
        for encoder in self.folder.family.encoders:
            names = self._outputs(encoder.component)
            found[encoder.component] = encoder_outputs(encoder, names, self.folder.config(encoder.component), clip_skip)
        return found

    def _encode(
        self, outputs: Mapping[str, Mapping[str, str]], component: str, rows: Sequence[tuple[int, ...]]
    ) -> list[Conditioning]:
        """The conditioning by each row of token ids, by one text encoder, from its ``outputs``; later images have it
        again."""
        # One at a time, unless the encoder was exported for another number; the last call is filled up.
        at_once = static_size(self._inputs(component)["input_ids"].shape, 0) or 1
        # What stands beside a row may decide its last bits; where models are loaded in turn, all are for each call.
        if at_once > 1 or self.one_group:
            return self._run_encoder(outputs, component, rows, at_once)
        while True:
            state = self._encoder_state(component, outputs)
            known = self.encoded_texts.get(state, rows)
            if left := [row for row in rows if row not in known]:
                made = self._run_encoder(outputs, component, left, at_once)
                if self._encoder_state(component, outputs) != state:
                    continue  # some of it was made in another precision than the rest
                known |= self.encoded_texts.keep(state, left, made)
            return [known[row] for row in rows]

    def _encoder_state(self, component: str, outputs: Mapping[str, Mapping[str, str]]) -> tuple[object, ...]:
        """All but the tokens that decides what a text encoder gives."""
        adapters = tuple(self.adapters.record) if is_adaptable(component) else ()
        widened = self.guard.widened.get(component) if self.guard else None
        return component, tuple(outputs[component].items()), adapters, widened

    def _run_encoder(
        self, outputs: Mapping[str, Mapping[str, str]], component: str, rows: Sequence[tuple[int, ...]], at_once: int
    ) -> list[Conditioning]:
        calls = [rows[first : first + at_once] for first in range(0, len(rows), at_once)]
        fed = [np.asarray([*call, *[call[-1]] * (at_once - len(call))], np.int64) for call in calls]

        def work() -> list[Conditioning]:
            results = [self._opened(component).run({"input_ids": ids}) for ids in fed]
            return [
                {name: result[output][row : row + 1] for name, output in outputs[component].items()}
                for call, result in zip(calls, results, strict=True)
                for row in range(len(call))
            ]

        return self._guarded(component, work, lambda parts: [value for part in parts for value in part.values()])

    def _decide_parts(self, request: Request, batch: Batch, stage: Stage) -> None:
        """Close what runs before the steps or let it stay open, as was decided of a batch when it first came."""
        preparation, decided = self.loop.unet.preparation, self.loop.frees
        if preparation:
            if batch not in decided:
                decided[batch] = frees_parts(self.folder, self.loop.unet, request, batch.images, stage)
            preparation.frees = decided[batch]

    def _denoise_batch(
        self,
        request: Request,
        stage: Stage,
        recurrence: Recurrence | None,
        conditions: StepConditions,
        start: Start,
        source: NoiseSource,
        on_step: Callable[[float], None],
        following: Sequence[tuple[int, StepConditions]] = (),
    ) -> Array:
        """Denoised latents [images, channels, height / factor, width / factor], fp32.

        Args:
            following: images and conditioning of the batches that come then.
        """
        if self.one_group and stage not in self._running[1]:
            self._running[1].append(stage)
        factor, guidance = self.folder.vae_factor, self.guidance(request)
        latent = (self.folder.latent_channels, stage.size[0] // factor, stage.size[1] // factor)
        given = start.begin(source, latent, stage.part)
        extra = 0 if given.extra is None else given.extra.shape[1]
        batch = Batch(conditions.copies, len(given.noise), latent, extra)
        if batch.samples != self._samples:
            self._samples = batch.samples
            remark_on_shares(self.loop.unet, batch.samples)
        if self.one_group is None:
            self._decide_parts(request, batch, stage)
        previews = self._previews(request, stage, guidance, source.seeds)
        controls = self._controls(request, stage)
        on_device = recurrence is not None and self.loop.fits(recurrence, batch)
        if following:
            timesteps = recurrence.timesteps if recurrence and on_device else self._steps(request, stage).timesteps
            self.loop.make_rows(timesteps, [(replace(batch, images=images), each) for images, each in following])
        if recurrence is None or not on_device:
            detail("the steps go through the host")
            steps, unet = self._steps(request, stage), self.loop.buffers(batch, conditions, steered=bool(controls))
            latents, seconds = denoise(
                unet, steps, conditions, given, source.draw, guidance, on_step, previews, controls,
                request.whole_every, request.exact_calls,
            )  # fmt: skip
        else:
            later = [source.draw(latent) for _ in range(recurrence.noises)]
            rows, beside = np.stack([given.noise, *later]), (given.image, given.mask, given.extra)
            latents, seconds = self.loop.denoise(
                recurrence, batch, conditions, rows, guidance, on_step, *beside, previews, controls,
                request.whole_every, request.exact_calls,
            )  # fmt: skip
        self.timings.steps += seconds
        self.offloaded = self.loop.unet.offloaded
        return latents

    def _controls(self, request: Request, stage: Stage) -> Controls | None:
        """The control images of a request at the size of a stage, and their models; a refiner is not steered."""
        if self.schedule is not self.folder:
            return None
        return self.controls.use(stage.controls, stage.size, self.sessions[self.denoiser], guess=request.guess_mode)

    def _steps(self, request: Request, stage: Stage) -> PartSteps:
        return PartSteps(sampler_of(self.schedule, request, stage.schedule, stage.size), stage.part)

    def _recurrence(self, request: Request, stage: Stage) -> Recurrence | None:
        return cached_recurrence(self.schedule, request, stage.schedule, stage.part, stage.size)

    def _previews(
        self, request: Request, stage: Stage, guidance: Sequence[float], seeds: Sequence[ImageSeed]
    ) -> BatchPreviews | None:
        if self.previewer is None:
            return None
        steps, numbers = self._steps(request, stage), [seed.number for seed in seeds]
        return BatchPreviews(self.previewer, steps.sampler, steps.timesteps, guidance, numbers)

    def _decode(self, latents: Array, request: Request, seeds: list[ImageSeed], on_tile: OnTile) -> Iterator[Generated]:
        decoder = self._decoder(on_tile)
        scaled = self.folder.unscaled(latents)
        plan = choose(decoder, decoder.session, size_of(latents), request.vae_tiling, request.vae_slicing)
        started = self.openings.clock()
        first = self.sessions[DECODER]
        for index, (decoded, seed) in enumerate(zip(decoder.decode(scaled, plan), seeds, strict=True)):
            image = self._shown(decoder, to_image(decoded, seed.number), scaled[index : index + 1], first)
            self.timings.decode += self.openings.clock() - started
            self.decoded = decoder.plan_now
            yield replace(image, variation_seed=seed.variation)
            started = self.openings.clock()

    def _decoder(self, on_tile: OnTile) -> Decoder:
        session, folder = self._opened(DECODER), self.folder
        widened = self.guard is not None and DECODER in self.guard.widened
        graph_memory = decoder_memory(folder.file(DECODER), session.provider, widened)
        return Decoder(session, folder.vae, folder.vae_factor, on_tile, graph_memory)

    def _shown(self, decoder: Decoder, image: Generated, latents: Array, used: Session) -> Generated:
        """An image that shows something, decoded again in a safer precision if it does not."""
        while image.problem is not None and self.guard is not None:
            problem = f"the image of seed {image.seed} shows nothing: {image.problem}"
            # A batch is decoded at once, so what decoded this image may have been exchanged since.
            if self.sessions[DECODER] is used and not self.guard.step(DECODER, problem):
                break
            used = decoder.session = self.sessions[DECODER]
            image = to_image(next(decoder.decode(latents, decoder.plan_now)), image.seed)
        return image


def _unsteered_inputs(file: ComponentFile) -> frozenset[str]:
    """The inputs that a UNet's session has where no image steers it: some graphs keep inputs for images."""
    graph = file.copy()
    remove_control_inputs(graph, file.component)
    return frozenset(info.name for info in graph.graph.input)


def _undrawn(requests: Sequence[Request]) -> Iterator[DenoisedBatch]:
    """The batches of all images, before the first stage."""
    images = [(number, seed) for number, each in enumerate(requests) for seed in each.seeds]
    at_once = requests[0].images_at_once
    for first in range(0, len(images), at_once):
        numbers, seeds = (list(each) for each in zip(*images[first : first + at_once], strict=True))
        source = NoiseSource(seeds, requests[0].variation_strength or 0.0)
        yield DenoisedBatch(numbers, seeds, source, np.zeros(0, np.float32))


@dataclass(frozen=True)
class LoadPlan:
    """A pipeline's folder that can be loaded, and where it will run."""

    folder: PipelineFolder
    content: ContentCheck
    """Of its files."""
    provider: Provider
    replaced: str | None
    """The reason why the provider is not the one that was asked for."""


def plan_loading(path: Path, options: RuntimeOptions) -> LoadPlan:
    """Find what :func:`load_pipeline` opens.

    Raises:
        BadModelError, ProviderError: as there.
    """
    content = content_check(path, options.check)
    with content.block():
        return LoadPlan(open_folder(path), content, *choose_provider(options))


def load_pipeline(path: Path, options: RuntimeOptions, plan: LoadPlan | None = None) -> TextToImage:
    """Open a pipeline's sessions on a provider.

    Args:
        plan: of :func:`plan_loading`, where there is one already.

    Raises:
        BadModelError: the folder is no text-to-image pipeline, a component does not load, or a file is not what sdort
            wrote.
        ProviderError: the provider does not load and ``options.fallback`` is not True, or it cannot run a component.
    """
    plan = plan or plan_loading(path, options)
    with plan.content.block():
        plan.content.reads(plan.folder.models[name] for name in plan.folder.needed)
        return _open_sessions(plan.folder, plan.provider, plan.replaced, options)


def _open_sessions(
    folder: PipelineFolder, provider: Provider, replaced: str | None, options: RuntimeOptions
) -> TextToImage:
    options = replace(options, pool=new_pool_number())  # its sessions run one after another
    if options.memory == LOW:
        with phase("tokenizers"):
            read = _load_ahead(folder, provider, options.device_id)
        return assemble(folder, {}, provider, replaced, read, options, OneGroup())
    loading = list(folder.needed)
    # Only the UNet runs again and again at one shape: recording the others would cost more than it saves.
    asked = {
        name: (
            folder.models[name],
            replace(
                options,
                graph=options.graph and name == folder.denoiser,
                adapters=options.adapters and is_adaptable(name),
            ),
        )
        for name in folder.needed
    }
    with (
        ThreadPoolExecutor(1, "sdort-ahead") as pool,
        progress(lambda: f"loading {', '.join([*loading])}".rstrip(), total=len(loading)) as advance,
    ):
        tokenizers = pool.submit(_load_ahead, folder, provider, options.device_id)

        def opened(component: str) -> None:
            loading.remove(component)
            advance(1)

        found = open_side_by_side(asked, provider, opened)
    sessions = {name: session for name, (session, _) in found.items()}
    reasons = [replaced, *(refused for _, refused in found.values())]
    remark_inputs(sessions[folder.denoiser])
    # What runs the UNet is what runs the pipeline: nearly all of the time is spent there.
    fallback = "; ".join(filter(None, reasons)) or None
    with phase("tokenizers"):
        read = tokenizers.result()
    return assemble(folder, sessions, sessions[folder.denoiser].provider, fallback, read)


def _load_ahead(
    folder: PipelineFolder, provider: Provider, device_id: int
) -> Mapping[str, PromptTokenizer | PlainTokenizer]:
    """The tokenizers; and what the first image's file says is asked for, while sessions leave the interpreter time."""
    import PIL.PngImagePlugin  # noqa: F401

    versions()
    device_name(provider, device_id)
    return load_tokenizers(folder)


def assemble(
    folder: PipelineFolder,
    sessions: dict[str, Session],
    provider: Provider,
    fallback: str | None,
    tokenizers: Mapping[str, PromptTokenizer | PlainTokenizer] | None = None,
    options: RuntimeOptions | None = None,
    one_group: OneGroup | None = None,
) -> TextToImage:
    """Put open sessions of ``folder``'s components together.

    Args:
        tokenizers: of the text encoders; loaded by default.
        options, one_group: as :class:`TextToImage` takes them.

    Raises:
        BadModelError: they do not make text to image, or the tokenizer does not load.
    """
    read = tokenizers or load_tokenizers(folder)
    pipeline = TextToImage(folder, sessions, provider, fallback, read, options, one_group)
    check_inputs(sessions.get(folder.denoiser) or folder.file(folder.denoiser).signature, folder.family)
    return pipeline
