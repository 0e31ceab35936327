"""Requests whose images several devices compute in patches."""

from __future__ import annotations

from collections.abc import Sequence

from sdort.errors import UsageError
from sdort.generation.requests.refiner import open_refiner
from sdort.generation.requests.request import Request
from sdort.generation.requests.stages import Stage
from sdort.onnx_io.component_file import ComponentFile
from sdort.pipelines.folder import PipelineFolder
from sdort.runtime.step.patch_cut import patch_rows


def check_patches(folder: PipelineFolder, request: Request, stages: Sequence[Stage]) -> None:
    """Refuse patches of a UNet or of an image that cannot be cut, and what does not go with them.

    Raises:
        BadModelError: the UNet, as :func:`patch_rows`.
        UsageError: a height, or another option.
    """
    if request.patches is None:
        return
    if request.whole_every > 1:
        raise _both("--deep-cache takes from an earlier step what --patches takes from one")
    if request.ip_adapter_image:
        raise _both("--ip-adapter-image steers a whole UNet, and --patches has parts of one")
    for stage in stages:
        own = open_refiner(request.refiner, folder) if request.refiner and stage.refines else folder
        rows = request.patches * own.file(own.denoiser).derived(_rows_of_a_patch) * own.vae_factor
        if stage.size[0] % rows:
            near = max(rows, round(stage.size[0] / rows) * rows)
            raise UsageError(
                f"--patches {request.patches} cuts images whose height is a multiple of {rows} pixels, and "
                f"{stage.size[0]} is not",
                hint=f"Take a height of {near}, or other patches.",
            )


def _both(problem: str) -> UsageError:
    return UsageError(problem, hint="Leave one of the two out.")


def _rows_of_a_patch(file: ComponentFile) -> int:
    return patch_rows(file.graph, file.component)
