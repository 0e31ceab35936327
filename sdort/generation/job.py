"""A job: what a caller of :meth:`Pipeline.generate` asks for, checked before anything is loaded."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sdort.console import say
from sdort.generation.images import output_paths
from sdort.generation.options import GenerationOptions, OnProgress
from sdort.generation.preview import PREVIEW_OPTIONS, PreviewOptions
from sdort.generation.request import PROMPTS, Request, each_prompt
from sdort.generation.usual_sampling import usual_sampling
from sdort.pipelines.adapters.adapter_choice import AdapterChoice, parse_adapter_choice
from sdort.pipelines.folder import PipelineFolder
from sdort.pipelines.scheduler_names import find_scheduler


@dataclass(frozen=True)
class Job:
    """Requests that differ in their prompts alone, and what becomes of their images."""

    requests: list[Request]
    output: Path | None
    overwrite: bool
    on_progress: OnProgress | None
    previews: PreviewOptions
    unsaid: frozenset[str] = frozenset()
    """Fields of the requests that the caller left to the pipeline."""

    def for_pipeline(self, folder: PipelineFolder) -> Job:
        """The job with the steps and the guidance that a pipeline was made for, where the caller did not say.

        Raises:
            BadModelError: the folder has no usable scheduler config.
        """
        if not self.unsaid:
            return self
        usual = usual_sampling(folder, self.requests[0].scheduler)
        settings = {name: getattr(usual, name) for name in sorted(self.unsaid)}
        if usual.reason:
            words = ", ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in settings.items())
            say(f"a few-step model ({usual.reason}): {words}, unless you say otherwise")
        requests = [replace(request, **settings) for request in self.requests]
        return replace(self, requests=requests, unsaid=frozenset())

    @property
    def images(self) -> int:
        """The number of all images."""
        return sum(request.num_images for request in self.requests)

    def paths(self) -> list[Path]:
        """The files of all images.

        Raises:
            UsageError: ``output`` is no PNG.
            OutputError: one exists, and ``overwrite`` is off.
        """
        return output_paths(self.output, self.requests[0].seed, self.images, self.overwrite)


def choose_adapter(choice: str | AdapterChoice) -> AdapterChoice:
    """An adapter as a caller names it.

    Raises:
        UsageError: it is neither a choice nor ``FILE`` or ``FILE:SCALE``.
    """
    return choice if isinstance(choice, AdapterChoice) else parse_adapter_choice(str(choice))


def plan_job(prompt: str | Sequence[str], options: GenerationOptions) -> Job:
    """The job of a caller's options.

    Raises:
        UsageError: a value that no pipeline can do.
        TypeError: there is no option of that name.
    """
    settings: dict[str, Any] = dict(options)
    unknown = sorted(settings.keys() - GenerationOptions.__annotations__.keys())
    if unknown:
        raise TypeError(
            f"there is no option {', '.join(unknown)}; there are {', '.join(GenerationOptions.__annotations__)}"
        )
    output = settings.pop("output", None)
    overwrite, on_progress = settings.pop("overwrite", False), settings.pop("on_progress", None)
    wanted = {name: settings.pop(name, None) for name in PREVIEW_OPTIONS}
    previews = PreviewOptions(**{name: value for name, value in wanted.items() if value is not None})
    texts = {name: settings.pop(name) or "" for name in PROMPTS if name in settings}
    unsaid = frozenset(name for name in ("steps", "guidance_scale") if settings.get(name) is None)
    for name in unsaid:
        settings.pop(name, None)
    if settings.get("seed") is None:
        settings["seed"] = secrets.randbelow(1 << 32)
    settings["lora"] = tuple(choose_adapter(choice) for choice in settings.get("lora", ()))
    request = Request(prompt="", **settings)
    if request.scheduler:
        find_scheduler(request.scheduler)
    requests = each_prompt(prompt, request, texts)
    path = None if output is None else Path(output)
    return Job(requests, path, overwrite, on_progress, previews, unsaid)
