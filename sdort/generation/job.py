"""A job: what a caller of :meth:`Pipeline.generate` asks for, checked before anything is loaded."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.generation.images import output_paths
from sdort.generation.options import GenerationOptions, OnProgress
from sdort.generation.request import Request, each_prompt
from sdort.generation.schedulers import find_scheduler


@dataclass(frozen=True)
class Job:
    """Requests that differ in their prompts alone, and what becomes of their images."""

    requests: list[Request]
    output: Path | None
    overwrite: bool
    on_progress: OnProgress | None

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
    negative = settings.pop("negative_prompt", "")
    if settings.get("seed") is None:
        settings["seed"] = secrets.randbelow(1 << 32)
    request = Request(prompt="", **settings)
    if request.scheduler:
        find_scheduler(request.scheduler)
    return Job(each_prompt(prompt, negative, request), None if output is None else Path(output), overwrite, on_progress)
