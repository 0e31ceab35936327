"""Upscalers that are optimized on first use, and kept in sdort's cache beside checkpoints.

A folder of the cache belongs to the content of a file and to everything that its graph depends on; its record says
both, and is compared whenever it is opened.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import TensorProto

from sdort.console import progress, say
from sdort.errors import BadModelError, OutputError
from sdort.files.file_digest import file_digest
from sdort.files.staging import staged_directory
from sdort.graph.model import Model
from sdort.lowering.own_operators import own_operators
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.machine.version import __version__
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.external import ExternalData
from sdort.onnx_io.save import save_model
from sdort.pipelines.model_cache import (
    MODEL,
    hold,
    kept_folder,
    make_once,
    mark_used,
    read_kept,
    remake_hint,
    write_kept,
)
from sdort.providers import load_target
from sdort.upscaling.byte_images import byte_ends, use_bytes
from sdort.upscaling.network import COMPONENT
from sdort.upscaling.upscaler_file import FACTS_KEY, UpscalerFacts, peak_bytes_per_pixel, read_facts, read_upscaler

FORM = 2
"""Number of the form in which graphs of upscalers are written; another one makes them anew."""


class HalfOverflowError(BadModelError):
    """An upscaler has weights that fp16 cannot hold."""


def kept_upscaler(path: Path, provider: str, precision: str) -> tuple[Path, UpscalerFacts]:
    """The optimized graph of an upscaler for a provider; it is made if the cache has none.

    This process holds it from now on, so that no cleaning removes it before the process ends.

    Args:
        path: the upscaler's file, as for :func:`read_upscaler`.
        precision: ``fp16`` or ``fp32``.

    Returns:
        Its ``.onnx`` file, and how to use it.

    Raises:
        BadModelError: the file is none that sdort reads; or what the cache has is of another one.
        HalfOverflowError: fp16 cannot hold one of its weights.
        OutputError: the cache cannot be written.
    """
    made_of = _made_of(path, provider, precision)
    folder = kept_folder(made_of)
    while not hold(folder):
        _make(path, provider, precision, folder, made_of)
    return _checked(folder, path, made_of)


def _made_of(path: Path, provider: str, precision: str) -> dict[str, Any]:
    with progress(f"reading {path.name}"):
        digest = hashlib.sha256("".join(map(file_digest, _files(path))).encode()).hexdigest()
    own, _ = own_operators(provider)
    return {
        "upscaler": digest, "form": FORM, "sdort": __version__,
        "provider": provider, "precision": precision, "sdort_ops": own,
    }  # fmt: skip


def _files(path: Path) -> list[Path]:
    """A file, and behind an ``.onnx`` file those that hold its weights."""
    if path.suffix.lower() != ".onnx":
        return [path]
    external = ExternalData(path, COMPONENT)
    tensors = read_component(path, COMPONENT).proto.graph.initializer
    found = {external.locate(tensor)[0] for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL}
    return [path, *sorted(found - {path.resolve()})]


def _checked(folder: Path, path: Path, made_of: dict[str, Any]) -> tuple[Path, UpscalerFacts]:
    hint = remake_hint(folder)
    file = folder / MODEL / f"{COMPONENT}.onnx"
    try:
        found = read_kept(folder).made_of
        facts = read_facts(read_component(file, COMPONENT).metadata)
    except BadModelError as error:
        raise BadModelError(error.message, hint=hint) from error
    if found != made_of or facts is None:
        raise BadModelError(f"{folder} is not of {path.name}: its record names something else", hint=hint)
    mark_used(folder)
    return file, facts


def _make(path: Path, provider: str, precision: str, folder: Path, made_of: dict[str, Any]) -> None:
    try:
        make_once(folder, lambda: _fill(path, provider, precision, folder, made_of))
    except OSError as error:
        raise OutputError(f"cannot make {folder}: {error.strerror or error}") from error


def _fill(path: Path, provider: str, precision: str, folder: Path, made_of: dict[str, Any]) -> None:
    model, facts = read_upscaler(path)
    say(f"{path.name}: first use here, so it is made ready for {provider} in {precision}")
    with staged_directory(folder, overwrite=False) as stage, progress(f"{path.name}: fusing"):
        (stage / MODEL).mkdir()
        write_upscaler(model, facts, stage / MODEL / f"{COMPONENT}.onnx", provider, precision, made_of["sdort_ops"])
        if made_of != _made_of(path, provider, precision):
            raise BadModelError(
                f"{path} changed while it was read, so what came of it is not kept",
                hint="Use it again when nothing writes it any more.",
            )
        write_kept(stage, path.stem, str(path), made_of)


def write_upscaler(
    model: Model, facts: UpscalerFacts, out: Path, provider: str, precision: str, sdort_ops: bool = False
) -> None:
    """Write an upscaler's optimized graph, from bytes to bytes (:func:`use_bytes`), with its facts in the metadata.

    Args:
        model: the graph of floats, which is changed.

    Raises:
        HalfOverflowError: fp16 cannot hold one of its weights.
    """
    use_bytes(model)
    half = precision == "fp16"
    optimize_model(model, OptimizeOptions(load_target(provider), half, fp32_nodes=byte_ends, sdort_ops=sdort_ops))
    facts = replace(facts, bytes_per_pixel=peak_bytes_per_pixel(model, facts))
    model.metadata[FACTS_KEY] = facts.to_text()
    written = save_model(model, out)
    if written.overflowed:
        raise HalfOverflowError(
            f"fp16 cannot hold values of {len(written.overflowed)} of the upscaler's weights",
            hint="Use it in fp32: --precision fp32",
        )
