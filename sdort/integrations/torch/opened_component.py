"""Components of a pipeline's folder, opened for torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sdort.families.component_names import CONTROLNET
from sdort.families.known_families import DENOISERS
from sdort.generation.denoising.adapted_weights import is_adaptable, remark_inputs
from sdort.generation.requests.typed_options import runtime_options
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.integrations.torch.torch_place import find_place
from sdort.pipelines.content_check import checked
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers.runtime_options import LoadOptions
from sdort.runtime.probe import choose_provider
from sdort.runtime.provider_message import announce
from sdort.runtime.session import open_session

RECORDED = (*DENOISERS, CONTROLNET)
"""Components that run again and again at one size: of the others a graph of the device costs more than it saves."""


@dataclass(frozen=True)
class OpenedComponents:
    """Some components of a folder.

    Attributes:
        folder: the pipeline.
        sessions: by component.
    """

    folder: PipelineFolder
    sessions: Mapping[str, TensorSession]


def open_components(
    path: str | Path,
    components: tuple[str, ...],
    options: LoadOptions,
    *,
    optional: tuple[str, ...] = (),
    control_inputs: bool = False,
) -> OpenedComponents:
    """Open components of a pipeline, all on one stream.

    Args:
        path: the folder of the pipeline, exported or optimized.
        options: those of :func:`sdort.load`. Where the provider refuses a component no other runs in its place.
        optional: components that are opened where the folder has them.
        control_inputs: whether a UNet keeps its inputs for controls and for images of IP-Adapters.

    Raises:
        BadModelError: the folder lacks a component, one does not load, or a file is not what sdort wrote.
        ProviderError: the provider does not load and ``fallback`` is not True, or it cannot run a component.
        UsageError: there is no such provider or option of it, or it has no graphs for ``graph=True``.
    """
    asked = runtime_options(options, control_inputs=control_inputs)
    with checked(Path(path), asked.check) as content:
        folder = open_folder(Path(path), needed=components)
        names = [*components, *(name for name in optional if name in folder.models)]
        content.reads(folder.models[name] for name in names)
        announce(asked)
        provider = choose_provider(asked)[0]
        place = find_place(provider, asked.device_id)
        sessions = {}
        for name in names:
            graph = asked.graph and name in RECORDED
            own = replace(asked, stream=place.address, graph=graph, adapters=asked.adapters and is_adaptable(name))
            session = open_session(folder.models[name], name, provider, own)
            remark_inputs(session)
            sessions[name] = TensorSession(session, place)
    return OpenedComponents(folder, sessions)
