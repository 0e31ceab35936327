"""The files of OUT beside the models: configs and tokenizers as they were, and ``sdort.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import check_processor, read_manifest
from sdort.checkpoints.tokenizer_files import MAX_TEXT_FILE, TABLES, check_tokenizer, is_clip_tokenizer
from sdort.console import say
from sdort.families.known_families import TOKENIZERS
from sdort.files.input_file import read_input
from sdort.machine.version import __version__
from sdort.onnx_io.components import walk
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.optimizer.report import OptimizeReport
from sdort.pipelines.manifest import FILES, write_listed_files
from sdort.pipelines.origin import ORIGIN, origin_mark

MOST_FILES = 5
"""Files that are named where there are many."""
COPIED_SUFFIXES = (".json", ".txt", ".jinja", ".model")
"""Configs, tokenizers and schedulers: everything of a pipeline folder that is no weight."""


def model_file(request: OptimizeRequest, name: str, source: Path, stage: Path, *, known: bool) -> Path:
    """The file to write: laid out as IN is, with the names that a pipeline's components have.

    Args:
        name: the model's name in its pipeline.
        source: the file that it was read from.
        stage: the folder that becomes OUT.
        known: it is a component of a pipeline.
    """
    if not request.source.is_dir():
        return stage / "model.onnx"
    if not known:
        return stage / source.relative_to(request.source)
    return (stage if source.parent == request.source else stage / name) / "model.onnx"


def copy_configs(request: OptimizeRequest, stage: Path) -> None:
    """Everything beside the models: configs, tokenizers, scheduler, model_index.json.

    What lies in folders without a model and is not copied is named in a message.

    Raises:
        BadModelError: a tokenizer is damaged or names another file, or a file is too large to be a config.
    """
    files = list(walk(request.source))
    with_models = {path.parent for path in files if path.suffix == ".onnx"}
    left = []
    for path in files:
        place = path.relative_to(request.source)
        if path.suffix not in COPIED_SUFFIXES:
            left += [str(place)] if path.parent not in with_models else []
            continue
        (stage / place).parent.mkdir(parents=True, exist_ok=True)
        (stage / place).write_bytes(read_input(path, limit=MAX_TEXT_FILE))
    for name in TOKENIZERS:
        if is_clip_tokenizer(request.source / name):
            check_tokenizer(request.source / name)
            check_processor(request.source / name, besides=TABLES)
    if left:
        more = f" and {len(left) - MOST_FILES} more" if len(left) > MOST_FILES else ""
        say(f"not copied, as only configs and tokenizers are: {', '.join(left[:MOST_FILES])}{more}")


def _origin(source: Path) -> dict[str, Any]:
    return {"from": str(source.resolve()), ORIGIN: origin_mark(source) if source.is_dir() else None}


def extend_manifest(request: OptimizeRequest, report: OptimizeReport, stage: Path, hashes: Mapping[Path, str]) -> None:
    """Write ``sdort.json``, the last file: the source's history, what was made of it, and the list of OUT's files.

    Args:
        hashes: those of the models, which were computed while they were written.

    Raises:
        OutputError: it cannot be written.
    """
    components = {name: {"operators": c.operators, "bytes": c.bytes} for name, c in report.components.items()}
    optimized = {
        "sdort": __version__,
        **(_origin(request.source) if request.original is None else request.original),
        "provider": request.provider,
        "fp16": request.half,
        "precision": request.precision,
        **({"weights": request.weights, "group": request.integers.group} if request.integers else {}),
        "components": components,
    }
    history = read_manifest(request.source)
    history.pop(FILES, None)
    for component in (history.get("components") or {}).values():
        component.pop("xxh128", None)  # of the source's files, in what older versions wrote
    write_listed_files(stage, {**history, "optimized": optimized}, hashes)
