"""A checkpoint as a diffusers folder that torch can load: of a single file too, with all that an export added."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.adapters.embedding_file import EmbeddingChoice
from sdort.adapters.module_index import ADAPTED
from sdort.checkpoints.configs import INDEX, MANIFEST, write_json
from sdort.checkpoints.safetensors import write_tensors
from sdort.console import progress, say
from sdort.errors import BadModelError, SdortError, UsageError
from sdort.exporter.adaptation import Adaptation, adapt
from sdort.exporter.checkpoint import ANY_VARIANT, needs_variants
from sdort.exporter.open_source import open_source
from sdort.exporter.replacements import MadeWith
from sdort.exporter.signatures import LIBRARIES, VAES
from sdort.exporter.source import Source, component_config, entry_of
from sdort.exporter.trace_cache import TraceCache
from sdort.families.data import sdxl
from sdort.families.unet import UNET
from sdort.files.disk import PlannedWrite, plan_writes
from sdort.files.file_digest import file_digest
from sdort.files.staging import temporary_folder
from sdort.graph.weights import Weight
from sdort.machine.optional_packages import COMPARING, RUNNING, need_packages
from sdort.tables import size_text

_WEIGHTS = {"diffusers": "diffusion_pytorch_model.safetensors", "transformers": "model.safetensors"}
_LOADED = (".json", ".txt", ".safetensors")
_PARTS = (*ADAPTED, "vae")
_ASKED = (UNET.component, "vae", "text_encoder", "tokenizer", "scheduler", "feature_extractor", "safety_checker")
_XL = sdxl.FAMILY.encoders
_ASKED_XL = (UNET.component, "vae", *(each.component for each in _XL), *(each.tokenizer for each in _XL), "scheduler")
"""Parts that diffusers asks for and that a source may lack, of Stable Diffusion and of XL."""

Tensors = Mapping[str, Mapping[str, Weight]]


@contextmanager
def checkpoint_folder(checkpoint: Path, manifest: Mapping[str, Any], places: Sequence[Path]) -> Iterator[Path]:
    """A checkpoint with what an export's manifest records, as a temporary diffusers folder of the checkpoint's name.

    Weights that stay as they are have the precision of the checkpoint, and are linked where the checkpoint is a folder.

    Args:
        checkpoint: a diffusers folder, or a single file, which sdort's own reader takes apart; of a pickle torch's
            restricted unpickler reads the tensors.
        manifest: may record adapters and words, another VAE or scheduler, and how the checkpoint was read.
        places: folders where the files of adapters and embeddings and other parts are looked for, if they moved.

    Raises:
        MissingPackageError: torch, diffusers or transformers is not installed; nothing is written then.
        UsageError: one of these files is not there, or another one is.
        BadModelError: the checkpoint or a file is broken, or they do not belong together.
        OutputError: there is no room for it.
    """
    need_packages(*COMPARING, what=RUNNING)
    adapters = [AdapterChoice(_find(entry, places), entry["scale"]) for entry in manifest.get("adapters") or []]
    words = [EmbeddingChoice(_find(entry, places), entry["word"]) for entry in manifest.get("words") or []]
    made = MadeWith.of_manifest(manifest, places)
    replaced = made.for_folder if checkpoint.is_dir() else made.replaced
    pickled = made.allow_pickle or checkpoint.is_file()
    made = replace(made, variant=made.variant or ANY_VARIANT)
    with (
        temporary_folder("checkpoint") as folder,
        open_source(
            str(checkpoint), variant=made.variant, allow_pickle=pickled, downloads=False, replaced=replaced
        ) as source,
    ):
        out = folder / (checkpoint.resolve().name or "checkpoint")
        _write(source, out, made, adapters, words)
        yield out


def _find(entry: Mapping[str, Any], places: Sequence[Path]) -> Path:
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


def _write(
    source: Source, out: Path, made: MadeWith, adapters: Sequence[AdapterChoice], words: Sequence[EmbeddingChoice]
) -> None:
    parts = [name for name in _PARTS if entry_of(source.index, name)]
    if not parts:
        raise BadModelError(f"{source.name} has no part that torch could be compared in")
    tensors: Tensors = {name: source.read_tensors(name, name, made.variant, made.allow_pickle) for name in parts}
    adapted = adapt({name: each for name, each in tensors.items() if name in ADAPTED}, adapters, words, source.part)
    written = {name: adapted.tensors.get(name, tensors[name]) for name in _written(source, made, tensors, adapted)}
    size = sum(weight.nbytes for weights in written.values() for weight in weights.values())
    plan_writes([PlannedWrite("checkpoint", out, size)]).raise_if_short()
    with progress(f"preparing {source.name} for torch"):
        _copy_parts(source, out, written)
        for name, weights in written.items():
            write_tensors(out / name / _file_name(source, name), weights)
        _write_configs(source, out, adapted)
    added = [f"{choice.path.name} at {choice.scale:g}" for choice in adapters] + [choice.path.name for choice in words]
    told = f" with {', '.join([*made.told, *added])}" if added or made.told else ""
    say(f"for torch: {source.name}{told}{f': {size_text(size)} of temporary files' if size else ''}")


def _written(source: Source, made: MadeWith, tensors: Tensors, adapted: Adaptation) -> list[str]:
    """The parts whose weights do not lie in a folder as diffusers would load them."""
    if made.variant != ANY_VARIANT or made.allow_pickle or (source.folder.is_dir() and needs_variants(source.folder)):
        return list(tensors)
    return [
        name
        for name, weights in tensors.items()
        if name in source.tensors
        or any(weight is not weights[key] for key, weight in adapted.tensors.get(name, {}).items())
    ]


def _copy_parts(source: Source, out: Path, without_weights: Collection[str]) -> None:
    """Copy the folders of all parts; weights are linked."""
    out.mkdir()
    for name, entry in source.index.items():
        folder = source.part(name)
        if not isinstance(entry, list) or name == "safety_checker" or not folder.is_dir():
            continue

        def ignore(place: str, names: list[str], bare: bool = name in without_weights) -> list[str]:
            return [each for each in names if not _is_loaded(Path(place, each)) or (bare and ".safetensors" in each)]

        shutil.copytree(folder, out / name, copy_function=_link, ignore=ignore)


def _is_loaded(path: Path) -> bool:
    """Whether diffusers may load a file of a part, or look into a folder."""
    return not path.name.startswith(".") and (path.is_dir() or path.name.endswith(_LOADED))


def _write_configs(source: Source, out: Path, adapted: Adaptation) -> None:
    """Write the index, with all that diffusers asks for, and what words change in configs and tokenizers."""
    kind = str(source.index["_class_name"])
    kind = "StableDiffusionPipeline" if kind in VAES else kind
    lacking = {name: [None, None] for name in (_ASKED_XL if "XL" in kind else _ASKED)}
    write_json(out / INDEX, {**lacking, **source.index, "_class_name": kind})
    cache = TraceCache(out, keeps=False)
    for name in adapted.words.extensions:
        write_json(out / name / "config.json", adapted.words.config(name, component_config(source, name, cache)))
    adapted.words.write(out)


def _file_name(source: Source, name: str) -> str:
    entry = entry_of(source.index, name)
    return _WEIGHTS[LIBRARIES[entry[1]]] if entry else ""


def _link(source: str, target: str) -> None:
    """Weights are gigabytes and stay as they are; what may be written to is copied."""
    if source.endswith(".safetensors"):
        with suppress(OSError):  # another file system, or one without links
            os.link(os.path.realpath(source), target)
            return
    shutil.copyfile(source, target)
