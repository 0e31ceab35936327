"""The inspection of models: :func:`sdort.inspect`, :func:`sdort.compare` and :func:`sdort.placement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sdort.console import document, warn
from sdort.errors import BadModelError
from sdort.inspection.description import Change, Component, compare_components, inspect_path, paired_components
from sdort.onnx_io.components import find_models
from sdort.options.option_types import typed
from sdort.pipelines.explain_path import expect_onnx
from sdort.providers import PROVIDER_NAMES, find_provider

if TYPE_CHECKING:
    from sdort.inspection.graph_difference import Place
    from sdort.inspection.profile import Placement


@document("inspect", 1)
@dataclass(frozen=True)
class Inspection:
    """The models of a file or folder."""

    components: list[Component]
    """The models."""


@document("inspect-diff", 1)
@dataclass(frozen=True)
class ModelDiff:
    """Differences of two models or pipelines, by component; those that are equal have none."""

    before: Path
    """The first path."""
    after: Path
    """The second path."""
    components: dict[str, list[Change]]
    """Component -> what differs in it."""
    places: dict[str, list[Place]]
    """Component -> places in which it computes something else, from its inputs to its outputs."""

    @property
    def differ(self) -> bool:
        """Whether anything differs."""
        return any(self.components.values()) or any(self.places.values())


@document("inspect-placement", 1)
@dataclass(frozen=True)
class Placements:
    """Operators by execution provider, for each component."""

    placement: list[Placement]
    """The placement of each component."""
    remarks: list[str] = field(metadata={"json": None})


@typed
def inspect(path: str | Path, *, providers: Sequence[str] = PROVIDER_NAMES) -> Inspection:
    """Describe the operators, inputs, outputs and weights of a model. Weights are not read.

    Args:
        path: an ``.onnx`` file, or a folder: a pipeline's components, and models that are none.
        providers: execution providers of which to say what they have no kernel for.

    Raises:
        BadModelError: ``path`` holds no model, or a broken or unsafe one.

    Example:
        >>> for component in sdort.inspect("model").components:
        ...     print(component.component, component.nodes)
    """
    return Inspection(inspect_path(Path(path), providers))


@typed
def compare(before: str | Path, after: str | Path) -> ModelDiff:
    """Compare two models or pipelines: what they compute, and operators, weights, opsets, inputs and outputs.

    Nodes correspond by the structure of the graphs, from their inputs and outputs; names make no difference. Weights
    are read. A folder that is not what its ``sdort.json`` lists is told.

    Raises:
        BadModelError: a path holds no model, or a broken or unsafe one.

    Example:
        >>> changes = sdort.compare("model", "fast").components["unet"]
    """
    paths = Path(before), Path(after)
    sides = [inspect_path(path, ()) for path in paths]
    for path, components in zip(paths, sides, strict=True):
        _remark_on_content(path, components)
    return ModelDiff(*paths, compare_components(*sides), _places(*sides))


def _places(before: Sequence[Component], after: Sequence[Component]) -> dict[str, list[Place]]:
    from sdort.inspection.graph_difference import differing_places
    from sdort.onnx_io.load import load_model

    return {
        name: differing_places(*(load_model(each.path, each.component) for each in (old, new) if each.path))
        for name, (old, new) in paired_components(before, after).items()
        if old and new
    }


def _remark_on_content(path: Path, components: Sequence[Component]) -> None:
    """Say that a folder is not what its ``sdort.json`` lists."""
    from sdort.pipelines.content_check import checked

    try:
        with checked(path) as content:
            content.reads([each.path for each in components if each.path])
    except BadModelError as error:
        warn(f"{path} is not what its sdort.json lists: {error.message}")


@typed
def placement(
    path: str | Path,
    provider: str,
    *,
    device_id: int = 0,
    device_kind: str | None = None,
    ep_libraries: Mapping[str, str] | None = None,
) -> Placements:
    """Open each model on an execution provider, and see where ONNX Runtime puts its nodes.

    Of a provider that is not here and whose list of kernels is known (``dml``), the list says it.

    Args:
        path: an ``.onnx`` file, or a folder of them.
        provider: ``rocm``, ``migraphx``, ``cuda``, ``cpu`` or another that ``sdort doctor`` lists.
        device_id: the number of the device.
        device_kind: the kind or vendor of the device, where a plugin brings the provider.
        ep_libraries: libraries of plugins that bring a provider to ONNX Runtime, by the provider's name.

    Raises:
        ProviderError: the provider does not load here.
        UsageError: it has no such devices, or a library's name is that of no plugin's provider.
        BadModelError: ``path`` holds no model, or a broken or unsafe one.

    Example:
        >>> sdort.placement("fast", "cpu").placement[0].shares[0].provider
        'CPUExecutionProvider'
    """
    from sdort.inspection.profile import list_placement, list_remarks, measure_placement, remarks
    from sdort.providers.runtime_options import RuntimeOptions
    from sdort.runtime.probe import choose_provider, why_not

    options = RuntimeOptions(
        provider, device_id=device_id, device_kind=device_kind, ep_libraries=dict(ep_libraries or {})
    )
    hint = "Without --placement nothing is opened: it tells what lacks a kernel there."
    known = find_provider(provider)
    opens = not known.kernel_table or why_not(known, options) is None
    chosen = choose_provider(options, hint=hint)[0] if opens else known
    expect_onnx(Path(path), nested=True)
    models = find_models(Path(path))
    if not opens:
        listed = [list_placement(file, name, known) for name, file in models.items()]
        return Placements(listed, list_remarks(listed, known))
    placements = [measure_placement(file, name, chosen, options) for name, file in models.items()]
    return Placements(placements, remarks(placements, chosen))
