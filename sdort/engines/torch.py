"""A diffusers checkpoint in torch, behind the same interface as an ONNX pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from sdort.checkpoints.clip_vision import vision_settings
from sdort.checkpoints.config_schemas import PIPELINE_INDEX, component_schema
from sdort.checkpoints.configs import INDEX, check_processor, read_config
from sdort.checkpoints.tokenizer_files import TABLES
from sdort.engines.engine import Runner, case_request
from sdort.engines.torch_runners import ComponentRunner, PipelineRunner
from sdort.errors import BadModelError, ProviderError, SdortError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.exporter.component_configs import DOWNLOAD_AGAIN, class_defaults
from sdort.exporter.pipeline_parts import exported_class
from sdort.exporter.signatures import LIBRARIES
from sdort.exporter.source import PROCESSORS
from sdort.families.component_names import CLIP_PIXELS, DECODER, ENCODER, SAFETY_CHECKER
from sdort.families.family import Family, GraphOptions
from sdort.families.graph_tensor import GraphTensor
from sdort.families.known_families import DENOISERS, TEXT_ENCODERS, family_of
from sdort.families.vae_levels import vae_factor
from sdort.files.model_folder import check_model_folder
from sdort.generation.schedules.schedulers import load_scheduler
from sdort.graph.signature import Array, TensorSpec
from sdort.machine.optional_packages import COMPARING, RUNNING, need_packages
from sdort.pipelines.explain_path import no_diffusers_pipeline, not_there
from sdort.pipelines.folder import pixels_of
from sdort.providers.provider import Provider
from sdort.samplers.scheduler_names import is_flow
from sdort.workload.cases import WHOLE_PIPELINE, Case, make_feeds

# component: (attribute of the diffusers pipeline, its method)
_MODULES = {
    **{name: (name, "forward") for name in (*TEXT_ENCODERS, *DENOISERS)},
    ENCODER: ("vae", "encode"),
    DECODER: ("vae", "decode"),
    SAFETY_CHECKER: (SAFETY_CHECKER, "forward"),
}
_PARTS = {part for part, _ in _MODULES.values()}
_DRAWS = _PARTS - {SAFETY_CHECKER}
"""The parts that make an image."""


def check_checkpoint(path: Path) -> None:
    """Refuse what is no diffusers folder, before torch and diffusers are imported and follow its links.

    Raises:
        UsageError: there is nothing.
        BadModelError: it is something else, holds more than a model's own files, or names others.
    """
    if not path.exists():
        raise not_there(str(path))
    if not path.is_dir():
        raise no_diffusers_pipeline(path)
    check_model_folder(path)
    if not (path / INDEX).is_file():
        raise no_diffusers_pipeline(path)
    for name in filter(lambda name: (path / name).is_dir(), PROCESSORS):
        check_processor(path / name, DOWNLOAD_AGAIN, besides=TABLES)


class TorchEngine:
    """A diffusers folder in torch.

    Args:
        checkpoint: the folder with ``model_index.json`` and safetensors.
        provider: where it runs: the CPU, or a GPU that torch reaches.
        dtype: ``float32``, ``float16`` or ``bfloat16``.

    Raises:
        MissingPackageError: torch, diffusers or transformers is not installed.
        ProviderError: torch does not reach that device.
        BadModelError: there is no diffusers pipeline, or not only a pipeline's own files.
        UsageError: there is nothing.
    """

    name = "torch"
    settings = ""

    def __init__(self, checkpoint: Path, provider: Provider, dtype: str, *, device_id: int = 0) -> None:
        check_checkpoint(checkpoint)
        need_packages(*COMPARING, what=RUNNING)
        import torch

        self.path = checkpoint
        self.provider = provider
        self.device = f"cuda:{device_id}" if provider.on_gpu else "cpu"
        self._dtype = dtype
        if provider.on_gpu and not torch.cuda.is_available():
            raise ProviderError(
                f"this torch ({torch.__version__}) has no GPU",
                hint="Install torch for CUDA or ROCm, or --provider cpu.",
            )
        self.index = read_config(checkpoint / INDEX, schema=PIPELINE_INDEX)
        self._pipeline: Any = None
        self._loaded: set[str] = set()

    def pipeline(self, component: str) -> Any:
        """A diffusers pipeline on the device; only the part that ``component`` needs, or all of it."""
        needed = _DRAWS if component == WHOLE_PIPELINE else {_MODULES[component][0]}
        if self._pipeline is None or not needed <= self._loaded:
            self._pipeline, self._loaded = self._load(needed), set(needed)
        return self._pipeline

    def _load(self, needed: Set[str]) -> Any:
        import torch
        from diffusers import DiffusionPipeline

        from sdort.console import quiet_libraries

        if self._is_own:
            return self._load_parts(needed)
        lacking = {name for name, entry in self.index.items() if entry == [None, None]}
        skipped = (((self._parts() | {SAFETY_CHECKER}) - needed) | lacking) & self.index.keys()
        try:
            with quiet_libraries():
                pipeline = DiffusionPipeline.from_pretrained(
                    str(self.path),
                    local_files_only=True,
                    use_safetensors=True,
                    torch_dtype=getattr(torch, self._dtype),
                    **dict.fromkeys(skipped),
                )
        except Exception as error:  # diffusers and transformers raise OSError, ValueError, KeyError and more
            raise BadModelError(f"diffusers cannot load {self.path}: {library_reason(error)}") from error
        pipeline.set_progress_bar_config(disable=True)
        if self.family.corrected:
            self.family.corrected(pipeline)
        with quiet_libraries():
            return pipeline.to(self.device, getattr(torch, self._dtype))

    @property
    def _is_own(self) -> bool:
        """Whether its pipeline is a class of no library: its parts are loaded one by one."""
        return self.family.denoiser.library not in ("diffusers", "transformers")

    def _load_parts(self, needed: Set[str]) -> Any:
        import torch

        from sdort.console import quiet_libraries

        parts = {}
        for name in needed:
            class_name = self.index[name][1]
            model = getattr(import_module(LIBRARIES[class_name]), class_name)
            with quiet_libraries():
                loaded = model.from_pretrained(
                    self.path / name,
                    local_files_only=True,
                    use_safetensors=True,
                    torch_dtype=getattr(torch, self._dtype),
                )
            parts[name] = loaded.to(self.device).eval()
        return SimpleNamespace(**parts)

    def _parts(self) -> set[str]:
        """The pipeline's parts with weights that sdort knows."""
        classes = {name: (self.index.get(name) or [None, None])[1] for name in _PARTS}
        if not exported_class(SAFETY_CHECKER, classes[SAFETY_CHECKER]):
            del classes[SAFETY_CHECKER]
        return {name for name, class_name in classes.items() if class_name is not None}

    @cached_property
    def family(self) -> Family:
        """The family of its pipeline."""
        family = family_of(self._parts(), lambda name: self.index[name][1])
        return family.told_by(lambda: self.config(family.denoiser.component))

    @property
    def denoiser(self) -> str:
        """The name of the part that takes noise out of latents."""
        return self.family.denoiser.component

    def components(self) -> list[str]:
        names = [name for name, (part, _) in _MODULES.items() if part in self._parts()]
        family = self.family
        whole = {*family.needed, "vae"} - {DECODER} <= self._parts() and not (family.aesthetic or self._is_own)
        generates = whole and self._sample_channels == self.config("vae")["latent_channels"]
        return [*names, *([WHOLE_PIPELINE] if generates else [])]

    @property
    def _sample_channels(self) -> int:
        return self.family.denoiser.channels_of(self.config(self.denoiser))

    def config(self, part: str) -> dict[str, Any]:
        """A part's ``config.json``."""
        return read_config(self.path / part / "config.json", schema=component_schema(part))

    @property
    def factor(self) -> int:
        """Pixels a latent."""
        return vae_factor(self.config("vae"))

    def default_size(self) -> tuple[int, int]:
        side = self.config(self.denoiser).get("sample_size") or self.family.side // self.factor
        return pixels_of(side, self.factor, self.denoiser)

    def dtype(self, component: str) -> str:
        return self._dtype

    def static_batch(self, component: str) -> int | None:
        return None

    def import_libraries(self, components: Sequence[str]) -> None:
        import diffusers

        from sdort.console import quiet_libraries

        with quiet_libraries():
            _ = getattr(diffusers, str(self.index.get("_class_name")), None)

    def model_hash(self) -> str:
        from sdort.onnx_io.model_hash import hash_files

        return hash_files(sorted(self.path.glob("*/*.safetensors")))

    def prepare(self, case: Case, steps: int, scheduler: str | None) -> Runner:
        if case.component == WHOLE_PIPELINE:
            pipeline = self.pipeline(WHOLE_PIPELINE)
            flow = is_flow(self.family.scheduler)
            pipeline.scheduler = load_scheduler(self.path / "scheduler", scheduler, flow=flow)
            return PipelineRunner(
                pipeline,
                case_request(case, steps, scheduler),
                (case.height, case.width),
                self.guard,
                denoiser=self.family.denoiser,
            )
        if case.component not in self.components():
            raise UsageError(f"{self.path} has no {case.component}")
        return self.component_runner(case.component, make_feeds(case, self.inputs(case.component), self.factor))

    def component_runner(self, component: str, feeds: Mapping[str, Array]) -> ComponentRunner:
        """A component on inputs named as in :meth:`inputs`."""
        part, method = _MODULES[component]
        module = getattr(self.pipeline(component), part)
        if component == SAFETY_CHECKER:
            from sdort.exporter.torch_modules import SafetyScores

            module = SafetyScores(module)
        encoders = self.family.encoders
        # Calling the module itself is what torch.compile replaces.
        call = module if method == "forward" else getattr(module, method)
        return ComponentRunner(
            call,
            component,
            feeds,
            self.device,
            self._dtype,
            self.guard,
            self.family.denoiser,
            type(getattr(self.pipeline(component), part)).__name__,
            masked=any(each.component == component and each.plain and each.plain.masked for each in encoders),
        )

    def inputs(self, component: str) -> dict[str, TensorSpec]:
        """The inputs that the component's ONNX export declares."""
        if component.startswith("text_encoder"):
            return {"input_ids": TensorSpec("input_ids", np.dtype("int64"), ("batch", self.family.tokens(component)))}
        config = self.config(_MODULES[component][0])
        if component == SAFETY_CHECKER:
            vision = vision_settings(config)
            side = vision["image_size"]
            return {CLIP_PIXELS: TensorSpec(CLIP_PIXELS, np.dtype("float32"), ("batch", 3, side, side))}
        shapes: dict[str, tuple[int | str, ...]]
        if component.startswith("vae"):
            channels = config["in_channels" if component == ENCODER else "latent_channels"]
            shapes = {"sample": ("batch", channels, "height", "width")}
        else:
            tokens = self.family.tokens(component)
            known: dict[int | str, int | str] = {"batch_size": "batch", "sequence_length": tokens}
            specs = self._denoiser_inputs(config)
            shapes = {spec.name: tuple(known.get(dim, dim) for dim in spec.dims) for spec in specs}
        return {name: TensorSpec(name, np.dtype("float32"), shape) for name, shape in shapes.items()}

    def _denoiser_inputs(self, config: Mapping[str, Any]) -> tuple[GraphTensor, ...]:
        family = self.family
        pooled = [each.component for each in family.encoders if family.denoiser.roles.pooled in each.conditioning]
        width = self.config(pooled[0])["projection_dim"] if pooled else None
        whole = {**class_defaults(family.denoiser.class_name), **config}
        return family.denoiser.signature(whole, GraphOptions(text_embeds=width))[0]

    def guard(self, call: Callable[[], Any]) -> Any:
        """Run ``call`` without gradients and wait for the device; torch's errors become ours."""
        import torch

        try:
            with torch.inference_mode():
                result = call()
                if self.device != "cpu":
                    torch.cuda.synchronize(self.device)
        except SdortError:
            raise
        except Exception as error:  # torch.compile raises classes of its own
            raise ProviderError(f"{self.name} on {self.device} failed: {library_reason(error)}") from error
        return result

    def close(self) -> None:
        import torch

        self._pipeline, self._loaded = None, set()
        if self.device != "cpu":
            torch.cuda.empty_cache()
