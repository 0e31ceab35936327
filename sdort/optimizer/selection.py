"""Selection of the models to optimize."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnx import TensorProto

from sdort.console import say
from sdort.errors import UsageError, did_you_mean
from sdort.families.component_names import SAFETY_CHECKER
from sdort.families.safety_signature import safety_kind
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.components import Survey, refuse_misfits, refuse_none, refuse_others
from sdort.optimizer.optimize_request import OptimizeRequest


def select_models(request: OptimizeRequest, survey: Survey) -> dict[str, Path]:
    """The models to optimize: those asked for by name, all with ``any_graph``, else the components of a pipeline.

    Raises:
        UsageError: something is asked for that is not there.
        BadModelError: something is there that sdort does not know, and that nobody asked for.
    """
    for name in request.components:
        if name not in survey.models:
            hint = f"{did_you_mean(name, survey.models)}The model has {', '.join(survey.models) or 'none'}."
            raise UsageError(f"there is no component {name!r}", hint=hint)
    if not survey.models:
        refuse_none(survey)
    if request.any_graph:
        return {name: path for name, path in survey.models.items() if name in (request.components or survey.models)}
    asked = set(request.components)
    refuse_misfits(survey, asked)
    if asked:
        return {name: path for name, path in survey.models.items() if name in asked}
    refuse_others(replace(survey, others=_unknown(survey)))
    return {name: path for name, path in survey.components.items() if name != SAFETY_CHECKER or _is_known(path)}


def _unknown(survey: Survey) -> dict[str, Path]:
    """The models beside a pipeline's components that are no component, without tokenizers, as Amuse has one."""
    if not survey.components:
        return survey.others
    return {name: path for name, path in survey.others.items() if not _reads_text(name, path)}


def _reads_text(name: str, path: Path) -> bool:
    inputs = read_component(path, name).proto.graph.input
    return any(each.type.tensor_type.elem_type == TensorProto.STRING for each in inputs)


def _is_known(path: Path) -> bool:
    """Whether a safety checker is of a kind that ``sdort run`` asks."""
    signature = read_component(path, SAFETY_CHECKER).signature
    return safety_kind(signature.inputs, signature.outputs) is not None


def left_out(request: OptimizeRequest, survey: Survey) -> dict[str, str]:
    """The models that nobody asked for and that are no error, with the reason; says so."""
    if request.components or request.any_graph:
        return {}
    reasons = {}
    checker = survey.components.get(SAFETY_CHECKER)
    if checker and not _is_known(checker):
        reasons[SAFETY_CHECKER] = "it has no part in the generation"
    for name, path in survey.spare.items():
        reasons[name] = f"{path.with_name('model.onnx').relative_to(survey.path)} is beside it"
    for name, reason in reasons.items():
        say(f"left out: {name}, as {reason} (--component {name} takes it)")
    for name in sorted(survey.others.keys() - _unknown(survey).keys()):
        reasons[name] = "it reads text, as a tokenizer does"
        say(f"left out: {name}, as {reasons[name]}")
    return reasons
