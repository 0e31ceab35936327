"""Running one component wherever it can run: the candidate, the original it was made from, and torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from sdort.emulation.rounding import emulate
from sdort.emulation.standard import needs_expansion
from sdort.errors import BadModelError
from sdort.generation.pipeline import TextToImage, assemble
from sdort.model.signature import Array
from sdort.onnx_io.component_file import read_component
from sdort.ops.library import AUTO, OFF, resolve
from sdort.pipelines.folder import PipelineFolder
from sdort.providers import CPU
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session
from sdort.verification.parity import open_session as open_graph
from sdort.verification.parity import precision

Feeds = Mapping[str, Array]
Outputs = dict[str, Array]


@dataclass(frozen=True)
class Place:
    """Where a candidate runs."""

    provider: Provider
    options: RuntimeOptions


def open_component(path: Path, component: str, place: Place) -> Session:
    """Open a component on a provider.

    On the CPU a graph made for a GPU runs by its operators' definitions (:mod:`sdort.emulation.standard`), one in fp16
    or bf16 with every result rounded as a GPU stores it (:mod:`sdort.emulation.rounding`): ONNX Runtime's CPU provider
    keeps fp32 between its casts, where nothing overflows. With a library of sdort's operators, its CPU kernels run.

    Raises:
        BadModelError, ProviderError: as :func:`sdort.runtime.session.open_session`.
    """
    if place.provider.on_gpu:
        return open_session(path, component, place.provider, place.options)
    file = read_component(path, component)
    file.check()
    model, library = file.copy(), resolve(place.options.custom_ops)
    if is_emulated(model, place):
        model, library = emulate(path, component), None
    graph = open_graph(model, path.parent, component, CPU.name, library)
    return Session(graph, path, component, CPU, place.options)


def is_emulated(model: onnx.ModelProto, place: Place) -> bool:
    """Whether :func:`open_component` runs a candidate with every result rounded as a GPU stores it."""
    if place.provider.on_gpu or place.options.custom_ops not in (AUTO, OFF):
        return False
    dtype = precision(model)
    return dtype == "bfloat16" or (dtype == "float16" and is_for_gpu(model))


def is_for_gpu(model: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime's CPU provider lacks operators of it."""
    return any(needs_expansion(node) for node in model.graph.node)


def open_drawer(folder: PipelineFolder, place: Place) -> TextToImage:
    """A pipeline that draws from text.

    Raises:
        BadModelError: it is not one that sdort draws with.
    """
    missing = [name for name in folder.needed if name not in folder.models]
    if missing:
        raise BadModelError(f"{folder.path} has no {', '.join(missing)}")
    sessions = {name: open_component(folder.models[name], name, place) for name in folder.needed}
    return assemble(folder, sessions, place.provider, None)


def run_candidate(path: Path, component: str, place: Place, feeds: Sequence[Feeds]) -> list[Outputs]:
    """The candidate's outputs for every feed."""
    session = open_component(path, component, place)
    return [session.run(feed) for feed in feeds]


def run_original(path: Path, component: str, feeds: Sequence[Feeds]) -> list[Outputs]:
    """The un-optimized ONNX component on the CPU, without ONNX Runtime's own fusions."""
    file = read_component(path, component)
    file.check()
    options = RuntimeOptions(CPU.name)
    session = Session(open_graph(file.copy(), path.parent, component), path, component, CPU, options)
    return [session.run(feed) for feed in feeds]


def run_torch(checkpoint: Path, component: str, feeds: Sequence[Feeds]) -> list[Outputs]:
    """The diffusers component in torch, in fp32 on the CPU.

    Raises:
        BadModelError: the checkpoint does not load.
    """
    from sdort.engines.torch import TorchEngine

    engine = TorchEngine(checkpoint, CPU, "float32", compiled=False)
    results = []
    for feed in feeds:
        # Exports name a VAE's only input as they like.
        named = {"sample": next(iter(feed.values()))} if component.startswith("vae") else feed
        runner = engine.component_runner(component, named)
        runner()
        results.append(runner.result())
    engine.close()
    return results
