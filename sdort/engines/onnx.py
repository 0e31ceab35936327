"""A folder of ONNX components on ONNX Runtime, as an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from sdort.engines.engine import ImageStages, Runner, case_request
from sdort.errors import UsageError
from sdort.generation.keep_tuning import keep_generated
from sdort.generation.memory_need import refuse_case, refuse_generation
from sdort.generation.pictures.images import Generated
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import plan_stages
from sdort.graph.signature import Array, static_size
from sdort.onnx_io.precision_mark import integers_of, made_for_bf16
from sdort.pipelines.content_check import checked
from sdort.pipelines.folder import PipelineFolder, image_channels, open_folder
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session
from sdort.runtime.tuning_results import keep_case
from sdort.workload.cases import WHOLE_PIPELINE, Case, make_feeds


class OnnxEngine:
    """A folder of ONNX components, or one component, on an execution provider.

    All of its files are compared with what sdort wrote before any is opened: a thread would take from what is timed.
    """

    name = "onnxruntime"
    settings = ""

    def __init__(self, path: Path, provider: Provider, options: RuntimeOptions) -> None:
        self.path = path
        self.provider = provider
        self.options = options
        with checked(path, options.check) as content:
            self.folder: PipelineFolder = open_folder(path, ())
            content.reads(self.folder.models[name] for name in self.folder.compared)
        self._sessions: dict[str, Session] = {}

    def components(self) -> list[str]:
        return [*self.folder.compared, *([WHOLE_PIPELINE] if self.folder.generates and self._from_noise() else [])]

    def _from_noise(self) -> bool:
        """Whether the UNet takes latent noise alone; an inpainting UNet takes more channels."""
        channels = static_size(self._shape(self.folder.denoiser, self.folder.family.denoiser.roles.sample), 1)
        return channels in (None, self.folder.vae.get("latent_channels", self.folder.family.latents.channels))

    @property
    def factor(self) -> int:
        return self.folder.vae_factor

    def default_size(self) -> tuple[int, int]:
        if self.folder.denoiser not in self.folder.models:
            return self.folder.default_size
        sample = self._shape(self.folder.denoiser, self.folder.family.denoiser.roles.sample)
        height, width = (
            (static_size(sample, axis) or 0) * self.folder.vae_factor or side
            for axis, side in enumerate(self.folder.default_size, 2)
        )
        return height, width

    def dtype(self, component: str) -> str:
        name = self.folder.denoiser if component == WHOLE_PIPELINE else component
        file = self.folder.file(name)
        if self.provider.bf16 and made_for_bf16(file.path):
            return "bfloat16"
        return integers_of(file.metadata) or file.dtype

    def static_batch(self, component: str) -> int | None:
        shapes = [spec.shape for spec in self.folder.file(component).signature.inputs.values()]
        return next((static_size(shape, 0) for shape in shapes if len(shape) > 1), None)

    def _shape(self, component: str, name: str) -> tuple[int | str | None, ...]:
        """The dimensions of an input as the model declares them, none where it has no such input."""
        spec = self.folder.file(component).signature.inputs.get(name)
        return spec.shape if spec else ()

    def model_hash(self) -> str:
        return self.folder.model_hash

    def import_libraries(self, components: Sequence[str]) -> None:
        if WHOLE_PIPELINE in components:
            from sdort.generation.requests.tokenizers import load_tokenizers
            from sdort.generation.schedules.schedulers import load_sampler

            load_tokenizers(self.folder)
            with suppress(UsageError):  # not every scheduler takes so few
                load_sampler(self.path / "scheduler", 1, None)

    def session(self, component: str) -> Session:
        """The component's session, opened when it is first asked for."""
        if component not in self._sessions:
            path = self.folder.models[component]
            self._sessions[component] = open_session(path, component, self.provider, self.options)
        return self._sessions[component]

    def refuse_shortage(self, case: Case, steps: int) -> None:
        """Refuse a case that cannot fit into the free memory, before anything is loaded.

        Raises:
            MemoryShortageError: what it needs and what is free.
        """
        if case.component == WHOLE_PIPELINE:
            request = case_request(case, steps, None)
            refuse_generation(self.folder, request, request.num_images, self.provider, self.options.device_id)
        else:
            refuse_case(self.folder, case, self.provider, self.options.device_id)

    def prepare(self, case: Case, steps: int, scheduler: str | None) -> Runner:
        if case.component == WHOLE_PIPELINE:
            return _OnnxPipeline(self, case_request(case, steps, scheduler))
        if case.component not in self.folder.models:
            raise UsageError(f"{self.path} has no {case.component}")
        tokens = self.folder.tokens(case.component)
        return _OnnxComponent(self.session(case.component), case, self.folder.vae_factor, tokens)

    def close(self) -> None:
        self._sessions.clear()


class _OnnxComponent:
    def __init__(self, session: Session, case: Case, factor: int, tokens: int) -> None:
        channels = image_channels(session.path, case.component)
        self.binding = session.bind(make_feeds(case, session.inputs, factor, channels, tokens))
        self.keep: Callable[[], None] | None = partial(keep_case, session, case, factor, tokens)

    def __call__(self) -> None:
        self.binding.run()

    def prepare(self) -> bool:
        return self.binding.prepare()

    def result(self) -> dict[str, Array]:
        # Now, when the first run is over: that was the one that tuned, and keeping is not to be timed.
        if self.keep:
            self.keep()
            self.keep = None
        return self.binding.outputs()


class _OnnxPipeline:
    def __init__(self, engine: OnnxEngine, request: Request) -> None:
        from sdort.generation.pipeline import assemble

        sessions = {name: engine.session(name) for name in engine.folder.needed}
        self.pipeline = assemble(engine.folder, sessions, engine.provider, None)
        self.request = request
        self.images: list[Generated] = []
        self.stages: list[ImageStages] = []
        self.keep: Callable[[], None] | None = self._keep

    def _keep(self) -> None:
        keep_generated(self.pipeline, [self.request], plan_stages(self.pipeline.folder, self.request))

    def __call__(self) -> None:
        self.pipeline.encoded_texts.clear()  # what is measured has a prompt of its own
        self.images = list(self.pipeline.generate(self.request))
        timings, images = self.pipeline.timings, self.request.images_at_once
        samples = images * len(self.pipeline.guidance(self.request))
        self.stages.append(ImageStages(timings.encode * 1e3, sum(timings.steps) * 1e3, timings.decode * 1e3, samples))

    def result(self) -> list[Generated]:
        if self.keep:
            self.keep()
            self.keep = None
        return self.images
