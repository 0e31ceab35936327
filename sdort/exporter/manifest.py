"""The files of an exported directory beside the graphs: configs, processors, ``model_index.json``, ``sdort.json``."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import INDEX, write_json
from sdort.checkpoints.tokenizer_files import MAX_TEXT_FILE
from sdort.console import document
from sdort.exporter.baked_adapters import AppliedAdapter
from sdort.exporter.component_configs import DOWNLOAD_AGAIN
from sdort.exporter.new_words import AddedWord
from sdort.exporter.plain_tokenizers import write_plain_tokenizer
from sdort.exporter.replacements import MADE_WITH, MadeWith
from sdort.exporter.signatures import FOLDERS, ComponentSpec
from sdort.exporter.source import AppliedIpAdapter, Source, copied_processors, processor_files
from sdort.families.component_names import SAFETY_CHECKER
from sdort.families.graph_tensor import GraphTensor
from sdort.files.input_file import read_input
from sdort.machine.version import __version__
from sdort.pipelines.manifest import write_listed_files
from sdort.pipelines.origin import ORIGIN, origin_mark


@dataclass
class ExportedComponent:
    """One exported graph."""

    name: str
    """The component: ``unet``."""
    class_name: str
    """Its class in diffusers or transformers."""
    parameters: int
    """Number of weights' elements."""
    nodes: int
    """Number of nodes of the graph."""
    bytes: int
    """Size of what was written, weights included."""
    traced: bool
    """False if the graph came from the trace cache."""
    seconds: float
    """Seconds of this component."""
    inputs: tuple[GraphTensor, ...]
    """The graph's inputs."""
    outputs: tuple[GraphTensor, ...]
    """The graph's outputs."""
    xxh128: dict[str, str] = field(default_factory=dict)
    """File name -> its XXH3 hash of 128 bits, as ``xxh128sum`` prints it."""


@document("export", 1)
@dataclass
class ExportReport:
    """The result of an export: its parameters, and each component in the order of export."""

    out: Path
    """The folder that was written."""
    source: str
    """The checkpoint: a folder or a hub id."""
    pipeline: str
    """The pipeline's class in diffusers."""
    opset: int
    """Version of ONNX's operators."""
    static: str | None
    """The fixed batch and size; None where they are dynamic."""
    components: list[ExportedComponent] = field(default_factory=list)
    """The exported components, in the order of export."""
    adapters: list[AppliedAdapter] = field(default_factory=list)
    """The adapters in the weights, in the order of the request."""
    words: list[AddedWord] = field(default_factory=list)
    """The words of textual inversion that prompts may have."""
    ip_adapters: list[AppliedIpAdapter] = field(default_factory=list)
    """The IP-Adapters whose images the UNet takes, in the order of their images."""
    seconds: float = 0.0
    """Seconds of the whole export."""


def write_manifest(folder: Path, report: ExportReport, origin: Path, named: Path | None, made_with: MadeWith) -> None:
    """Write ``sdort.json``, the last file: versions, shapes, and the list of the others.

    Args:
        origin: the folder or file that was read.
        named: its path, where the user named it by that; else None.
        made_with: how it was read.

    Raises:
        OutputError: it cannot be written.
    """
    left_out = ("name", "traced", "seconds", "xxh128")
    components = {
        component.name: {key: value for key, value in asdict(component).items() if key not in left_out}
        for component in report.components
    }
    manifest = {
        "versions": {"sdort": __version__}
        | {package: version(package) for package in ("torch", "diffusers", "transformers", "onnx")},
        "source": report.source,
        # From the folder, so that what is published names no user of this machine.
        "path": os.path.relpath(named.resolve(), folder.resolve()) if named else None,
        ORIGIN: origin_mark(origin),
        MADE_WITH: made_with.record(),
        "pipeline": report.pipeline,
        "opset": report.opset,
        "static": report.static,
        "components": components,
        "adapters": [
            {key: value for key, value in _with_size(adapter).items() if key != "unmatched"}
            for adapter in report.adapters
        ],
        "words": [_with_size(word) for word in report.words],
        "ip_adapters": [asdict(adapter) for adapter in report.ip_adapters],
    }
    hashes = {
        folder / component.name / file: digest
        for component in report.components
        for file, digest in component.xxh128.items()
    }
    write_listed_files(folder, manifest, hashes)


def _with_size(applied: AppliedAdapter | AddedWord) -> dict[str, Any]:
    """The manifest's entry of an adapter or a word; by its size a file is known before it is opened."""
    return {**asdict(applied), "bytes": Path(applied.path).stat().st_size}


def write_index(folder: Path, source: Source, exported: list[ComponentSpec]) -> None:
    """Write ``model_index.json`` with the components that were exported or copied; the others become null.

    So does a safety checker: of that diffusers and optimum would load the class's own weights, and not its graph.
    """
    kept = {component.name for component in exported} | set(copied_processors(source))
    kept = (kept | {FOLDERS[component.name] for component in exported}) - {SAFETY_CHECKER}
    index: dict[str, Any] = {}
    for name, entry in source.index.items():
        is_component = isinstance(entry, list) and len(entry) == 2 and not name.startswith("_")
        index[name] = [None, None] if is_component and name not in kept else entry
    # Without this diffusers would warn that there is none.
    index["requires_safety_checker"] = False
    index.pop("_name_or_path", None)
    write_json(folder / INDEX, index)


def copy_processors(source: Source, folder: Path) -> None:
    """Copy the scheduler, tokenizers and feature extractor: small text files. Tokenizers of encoders that read plain
    text are written in the form that ``sdort run`` reads.

    Raises:
        BadModelError: the pipeline names one that it does not have, or a tokenizer does not load.
    """
    for name in copied_processors(source):
        (folder / name).mkdir()
        for file in processor_files(source, name):
            content = read_input(file, limit=MAX_TEXT_FILE, hint=DOWNLOAD_AGAIN)
            (folder / name / file.name).write_bytes(content)
    for encoder in source.family.encoders:
        if encoder.plain and (folder / encoder.tokenizer).is_dir():
            write_plain_tokenizer(source.part(encoder.tokenizer), encoder.plain, folder / encoder.tokenizer)
