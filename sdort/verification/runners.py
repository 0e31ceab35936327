"""Running one component wherever it can run: the candidate, the original it was made from, and torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from sdort.engines.rounding import emulate
from sdort.errors import BadModelError
from sdort.families.component_names import ENCODER
from sdort.generation.pipeline import TextToImage, assemble
from sdort.graph.signature import Array, Feeds
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.precision_mark import stored_dtype
from sdort.onnx_io.standard_operators import expand, needs_expansion
from sdort.operator_library.library import AUTO, OFF, resolve
from sdort.pipelines.folder import PipelineFolder
from sdort.providers import CPU
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.opener import ALL, BASIC
from sdort.runtime.operator_trials import warn_of_wrong_operators
from sdort.runtime.session import Session, open_graph, open_session

Outputs = dict[str, Array]


@dataclass(frozen=True)
class RunConfiguration:
    """Configuration of a run: an execution provider, and the options of its session."""

    provider: Provider
    options: RuntimeOptions


REFERENCE = RunConfiguration(CPU, RuntimeOptions(CPU.name, custom_ops=OFF, control_inputs=True, split=False))
"""Where references run: ONNX Runtime's CPU provider and its kernels alone."""


def open_component(path: Path, component: str, configuration: RunConfiguration) -> Session:
    """Open a component on a provider.

    On the CPU a graph made for a GPU runs by its operators' definitions (:mod:`sdort.onnx_io.standard_operators`), one
    in fp16 or bf16 with every result rounded as a GPU stores it (:mod:`sdort.engines.rounding`): ONNX Runtime's CPU
    provider keeps fp32 between its casts, where nothing overflows. With a library of sdort's operators, its CPU kernels
    run.

    Raises:
        BadModelError, ProviderError: as :func:`sdort.runtime.session.open_session`; but an operator that the provider
            computes wrongly is a warning: what comes of it is to be measured.
    """
    if not configuration.provider.is_fallback:
        warn_of_wrong_operators(path, component, configuration.provider, configuration.options)
        untried = replace(configuration.options, trials=False)
        return open_session(path, component, configuration.provider, untried)
    file = read_component(path, component)
    file.check()
    model, options = file.copy(), configuration.options
    if is_emulated(model, configuration):
        model, options = emulate(path, component), replace(options, custom_ops=OFF)
    return open_model(model, path, component, RunConfiguration(configuration.provider, options))


def open_model(
    model: onnx.ModelProto, path: Path, component: str, configuration: RunConfiguration | None = None
) -> Session:
    """Open a graph in memory on a provider.

    Args:
        model: belongs to this function now, which expands what the CPU provider lacks without a library.
        path: the file that it was made from, whose folder has the weights.
        configuration: None is the CPU provider without ONNX Runtime's own fusions, for references.

    Raises:
        BadModelError, ProviderError: as :func:`sdort.runtime.session.open_graph`.
    """
    used = configuration or REFERENCE
    if used.provider.is_fallback and resolve(used.options.custom_ops) is None:
        expand(model)
    return open_graph(model, path, component, used.provider, used.options, ALL if configuration else BASIC)


def is_emulated(model: onnx.ModelProto, configuration: RunConfiguration) -> bool:
    """Whether :func:`open_component` runs a candidate with every result rounded as a GPU stores it."""
    if not configuration.provider.is_fallback or configuration.options.custom_ops not in (AUTO, OFF):
        return False
    dtype = stored_dtype(model)
    return dtype == "bfloat16" or (dtype == "float16" and is_for_gpu(model))


def is_for_gpu(model: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime's CPU provider lacks operators of it."""
    return any(needs_expansion(node) for node in model.graph.node)


def open_text_to_image(folder: PipelineFolder, configuration: RunConfiguration) -> TextToImage:
    """A pipeline from text to images.

    Raises:
        BadModelError: it lacks a component that is needed.
    """
    needed = [*folder.needed, *([ENCODER] if folder.family.aesthetic else [])]  # a refiner begins with an image
    missing = [name for name in needed if name not in folder.models]
    if missing:
        raise BadModelError(f"{folder.path} has no {', '.join(missing)}")
    sessions = {name: open_component(folder.models[name], name, configuration) for name in needed}
    return assemble(folder, sessions, configuration.provider, None)


def run_candidate(path: Path, component: str, configuration: RunConfiguration, feeds: Sequence[Feeds]) -> list[Outputs]:
    """The candidate's outputs for every feed."""
    session = open_component(path, component, configuration)
    return [session.run(feed) for feed in feeds]


def run_original(path: Path, component: str, feeds: Sequence[Feeds]) -> list[Outputs]:
    """The un-optimized ONNX component on the CPU, without ONNX Runtime's own fusions."""
    file = read_component(path, component)
    file.check()
    session = open_model(file.copy(), path, component)
    return [session.run(feed) for feed in feeds]


def run_torch(checkpoint: Path, component: str, feeds: Sequence[Feeds]) -> list[Outputs]:
    """The diffusers component in torch, in fp32 on the CPU.

    Raises:
        BadModelError: the checkpoint does not load.
    """
    from sdort.engines.torch import TorchEngine

    engine = TorchEngine(checkpoint, CPU, "float32")
    results = []
    for feed in feeds:
        # Exports name a VAE's only input as they like.
        named = {"sample": next(iter(feed.values()))} if component.startswith("vae") else feed
        runner = engine.component_runner(component, named)
        runner()
        results.append(runner.result())
    engine.close()
    return results
