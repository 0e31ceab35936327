"""The export of a pipeline: :func:`sdort.export`, which ``sdort export`` calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdort.console import detail, progress
from sdort.demo import DEMO_NAMES
from sdort.errors import UsageError
from sdort.errors.option_types import typed
from sdort.exporter.adaptation import Adaptation, adapt
from sdort.exporter.bind import bind
from sdort.exporter.export_options import ExportOptions, ExportRequest, StaticSize, check_options
from sdort.exporter.export_size import plan_space
from sdort.exporter.manifest import (
    ExportedComponent,
    ExportReport,
    copy_processors,
    write_index,
    write_manifest,
)
from sdort.exporter.open_source import open_source
from sdort.exporter.signatures import FOLDERS, ComponentSpec, at_size
from sdort.exporter.source import Source, check_processors, component_config, entry_of, select_components
from sdort.exporter.template import Template, fill, make_template, resized
from sdort.exporter.trace_cache import TraceCache
from sdort.machine.disk import WritePlan
from sdort.machine.optional_packages import TRACING, need_packages
from sdort.model.component_names import CONTROLNET, DECODER, IMAGE_ENCODER
from sdort.model.vae_levels import vae_factor
from sdort.model.weights import Weight
from sdort.onnx_io.constant_weights import refuse_constant
from sdort.onnx_io.save import write
from sdort.pipelines.configs import write_json
from sdort.pipelines.folder_signature import Signer, make_signer
from sdort.pipelines.own_files import why_foreign
from sdort.pipelines.wrong_input import in_home
from sdort.staging import check_output, real, staged_directory
from sdort.tables import size_text

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        See :meth:`sdort.machine.disk.WritePlan.raise_if_short`.

    Raises:
        SdortError: as :func:`export`; or the hub id is not on this disk.

    Example:
        >>> sdort.plan_export("demo", "model").fits
        True
    """
    request = check_options(options)
    check_output(Path(out), overwrite, _reads(str(model), request), why_foreign=why_foreign)
    cache = TraceCache(request.cache_dir, keeps=False)
    with _opened(str(model), request, downloads=False) as source:
        chosen = _components(source, request, cache)
        adaptation = _adapted(source, chosen, request)
        chosen = [adaptation.words.component(component) for component in chosen]
        return plan_space(chosen, adaptation.tensors, Path(out), request.opset, cache)


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
    components = select_components(source, request.components, cache, control=request.control)
    for option, given in (("--control", request.control), ("--ip-adapter", request.ip_adapters.adapters)):
        if given and all(component.name != "unet" for component in components):
            raise UsageError(f"{option} is for a UNet, which is not among what is exported", hint="Leave it out.")
    check_processors(source)
    return _at_static_size(source, components, request.static, cache) if request.static else components


def _export(model: str, out: Path, request: ExportRequest, overwrite: bool, signer: Signer | None) -> ExportReport:
    start = time.perf_counter()
    cache = TraceCache(request.cache_dir)
    with (
        # First, so that an existing OUT is an error before a long download.
        staged_directory(out, overwrite, _reads(model, request), why_foreign=why_foreign) as stage,
        _opened(model, request) as source,
    ):
        components = _components(source, request, cache)
        report = ExportReport(
            out,
            source.name,
            str(source.index.get("_class_name")),
            request.opset,
            str(request.static) if request.static else None,
        )
        adaptation = _adapted(source, components, request)
        tensors, words = adaptation.tensors, adaptation.words
        report.adapters, report.words = adaptation.adapters, list(words.words)
        report.ip_adapters = list(source.ip_adapters)
        components = [words.component(component) for component in components]
        plan_space(components, tensors, out, request.opset, cache).raise_if_short()
        for component in components:
            written = _export_component(component, adaptation, stage, request.opset, cache)
            config = words.config(component.name, component_config(source, component.name, cache))
            write_json(stage / component.name / "config.json", config)
            report.components.append(written)
        copy_processors(source, stage)
        words.write(stage)
        write_index(stage, source, components)
        write_manifest(stage, report, source.origin, _named_path(model), request.made_with)
        if signer:
            signer.sign(stage, real(out).name)
    report.seconds = time.perf_counter() - start
    return report


def _named_path(model: str) -> Path | None:
    """The path that a model was named by; None for the demo and a hub id."""
    return in_home(model) if model not in DEMO_NAMES and in_home(model).exists() else None


def _adapted(source: Source, components: list[ComponentSpec], request: ExportRequest) -> Adaptation:
    tensors = _read_tensors(source, components, request)
    return adapt(tensors, request.adapters, request.embeddings, source.part)


def _read_tensors(
    source: Source, components: list[ComponentSpec], request: ExportRequest
) -> dict[str, Mapping[str, Weight]]:
    """Describe the weights of every folder, so that a broken file is found before the first slow step."""
    folders = {FOLDERS[component.name]: component.name for component in components}
    return {
        folder: source.read_tensors(folder, name, request.variant, request.allow_pickle)
        for folder, name in folders.items()
    }


def _export_component(
    component: ComponentSpec, adaptation: Adaptation, stage: Path, opset: int, cache: TraceCache
) -> ExportedComponent:
    start = time.perf_counter()
    tensors = adaptation.tensors[FOLDERS[component.name]]
    path = stage / component.name / "model.onnx"
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
    content = fill(template, weights)
    path.parent.mkdir()
    used = [weights[name] for name in template.used]
    with progress(f"writing {component.name}", sum(weight.nbytes for weight in used)) as advance:
        written = write(content, path, component.name, advance=advance, checksum=True)
    seconds = time.perf_counter() - start
    how = "traced" if traced else "known architecture"
    detail(f"{component.name}: {size_text(written.bytes)}, {how}, {seconds:.1f} s")
    return ExportedComponent(
        component.name,
        component.class_name,
        sum(weight.nbytes // weight.dtype.itemsize for weight in used),
        len(template.proto.graph.node),
        written.bytes,
        traced,
        seconds,
        component.inputs,
        component.outputs,
        {file.name: digest for file, digest in written.hashes.items()},
    )


def _trace(component: ComponentSpec, adaptation: Adaptation, opset: int) -> Template:
    need_packages(*TRACING, what=f"tracing {component.name}")
    with progress(f"tracing {component.name} (once per architecture)"):
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
    factor = vae_factor(component_config(source, DECODER, cache)) if entry_of(source.index, "vae") else 8
    if size.height % factor or size.width % factor:
        raise UsageError(f"--static {size}: height and width must be multiples of {factor}")
    length = _sequence_length(source, cache)
    sizes = {
        "batch_size": size.batch,
        "sequence_length": length,
        "height": size.height // factor,
        "width": size.width // factor,
        "latent_height": size.height // factor,
        "latent_width": size.width // factor,
        "sample_height": size.height,
        "sample_width": size.width,
    }
    # Classifier-free guidance runs every latent with and without the prompt, in one batch.
    guided = sizes | {"batch_size": 2 * size.batch}
    one = sizes | {"batch_size": 1}
    per_component = {"unet": guided, CONTROLNET: guided, IMAGE_ENCODER: one}
    return [at_size(component, per_component.get(component.name, sizes)) for component in components]


def _sequence_length(source: Source, cache: TraceCache) -> int:
    """The number of tokens that a prompt is padded to: all that the text encoder has positions for."""
    if not entry_of(source.index, "text_encoder"):
        return 77
    config: dict[str, Any] = component_config(source, "text_encoder", cache)
    return int(config["max_position_embeddings"])
