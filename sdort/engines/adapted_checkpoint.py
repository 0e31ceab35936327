"""A checkpoint with the adapters and words that an export of it has, as a diffusers folder that torch can load."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sdort.console import progress
from sdort.errors import SdortError, UsageError
from sdort.exporter.adaptation import adapt
from sdort.exporter.signatures import LIBRARIES
from sdort.exporter.source import Source, component_config, entry_of, read_source
from sdort.exporter.trace_cache import TraceCache
from sdort.machine.disk import PlannedWrite, plan_writes
from sdort.machine.file_digest import file_digest
from sdort.model.weights import Cast, Weight
from sdort.pipelines.adapters.adapter_choice import AdapterChoice
from sdort.pipelines.adapters.embedding_file import EmbeddingChoice
from sdort.pipelines.adapters.module_index import ADAPTED
from sdort.pipelines.configs import MANIFEST, write_json
from sdort.pipelines.safetensors import write_tensors
from sdort.staging import temporary_folder

_WEIGHTS = {"diffusers": "diffusion_pytorch_model.safetensors", "transformers": "model.safetensors"}

_LOADED = (".json", ".txt", ".safetensors")


@contextmanager
def adapted_checkpoint(checkpoint: Path, manifest: Mapping[str, Any], places: Iterable[Path]) -> Iterator[Path]:
    """A checkpoint with what an export's manifest records: a temporary folder.

    Args:
        checkpoint: a diffusers folder.
        places: folders where the files of adapters and embeddings are looked for, if they moved.

    Raises:
        UsageError: one of these files is not there, or another one is.
        BadModelError: the checkpoint or a file is broken, or they do not belong together.
        OutputError: there is no room for it.
    """
    places = list(places)
    adapters = [AdapterChoice(_find(entry, places), entry["scale"]) for entry in manifest.get("adapters") or []]
    words = [EmbeddingChoice(_find(entry, places), entry["word"]) for entry in manifest.get("words") or []]
    with temporary_folder("adapted") as folder:
        out = folder / (checkpoint.resolve().name or "checkpoint")
        with progress("adding its adapters to the checkpoint"):
            _write(checkpoint, out, adapters, words)
        yield out


def _find(entry: Mapping[str, Any], places: Iterable[Path]) -> Path:
    """The file that a manifest records, known by its hash."""
    name = entry.get("word", entry.get("name"))
    path = Path(entry.get("path") or f"{name}.safetensors")
    for candidate in (path, *(place / path.name for place in places)):
        with suppress(SdortError, OSError):
            # A manifest that a stranger wrote opens no file of the user's: its writer does not know their sizes.
            if candidate.stat().st_size == entry.get("bytes") and file_digest(candidate) == entry.get("sha256"):
                return candidate
    if entry.get("bytes") is None:
        raise UsageError(
            f"{name!r} is in the weights, and {MANIFEST} does not say how many bytes its file {path} has, so that it "
            "is not opened",
            hint="An older sdort wrote it: export the checkpoint again.",
        )
    raise UsageError(
        f"{name!r} is in the weights, and its file {path} is not there, or is another one by now",
        hint=f"Put {path.name} beside the pipeline or the checkpoint.",
    )


def _write(checkpoint: Path, out: Path, adapters: list[AdapterChoice], words: list[EmbeddingChoice]) -> None:
    source = read_source(checkpoint, checkpoint.name)
    folders = [name for name in ADAPTED if entry_of(source.index, name)]
    tensors = {name: source.read_tensors(name, name, None, allow_pickle=False) for name in folders}
    adaptation = adapt(tensors, adapters, words, source.part)
    changed = {
        name: weights
        for name, weights in adaptation.tensors.items()
        if any(weight is not tensors[name][key] for key, weight in weights.items())
    }
    writes = [PlannedWrite(name, out, sum(map(_float_bytes, weights.values()))) for name, weights in changed.items()]
    plan_writes(writes).raise_if_short()
    shutil.copytree(checkpoint, out, copy_function=_link, ignore=_left_out(checkpoint, changed))
    for name, weights in changed.items():
        write_tensors(out / name / _file_name(source, name), {key: _as_float(each) for key, each in weights.items()})
    cache = TraceCache(out, keeps=False)
    for name in adaptation.words.extensions:
        write_json(out / name / "config.json", adaptation.words.config(name, component_config(source, name, cache)))
    adaptation.words.write(out)


def _file_name(source: Source, name: str) -> str:
    entry = entry_of(source.index, name)
    return _WEIGHTS[LIBRARIES[entry[1]]] if entry else ""


def _left_out(checkpoint: Path, folders: Iterable[str]) -> Callable[[str, list[str]], list[str]]:
    """What :func:`shutil.copytree` leaves out: weights of these folders, and all that diffusers does not load."""
    changed = {str(checkpoint / name) for name in folders}

    def ignore(place: str, names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if name.startswith(".")
            or (".safetensors" in name and place in changed)
            or not (Path(place, name).is_dir() or name.endswith(_LOADED))
        ]

    return ignore


def _link(source: str, target: str) -> None:
    """Weights are gigabytes and stay as they are; what may be written to is copied."""
    if source.endswith(".safetensors"):
        with suppress(OSError):  # another file system, or one without links
            os.link(os.path.realpath(source), target)
            return
    shutil.copyfile(source, target)


def _float_bytes(weight: Weight) -> int:
    return weight.nbytes // weight.dtype.itemsize * 4


def _as_float(weight: Weight) -> Weight:
    return weight if weight.dtype == "float32" else Cast(weight, "float32")
