"""Paths that are no pipeline: what they are instead, and what to give in their place."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sdort.checkpoints.configs import INDEX
from sdort.checkpoints.file_kind import drawing_advice, recognise_file
from sdort.checkpoints.lfs import refuse_pointer
from sdort.checkpoints.weight_names import Kind
from sdort.errors import BadModelError, UsageError, nearest_name
from sdort.files.input_file import read_input
from sdort.files.model_folder import check_own_file
from sdort.onnx_io.components import walk

HUB_ID = re.compile(r"[\w][\w.-]*/[\w.-]+")
"""``owner/name`` on the Hugging Face hub."""

_REVISION = re.compile(r"[0-9a-f]{7,64}")
"""A commit of the hub's, which names the folder of its snapshot."""

_MODEL_FILES = (".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".gguf", ".engine", ".plan", ".crdownload", ".part")
_ALIKE = 0.75
"""Likeness of names above which one is taken for the other misspelt: other files have similar names by design."""

_SHOWN = 5
"""Names of files that a message has."""
_ENTRIES = 1000
"""Entries of a folder that are looked at: a home or a download folder may have very many."""


def in_home(text: str) -> Path:
    """The path that ``~`` or ``~name`` at the beginning of a text means; the text where there is no such home."""
    try:
        return Path(os.path.expanduser(text))
    except ValueError:  # a name with NUL
        return Path(text)


def not_there(model: str, names: tuple[str, ...] = ()) -> UsageError:
    """The error for a path that does not exist.

    Args:
        names: names that the user may also have meant, such as ``demo``.
    """
    if match := re.match(r"https?://(?:www\.)?huggingface\.co/([\w.-]+/[\w.-]+)", model):
        return UsageError(f"{model} is an address", hint=f"Give the hub id:\n    sdort export {match[1]} OUT")
    path = in_home(model)
    if os.path.islink(path):
        hint = "What it points to was moved or removed: make the link again."
        return UsageError(f"{model} is a link to {os.readlink(path)}, which does not exist", hint=hint)
    siblings = [entry.name for entry in _entries(path.parent)]
    if close := nearest_name(path.name, siblings, _ALIKE):
        return UsageError(f"{model} does not exist", hint=f"Is it {path.with_name(close)}?")
    kind, colon, _ = model.partition(":")
    if alike := [name for name in names if colon and name.startswith(kind + colon)]:
        return UsageError(f"{model} does not exist", hint=f"There are {', '.join(alike)}.")
    if close := nearest_name(model.lower(), names, _ALIKE):
        return UsageError(f"{model} does not exist", hint=f"Is it {close}?")
    return UsageError(
        f"{model} does not exist", hint="MODEL is a diffusers directory, a hub id such as owner/name, or demo."
    )


def no_diffusers_pipeline(path: Path) -> BadModelError:
    """The error for a file or folder that is given to be exported and has no ``model_index.json``."""
    if not path.is_dir():
        found = recognise_file(path)
        return BadModelError(f"{path} is {found.what}, not a model that sdort exports", hint=found.advice)
    if error := _deeper(path, "export"):
        return error
    if next(_graphs(path), None):
        return BadModelError(
            f"{path} holds ONNX graphs, and no weights to export",
            hint=f"The next step:\n    sdort optimize {shlex.quote(str(path))} OUT",
        )
    if error := _higher(path, "export") or _lone_file(path):
        return error
    return BadModelError(
        f"{path} is no diffusers pipeline: it has no {INDEX}" if any(_entries(path)) else f"{path} is empty",
        hint=f"Give the folder that holds {INDEX}; save one with DiffusionPipeline.save_pretrained.",
    )


def refuse_other(path: Path, *, unknown: bool = True) -> None:
    """Refuse what exists and is neither a checkpoint nor a file or folder of ONNX models: nothing to draw with.

    Args:
        unknown: a file of an unknown kind, which may hold an ONNX model under another name, is left to its reader.

    Raises:
        BadModelError: what it is, and what to do with it.
    """
    if path.is_dir():
        if not ((path / INDEX).is_file() or next(_graphs(path), None)):
            raise _no_pipeline(path)
        return
    if not path.exists() or path.suffix == ".onnx":
        return
    found = recognise_file(path)
    left = unknown and path.suffix != ".safetensors" and found.kind is Kind.UNKNOWN
    if not left and found.kind not in (Kind.CHECKPOINT, Kind.UNET, Kind.DENOISER, Kind.ONNX):
        raise BadModelError(f"{path} is {found.what}, not a model that sdort runs", hint=drawing_advice(path, found))


def _no_pipeline(folder: Path) -> BadModelError:
    """The error for a folder without a pipeline: where one is, or which files could be meant."""
    if error := _deeper(folder, None) or _higher(folder, None):
        return error
    files = [file for file in _entries(folder) if file.suffix.lower() == ".safetensors" and file.is_file()]
    models = [file for file in files if recognise_file(file).kind in (Kind.CHECKPOINT, Kind.UNET, Kind.DENOISER)]
    if models:
        hint = "Give one of them:\n" + "\n".join(f"    {shlex.quote(str(file))}" for file in models[:_SHOWN])
        more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
        names = ", ".join(file.name for file in models[:_SHOWN])
        return BadModelError(f"{folder} is no pipeline, but a folder of checkpoints: {names}{more}", hint=hint)
    if error := _lone_file(folder):
        return error
    return BadModelError(
        f"{folder} is no pipeline: it has neither {INDEX} nor ONNX models",
        hint="Give a diffusers folder, one of sdort export, or a single file.",
    )


def holds_models(folder: Path) -> bool:
    """Whether ONNX models lie in a folder or one below it, as a pipeline has them."""
    return any(folder.glob("*.onnx")) or any(folder.glob("*/*.onnx"))


def check_graphs(folder: Path) -> list[Path]:
    """The ONNX graphs anywhere below a folder, which lie there and are none of git-lfs's pointers; nor are their data.

    Raises:
        BadModelError: a pointer, or a link out of the folder.
    """
    graphs = list(_graphs(folder))
    for graph in graphs:
        for file in (graph, graph.with_name(f"{graph.name}.data")):
            check_own_file(file, folder)
            refuse_pointer(file)
    return graphs


def expect_onnx(path: Path, *, nested: bool = False) -> None:
    """Raise an error that says what ``path`` is, if it is known and holds no ONNX models.

    Args:
        nested: models anywhere below ``path`` are taken, also those of whole pipelines.

    Raises:
        UsageError: there is nothing.
        BadModelError: it is something else, a pointer of git-lfs, or a link out of the folder.
    """
    if not path.exists():
        raise _no_onnx_there(str(path))
    if not path.is_dir():
        refuse_pointer(path)
        found = None if path.suffix == ".onnx" else recognise_file(path)
        if found and found.kind is not Kind.UNKNOWN:
            raise BadModelError(f"{path} is {found.what}, not an ONNX model", hint=found.advice)
        return
    graphs = check_graphs(path)
    if graphs and (nested or (path / INDEX).is_file() or any(len(g.relative_to(path).parts) < 3 for g in graphs)):
        return
    if (path / INDEX).is_file():
        raise BadModelError(
            f"{path} is a diffusers pipeline, which is not exported yet",
            hint=f"Export it first:\n    sdort export {shlex.quote(str(path))} OUT",
        )
    error = _deeper(path, None if graphs else "export")
    if not graphs:
        error = error or _higher(path, "export") or _lone_file(path)
    if error:
        raise error


def _no_onnx_there(text: str) -> UsageError:
    if HUB_ID.fullmatch(text) and not Path(text).parent.exists():
        return UsageError(
            f"{text} does not exist", hint=f"If it is a hub id, export it first:\n    sdort export {text} OUT"
        )
    error = not_there(text)
    if error.hint and error.hint.startswith("MODEL"):
        error.hint = "Make a pipeline with:\n    sdort export MODEL OUT"
    return error


def _higher(folder: Path, command: str | None) -> BadModelError | None:
    """The error for a component's folder: the pipeline is the folder above."""
    folder = folder.absolute()
    above = next((parent for parent in islice(folder.parents, 2) if (parent / INDEX).is_file()), None)
    if above is None:
        return None
    hint = _give(above, command, "Give the whole pipeline")
    return BadModelError(f"{folder} is a part of the pipeline {above}", hint=hint)


def _deeper(folder: Path, command: str | None) -> BadModelError | None:
    """The error for a folder with pipelines one or two folders below it, as in the hub's cache.

    Args:
        command: what to give such a folder to, for the hint; None for the command that was used.
    """
    folder = folder.absolute()
    if ids := [match[1] for entry in _entries(folder) if (match := re.fullmatch(r"models--(.+--.+)", entry.name))]:
        names = ", ".join(name.replace("--", "/", 1) for name in ids[:5])
        hint = "Give a hub id; what is in the cache is not downloaded again"
        hint += f":\n    sdort export {ids[0].replace('--', '/', 1)} OUT" if len(ids) == 1 else "."
        return BadModelError(f"{folder} is the hub's cache, with {names}", hint=hint)
    below = _below(folder)
    if len(below) == 1 and below[0].parent.name == "snapshots":  # models--OWNER--NAME/snapshots/HASH
        what = f"{folder} is a folder of the hub's cache, whose pipeline is a snapshot"
        return BadModelError(what, hint=_give(below[0], command, "Give the snapshot"))
    if len(below) == 1:
        what = f"{folder} is no pipeline, but {below[0].name} in it is one"
        return BadModelError(what, hint=_give(below[0], command, "Give that"))
    if below:
        names = ", ".join(str(path.relative_to(folder)) for path in below[:5])
        return BadModelError(f"{folder} holds several pipelines: {names}", hint="Give one of them.")
    return None


def _give(folder: Path, command: str | None, what: str) -> str:
    quoted = shlex.quote(str(folder))
    return f"{what}:\n    sdort {command} {quoted} OUT" if command else f"{what}:\n    {quoted}"


def _below(folder: Path) -> list[Path]:
    """The pipelines one or two folders deeper; of the hub's cache, where refs/main says which snapshot it is, that."""
    main = folder / "refs" / "main"
    if main.is_file():
        revision = read_input(main, limit=1024).decode(errors="replace").strip()
        snapshot = folder / "snapshots" / revision
        if _REVISION.fullmatch(revision) and (snapshot / INDEX).is_file():
            return [snapshot]
    children = [entry for entry in _entries(folder) if entry.is_dir() and not entry.name.startswith(".")]
    found = [child for child in children if (child / INDEX).is_file()]
    return found or [
        grandchild for child in children for grandchild in _entries(child) if (grandchild / INDEX).is_file()
    ]


def _lone_file(folder: Path) -> BadModelError | None:
    """The error for a folder whose only model is a file of another kind."""
    files = [entry for entry in _entries(folder) if entry.suffix.lower() in _MODEL_FILES and entry.is_file()]
    if len(files) != 1:
        return None
    found = recognise_file(files[0])
    return BadModelError(f"{folder} holds {files[0].name}, {found.what}, and no pipeline", hint=found.advice)


def _graphs(folder: Path) -> Iterator[Path]:
    return (path for path in walk(folder) if path.suffix == ".onnx")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(islice(folder.iterdir(), _ENTRIES))
    except (OSError, ValueError):  # ValueError: a name with NUL
        return []
