"""The export of a pipeline: :func:`sdort.export`, which ``sdort export`` calls."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from sdort.checkpoints.configs import write_json
from sdort.console import detail, progress, say
from sdort.demo import DEMO_NAMES
from sdort.errors import UsageError
from sdort.exporter.adaptation import Adaptation, adapt
from sdort.exporter.bind import bind
from sdort.exporter.export_options import ExportOptions, StaticSize
from sdort.exporter.export_request import ExportRequest, check_options
from sdort.exporter.export_size import plan_space, weight_elements
from sdort.exporter.manifest import (
    ExportedComponent,
    ExportReport,
    copy_processors,
    write_index,
    write_manifest,
)
from sdort.exporter.open_source import open_source
from sdort.exporter.signatures import FOLDERS, ComponentSpec, at_size
from sdort.exporter.source import (
    Source,
    check_copied,
    check_processors,
    component_config,
    entry_of,
    select_components,
)
from sdort.exporter.template import Template, fill, make_template, resized
from sdort.exporter.trace_cache import TraceCache
from sdort.families.component_names import CONTROLNET, DECODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.families.family import CHUNK
from sdort.families.known_families import DENOISERS
from sdort.families.vae_levels import vae_factor
from sdort.files.disk import WritePlan
from sdort.files.staging import check_output, real, staged_directory
from sdort.graph.weights import Reshaped, Unwritten, Weight
from sdort.machine.optional_packages import TRACING, need_packages
from sdort.onnx_io.constant_weights import refuse_constant
from sdort.onnx_io.save import data_file, write
from sdort.onnx_io.serialize import Serialized
from sdort.options.option_types import typed
from sdort.pipelines.explain_path import in_home
from sdort.pipelines.folder_signature import Signer, make_signer
from sdort.pipelines.manifest import why_foreign
from sdort.tables import size_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

BoundWeights = Mapping[str, Weight]
"""Initializer of a graph -> a checkpoint's weight."""
_GRAPH = "model.onnx"
_SAME_SIZE = 0.95
"""Share of an export's bytes from which on a checkpoint is told as large as that."""
TRACE_STEP = "tracing {} (once per architecture)"
"""The longest step of an export, for a component's name."""


@typed
def export(
    model: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    sign: str | Path | None = None,
    certificate: str | Path | None = None,
    **options: Unpack[ExportOptions],
) -> ExportReport:
    """Export a checkpoint to ONNX.

    Args:
        model: a diffusers directory, a single file (``.safetensors``), a VAE's directory or file, a hub id, or
            ``demo``.
        out: the folder to make: one folder a component with ``model.onnx`` and its data, and what else optimum's
            ONNX Runtime pipelines and sdort read. It appears complete or not at all.
        overwrite: replace ``out`` if it exists and all in it is what sdort wrote.
        sign: a private key in PEM, to sign ``out`` with: ``model.sig`` in it.
        certificate: with ``sign``: the key's certificate in PEM, and after it those that lead to a root.
        options: as in :class:`sdort.exporter.export_options.ExportOptions`.

    Returns:
        Each component's nodes, parameters, bytes and seconds.

    Raises:
        UsageError: ``model`` or a component does not exist, or an option has no such value.
        BadModelError: the checkpoint is broken, incomplete, or of another kind.
        OutputError: ``out`` exists or cannot be written.

    Example:
        >>> report = sdort.export("demo", "model")
        >>> [component.name for component in report.components]
        ['text_encoder', 'unet', 'vae_encoder', 'vae_decoder']
    """
    return _export(str(model), Path(out), check_options(options), overwrite, make_signer(sign, certificate))


@typed
def plan_export(
    model: str | Path, out: str | Path, *, overwrite: bool = False, **options: Unpack[ExportOptions]
) -> WritePlan:
    """Say what :func:`export` would write, and whether it fits; nothing is written or downloaded.

    Args:
        model: as for :func:`export`, but a hub id was downloaded before.
        out: as for :func:`export`, and so are ``overwrite`` and ``options``.

    Returns:
        Sizes of each component, free disk space, and an estimate of the peak memory.
        See :meth:`sdort.files.disk.WritePlan.raise_if_short`.

    Raises:
        SdortError: as :func:`export`; or the hub id is not on this disk.

    Example:
        >>> sdort.plan_export("demo", "model").fits
        True
    """
    request = check_options(options)
    check_output(Path(out), overwrite, _reads(str(model), request), why_foreign=why_foreign)
    cache = TraceCache(request.traces, keeps=False)
    with _described(str(model), request, cache, downloads=False) as opened:
        return opened.space(Path(out))


def _opened(model: str, request: ExportRequest, downloads: bool = True) -> AbstractContextManager[Source]:
    # Before a long download. A trace that is kept needs them too: it is known by their sources.
    need_packages(*TRACING, what="sdort export")
    return open_source(
        model,
        variant=request.variant,
        allow_pickle=request.allow_pickle,
        downloads=downloads,
        replaced=request.replaced,
        ip_adapters=request.ip_adapters,
    )


def _reads(model: str, request: ExportRequest) -> list[Path]:
    """The folders that are read; a folder that is called demo is not the demo."""
    return (
        request.replaced.reads
        + request.ip_adapters.reads
        + ([Path(model)] if Path(model).is_dir() and model not in DEMO_NAMES else [])
    )


def _components(source: Source, request: ExportRequest, cache: TraceCache) -> list[ComponentSpec]:
    components = select_components(
        source, request.components, cache, control=request.control, safety_checker=request.safety_checker
    )
    for option, given in (("--control", request.control), ("--ip-adapter", request.ip_adapters.adapters)):
        if given and all(component.name not in DENOISERS for component in components):
            raise UsageError(f"{option} is for a UNet, which is not among what is exported", hint="Leave it out.")
    check_processors(source)
    return _at_static_size(source, components, request.static, cache) if request.static else components


def _export(model: str, out: Path, request: ExportRequest, overwrite: bool, signer: Signer | None) -> ExportReport:
    start = time.perf_counter()
    cache = TraceCache(request.traces)
    with (
        # First, so that an existing OUT is an error before a long download.
        staged_directory(out, overwrite, _reads(model, request), why_foreign=why_foreign) as stage,
        _described(model, request, cache) as opened,
    ):
        opened.space(out).raise_if_short()
        _tell_growth(opened.source.name, opened.components, opened.adaptation)
        report = opened.report(out)
        for component in opened.components:
            report.components.append(_export_component(component, opened.adaptation, stage, request.opset, cache))
        opened.write_rest(stage, report)
        if signer:
            signer.sign(stage, real(out).name)
    report.seconds = time.perf_counter() - start
    return report


def _named_path(model: str) -> Path | None:
    """The path that a model was named by; None for the demo and a hub id."""
    return in_home(model) if model not in DEMO_NAMES and in_home(model).exists() else None


@dataclass(frozen=True)
class OpenExport:
    """A checkpoint that is exported without a copy of its weights; :func:`open_export` makes it."""

    model: str
    """It, as the user named it."""
    source: Source
    components: list[ComponentSpec]
    adaptation: Adaptation
    request: ExportRequest
    cache: TraceCache

    @property
    def tensors(self) -> dict[str, int]:
        """Component -> the number of its weights."""
        tensors = self.adaptation.tensors
        return {component.name: len(tensors[FOLDERS[component.name]]) for component in self.components}

    @property
    def new(self) -> list[str]:
        """The components whose architecture is traced first."""
        cache, opset = self.cache, self.request.opset
        return [component.name for component in self.components if not cache.has(component, opset)]

    @property
    def elements(self) -> int:
        """The number of all weights' elements."""
        tensors = self.adaptation.tensors
        return sum(weight_elements(each.name, tensors[FOLDERS[each.name]]) for each in self.components)

    def write(self, folder: Path) -> dict[str, BoundWeights]:
        """Write what :func:`export` writes but for the files of weights.

        Args:
            folder: an empty one.

        Returns:
            Component -> initializer -> the weight that its file would have, for
            :func:`sdort.onnx_io.load.load_model`. They can be read while the checkpoint is open.

        Raises:
            BadModelError: the weights and an architecture do not fit.
        """
        report = self.report(folder)
        weights: dict[str, BoundWeights] = {}
        for component in self.components:
            graph = _bound_graph(component, self.adaptation, self.request.opset, self.cache)
            report.components.append(_write_graph(graph, folder / component.name))
            weights[component.name] = graph.unwritten(folder / component.name)
        self.write_rest(folder, report)
        return weights

    def space(self, out: Path) -> WritePlan:
        """Plan what :func:`export` would write to ``out``, and whether it fits."""
        return plan_space(self.components, self.adaptation.tensors, out, self.request.opset, self.cache)

    def report(self, out: Path) -> ExportReport:
        """The report of an export to ``out``, without components yet."""
        source, request, adaptation = self.source, self.request, self.adaptation
        pipeline, static = str(source.index.get("_class_name")), str(request.static) if request.static else None
        report = ExportReport(out, source.name, pipeline, request.opset, static)
        report.adapters, report.words = adaptation.adapters, list(adaptation.words.words)
        report.ip_adapters = list(source.ip_adapters)
        return report

    def write_rest(self, folder: Path, report: ExportReport) -> None:
        """Write everything but the graphs and their weights; the list of all files last."""
        words = self.adaptation.words
        for component in self.components:
            config = words.config(component.name, component_config(self.source, component.name, self.cache))
            write_json(folder / component.name / "config.json", config)
        copy_processors(self.source, folder)
        words.write(folder)
        write_index(folder, self.source, self.components)
        write_manifest(folder, report, self.source.origin, _named_path(self.model), self.request.made_with)


@contextmanager
def open_export(model: str | Path, **options: Unpack[ExportOptions]) -> Iterator[OpenExport]:
    """A checkpoint, described and checked as far as its files' headers tell.

    Args:
        model: as for :func:`export`, and so are ``options``.

    Raises:
        SdortError: as :func:`export`.
    """
    request = check_options(options)
    with _described(str(model), request, TraceCache(request.traces)) as opened:
        yield opened


@contextmanager
def _described(model: str, request: ExportRequest, cache: TraceCache, downloads: bool = True) -> Iterator[OpenExport]:
    with _opened(model, request, downloads) as source:
        components = _components(source, request, cache)
        adaptation = _adapted(source, components, request)
        components = [adaptation.words.component(component) for component in components]
        yield OpenExport(model, source, components, adaptation, request, cache)


def _tell_growth(name: str, components: list[ComponentSpec], adaptation: Adaptation) -> None:
    """Say how large weights become that the checkpoint has in 16 bits: an export is in fp32."""
    tensors = {FOLDERS[component.name]: adaptation.tensors[FOLDERS[component.name]] for component in components}
    leaves = [leaf for part in tensors.values() for weight in part.values() for leaf in weight.leaves()]
    stored = sum(leaf.nbytes for leaf in leaves)
    written = 4 * sum(math.prod(leaf.shape) for leaf in leaves)
    if stored < _SAME_SIZE * written:
        drawn = not DENOISERS.keys().isdisjoint(tensors)  # a ControlNet or a VAE alone is exported first
        say(
            f"{name} has {size_text(stored)} of weights, and the export has them in fp32: {size_text(written)}"
            + (". sdort run takes the checkpoint itself, without such a copy" if drawn else "")
        )


def _adapted(source: Source, components: list[ComponentSpec], request: ExportRequest) -> Adaptation:
    tensors = _read_tensors(source, components, request)
    check_copied(source)
    plain = next((encoder.class_name for encoder in source.family.encoders if encoder.plain), None)
    if request.embedding and plain:
        raise UsageError(
            f"--embedding is for CLIP's text encoders, and {source.name} has a {plain}", hint="Leave it out."
        )
    return adapt(tensors, request.lora, request.embedding, source.part)


def _read_tensors(
    source: Source, components: list[ComponentSpec], request: ExportRequest
) -> dict[str, Mapping[str, Weight]]:
    """Describe the weights of every folder, so that a broken file is found before the first slow step."""
    folders = {FOLDERS[component.name]: component.name for component in components}
    return {
        folder: source.read_tensors(folder, name, request.variant, request.allow_pickle)
        for folder, name in folders.items()
    }


@dataclass(frozen=True)
class _BoundGraph:
    """A component's graph and the checkpoint's weights that it has."""

    component: ComponentSpec
    template: Template
    content: Serialized
    weights: list[Weight]
    """Its parameters."""
    traced: bool
    start: float
    """When the work for it began."""

    def unwritten(self, folder: Path) -> BoundWeights:
        """Initializer -> what it would have in the file of data in ``folder``."""
        path, blobs = data_file(folder / _GRAPH), {str(blob.offset): blob for blob in self.content.blobs}
        found = {}
        for tensor in onnx.ModelProto.FromString(self.content.proto).graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "offset":  # of several initializers one, where they have the same bytes
                    blob = blobs[entry.value]
                    found[tensor.name] = Unwritten(path, blob.offset, Reshaped(blob.weight, tensor.dims))
        return found

    def exported(self, size: int, hashes: Mapping[Path, str]) -> ExportedComponent:
        seconds = time.perf_counter() - self.start
        how = "traced" if self.traced else "known architecture"
        detail(f"{self.component.name}: {size_text(size)}, {how}, {seconds:.1f} s")
        return ExportedComponent(
            self.component.name,
            self.component.class_name,
            sum(weight.nbytes // weight.dtype.itemsize for weight in self.weights),
            len(self.template.proto.graph.node),
            size,
            self.traced,
            seconds,
            self.component.inputs,
            self.component.outputs,
            {file.name: digest for file, digest in hashes.items()},
        )


def _bound_graph(component: ComponentSpec, adaptation: Adaptation, opset: int, cache: TraceCache) -> _BoundGraph:
    start = time.perf_counter()
    tensors = adaptation.tensors[FOLDERS[component.name]]
    template = cache.load(component, opset)
    traced = template is None
    if template is None:
        template = _trace(component, adaptation, opset)
        cache.store(component, opset, template)
    parameters = adaptation.words.parameters(component.name, template.parameters)
    if parameters != template.parameters:
        template = resized(template, parameters)
    weights = bind(tensors, template.parameters, component.name)
    refuse_constant((leaf for weight in weights.values() for leaf in weight.leaves()), component.name)
    used = [weights[name] for name in template.used]
    return _BoundGraph(component, template, fill(template, weights), used, traced, start)


def _export_component(
    component: ComponentSpec, adaptation: Adaptation, stage: Path, opset: int, cache: TraceCache
) -> ExportedComponent:
    graph = _bound_graph(component, adaptation, opset, cache)
    path = stage / component.name / _GRAPH
    path.parent.mkdir()
    with progress(f"writing {component.name}", sum(weight.nbytes for weight in graph.weights)) as advance:
        written = write(graph.content, path, component.name, advance=advance, checksum=True)
    return graph.exported(written.bytes, written.hashes)


def _write_graph(graph: _BoundGraph, folder: Path) -> ExportedComponent:
    """Write a component without its weights."""
    folder.mkdir()
    (folder / _GRAPH).write_bytes(graph.content.proto)
    return graph.exported(len(graph.content.proto) + graph.content.data_bytes, {})


def _trace(component: ComponentSpec, adaptation: Adaptation, opset: int) -> Template:
    need_packages(*TRACING, what=f"tracing {component.name}")
    with progress(TRACE_STEP.format(component.name)):
        from sdort.exporter import torch_modules as architecture
        from sdort.exporter.trace import trace

        module = architecture.build_module(component)
        # Weights that do not fit are noticed here, before the minutes that the trace takes.
        parameters = adaptation.words.parameters(component.name, architecture.parameters(module))
        bind(adaptation.tensors[FOLDERS[component.name]], parameters, component.name)
        return make_template(trace(component, module, opset), component.name)


def _at_static_size(
    source: Source, components: list[ComponentSpec], size: StaticSize, cache: TraceCache
) -> list[ComponentSpec]:
    open_rows = next((each for each in source.family.encoders if each.plain and not each.plain.padded), None)
    if open_rows:
        raise UsageError(
            f"--static: {source.family.title} reads prompts in as many tokens as they have, so that no size holds for "
            "its text encoder and its transformer",
            hint="Leave it out.",
        )
    factor = vae_factor(component_config(source, DECODER, cache)) if entry_of(source.index, "vae") else 8
    step = factor * source.family.denoiser.patch
    if size.height % step or size.width % step:
        raise UsageError(f"--static {size}: height and width must be multiples of {step}")
    chunk = _chunk_length(source, cache)
    sizes = {
        "batch_size": size.batch,
        "height": size.height // factor,
        "width": size.width // factor,
        "latent_height": size.height // factor,
        "latent_width": size.width // factor,
        "sample_height": size.height,
        "sample_width": size.width,
    }
    # Classifier-free guidance runs every latent with and without the prompt, in one batch.
    guided = sizes | {"batch_size": (1 if source.family.denoiser.distilled else 2) * size.batch}
    one = sizes | {"batch_size": 1}
    per_component = {**dict.fromkeys(DENOISERS, guided), CONTROLNET: guided, IMAGE_ENCODER: one, SAFETY_CHECKER: one}
    return [
        at_size(
            each,
            {**per_component.get(each.name, sizes), "sequence_length": source.family.tokens(each.name, chunk)},
        )
        for each in components
    ]


def _chunk_length(source: Source, cache: TraceCache) -> int:
    """The number of tokens that a chunk is padded to: all that CLIP's text encoder has positions for."""
    encoders = source.family.encoders
    if not entry_of(source.index, "text_encoder") or any(
        each.plain for each in encoders if each.component == "text_encoder"
    ):
        return CHUNK
    config: dict[str, Any] = component_config(source, "text_encoder", cache)
    return int(config["max_position_embeddings"])
