"""The original of a pipeline: the one it was made from, found through its manifest, or one that is named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import INDEX, MANIFEST, read_manifest
from sdort.demo import DEMO_NAMES, write_demo
from sdort.engines.checkpoint_folder import checkpoint_folder
from sdort.engines.engine import Engine
from sdort.engines.onnx import OnnxEngine
from sdort.engines.torch import TorchEngine, check_checkpoint
from sdort.errors import UsageError
from sdort.exporter.checkpoint import needs_variants
from sdort.exporter.replacements import MADE_WITH
from sdort.exporter.vae_parts import holds_vae
from sdort.files.staging import temporary_folder
from sdort.machine.optional_packages import COMPARING, RUNNING, need_packages
from sdort.pipelines.explain_path import holds_models
from sdort.pipelines.origin import ORIGIN, has_mark
from sdort.providers import CPU
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions

_SINGLE_FILES = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")


def holds_onnx(path: Path) -> bool:
    """Whether ``path`` is an ONNX pipeline or file, not a checkpoint: a diffusers folder or a single file."""
    if path.is_file():
        return path.suffix.lower() not in _SINGLE_FILES
    return holds_models(path)


@contextmanager
def original_of(path: Path, hint: str, *, torch: bool = True) -> Iterator[Path | None]:
    """The pipeline that the one in ``path`` was made from, by its manifest; None when that is not on this machine.

    An optimized pipeline names the folder that it was made from. An export names its checkpoint, which is looked for
    where it lay, in the current folder and beside the pipeline; ``demo`` is made again. Of a checkpoint that is no
    diffusers folder as it is in the pipeline, such a folder is made, see :func:`as_exported`. What lies there is not
    read unless it has the mark that the manifest records (:mod:`sdort.pipelines.origin`).

    Args:
        hint: how to name the original, for errors.
        torch: False leaves a checkpoint as it lies, which torch could then not load.

    Raises:
        MissingPackageError: a folder is to be made of a checkpoint, and torch or what loads it is not installed.
        UsageError: another model lies there, the manifest has no mark, or the file of an adapter is not here.
    """
    manifest = read_manifest(path) if path.is_dir() else {}
    optimized = manifest.get("optimized")
    source = optimized["from"] if optimized else manifest.get("source")
    if source in DEMO_NAMES:  # an optimized folder names a path, unless it was made on first use
        with temporary_folder("demo") as folder:
            demo = folder / source
            demo.mkdir()
            write_demo(source, demo)
            with as_exported(path, demo) as adapted:
                yield adapted
        return
    known = [] if optimized else [path / manifest["path"]] if manifest.get("path") else []
    original = _recorded(path, [*known, Path(source)], (optimized or manifest).get(ORIGIN), hint) if source else None
    if original is None:
        yield None
        return
    with as_exported(path, original) if torch else nullcontext(original) as adapted:
        yield adapted


def _recorded(path: Path, sources: Sequence[Path], mark: Mapping[str, Any] | None, hint: str) -> Path | None:
    """The model that a manifest records, at its path or beside ``path``; None where nothing lies there."""
    places = [*sources, path.resolve().parent / sources[-1]]
    there = [place for place in places if _is_pipeline(place) and place.resolve() != path.resolve()]
    if not there:
        return None
    if mark is None:
        raise UsageError(
            f"{path / MANIFEST} names {there[0]} and no mark by which to know it, so that it is not read: an older "
            "sdort wrote this file, or not sdort",
            hint=hint,
        )
    original = next((place for place in there if has_mark(place, mark)), None)
    if original is None:
        raise UsageError(
            f"{there[0]} is another model than the one that {path} was made from, or has changed since", hint=hint
        )
    return original


def is_recorded(path: Path, reference: Path) -> bool | None:
    """Whether ``reference`` is the original that the manifest of the pipeline in ``path`` records, wherever it lies.

    Returns:
        None where no mark is recorded for one of its kind.
    """
    manifest = read_manifest(path) if path.is_dir() else {}
    optimized = manifest.get("optimized")
    # Of an optimized pipeline the original is ONNX, and the mark beside it is that of the checkpoint behind.
    mark = (optimized or manifest if holds_onnx(reference) else manifest).get(ORIGIN)
    return None if mark is None or (holds_onnx(reference) and not optimized) else has_mark(reference, mark)


@contextmanager
def as_exported(path: Path, reference: Path) -> Iterator[Path]:
    """A reference as the pipeline in ``path`` was exported from it: with its adapters, words and replaced parts.

    A temporary diffusers folder; ``reference`` itself where it holds ONNX, or is such a folder and nothing was added.

    Raises:
        UsageError: the file of one of them is not where the manifest says, nor beside the pipeline or ``reference``.
        BadModelError: the checkpoint is none, or one of them does not belong to it.
        OutputError: there is no room for the copy.
    """
    manifest = read_manifest(path) if path.is_dir() else {}
    added = any(manifest.get(key) for key in ("adapters", "words", MADE_WITH))
    if holds_onnx(reference) or not (added or _must_be_made(reference)):
        yield reference
        return
    if not _must_be_made(reference):
        check_checkpoint(reference)
    places = [path.resolve().parent, reference.resolve().parent]
    with checkpoint_folder(reference, manifest, places) as made:
        yield made


def _must_be_made(path: Path) -> bool:
    """Whether a checkpoint is no diffusers pipeline as torch loads it by default: a single file, a VAE alone, or one
    whose weights are of a variant."""
    return path.is_file() or (path.is_dir() and (holds_vae(path) or needs_variants(path)))


def _is_pipeline(path: Path) -> bool:
    if os.path.isfile(path):
        return not holds_onnx(path)
    return os.path.isdir(path) and (holds_onnx(path) or os.path.isfile(path / INDEX) or holds_vae(path))


_LONGEST_CHAIN = 16
"""Pipelines that are made of each other; more are manifests that lead in a circle."""


@contextmanager
def checkpoint_of(path: Path, chain: int = _LONGEST_CHAIN) -> Iterator[Path]:
    """The diffusers folder of the checkpoint behind a pipeline: itself, or at the end of the chain of manifests.

    Args:
        chain: the most manifests to follow.

    Raises:
        UsageError: it is not known where it is.
    """
    if not holds_onnx(path):
        with checkpoint_folder(path, {}, ()) if _must_be_made(path) else nullcontext(path) as checkpoint:
            yield checkpoint
        return
    hint = "Name it: --checkpoint DIR|FILE."
    with original_of(path, hint) as source:
        if source is None or chain == 0:
            unknown = f"the checkpoint that {path} was made from is not known"
            raise unknown_original(path, unknown, hint)
        with checkpoint_of(source, chain - 1) as checkpoint:
            yield checkpoint


def unknown_original(path: Path, message: str, hint: str) -> UsageError:
    """The error for a pipeline whose original is not at hand."""
    manifest = read_manifest(path) if path.is_dir() else {}
    source = "" if "optimized" in manifest else manifest.get("source")
    where = f": {source}, which is neither where it was, nor here, nor beside {path}" if source else ""
    return UsageError(f"{message}{where}", hint=hint)


def open_reference(path: Path, provider: Provider, options: RuntimeOptions) -> Engine:
    """The engine for the pipeline in ``path``: ONNX Runtime, or torch in fp32 for a checkpoint."""
    if holds_onnx(path):
        return OnnxEngine(path, provider, options)
    return TorchEngine(path, _torch_provider(provider), "float32", device_id=options.device_id)


def _torch_provider(provider: Provider) -> Provider:
    """The CPU when torch is a CPU build, whatever ONNX Runtime runs on."""
    need_packages(*COMPARING, what=RUNNING)
    import torch

    return provider if torch.cuda.is_available() else CPU
