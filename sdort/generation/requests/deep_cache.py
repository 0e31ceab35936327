"""The calls of a UNet that compute all of it, where the others take something from an earlier one: its deep part, or
the borders of patches of the image."""

from __future__ import annotations

from sdort.generation.requests.refiner import open_refiner
from sdort.generation.requests.request import Request
from sdort.onnx_io.component_file import ComponentFile
from sdort.pipelines.folder import PipelineFolder
from sdort.runtime.step.deep_cut import check_depth, hidden_states
from sdort.runtime.step.step_conditions import StepConditions


def whole_calls(every: int, calls: int, conditions: StepConditions, exact: int | None = None) -> list[bool]:
    """For each call whether it computes the whole UNet (:mod:`sdort.runtime.step.deep_cut`,
    :mod:`sdort.runtime.step.patch_cut`).

    So do the first, each whose prompts are others than those of the call before, and the call that is ``every`` calls
    after such a one. In a schedule whose samplers call the UNet twice a step, each call counts.

    Args:
        every: 1 for all calls.
        exact: with patches, how many calls at the beginning do, in the place of those of ``every``.
    """
    if exact is not None:
        return [call < exact or conditions.changes(call) for call in range(calls)]
    whole: list[bool] = []
    shallow = 0
    for call in range(calls):
        whole.append(shallow == every - 1 or conditions.changes(call))
        shallow = 0 if whole[-1] else shallow + 1
    return whole


def check_deep_cache(folder: PipelineFolder, request: Request) -> None:
    """Refuse a UNet that cannot be cut where a request wants it.

    Raises:
        BadModelError, UsageError: as :func:`check_depth`.
    """
    if not request.deep_cut:
        return
    folders = [folder, open_refiner(request.refiner, folder)] if request.refiner else [folder]
    for each in folders:
        check_depth(each.file(each.denoiser).derived(_skip_connections), request.deep_cut, each.denoiser)


def _skip_connections(file: ComponentFile) -> int:
    return len(hidden_states(file.graph.graph))
