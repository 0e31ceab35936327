"""Names for models: a file of the user's, which says where each lies. ``sdort run NAME`` finds it by that.

A name is not a path: whatever exists at a path of the same text comes before it, and that is told.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sdort.checkpoints.config_schemas import PUBLISHED_INDEX
from sdort.checkpoints.configs import INDEX, read_config
from sdort.console import document, warn
from sdort.demo import DEMO_NAMES
from sdort.errors import BadModelError, OutputError, UsageError, nearest_name
from sdort.errors.plain_text import cut
from sdort.exporter.component_configs import DOWNLOAD_AGAIN
from sdort.exporter.pipeline_parts import check_parts
from sdort.files.input_file import read_input
from sdort.files.json_text import parse_json
from sdort.files.staging import locked, write_atomically
from sdort.files.user_folders import data_folder
from sdort.options.option_types import typed
from sdort.pipelines.explain_path import in_home, not_there, refuse_other

_FILE = "names.json"
_NAME = re.compile(r"[^\W_][\w.+-]{0,99}")
_LIMIT = 1 << 20
_ALIKE = 0.7
_ENDS = (".safetensors", ".onnx", ".ckpt")


@document("name", 1)
@dataclass(frozen=True)
class NamedModel:
    """A model that has a name.

    Attributes:
        name: the name.
        path: its file or folder.
        exists: whether something is there.
    """

    name: str
    path: Path
    exists: bool


@document("names", 1)
@dataclass(frozen=True)
class NamedModels:
    """The models that have names.

    Attributes:
        models: in the order of their names.
    """

    models: list[NamedModel]


@typed
def add_model(path: str | Path, name: str | None = None, *, overwrite: bool = False) -> NamedModel:
    """Give a checkpoint or a pipeline a name, by which :func:`sdort.run` and the others find it; nothing is copied.

    Args:
        path: a single file (``.safetensors``), a diffusers folder, or a folder of ONNX models.
        name: letters, digits, and ``. _ + -`` after the first; by default the file's or folder's own.
        overwrite: take the name from another model that has it.

    Raises:
        UsageError: there is nothing at ``path``, or the name cannot be one or is taken.
        BadModelError: the file is none that can be drawn with, or the folder is of a pipeline with models that sdort
            does not export.
        OutputError: the names cannot be written.

    Example:
        >>> sdort.add_model("/data/models/dreamshaper_8.safetensors", "dreamshaper").name
        'dreamshaper'
    """
    found = in_home(str(path))
    if not found.exists():
        raise not_there(str(path))
    refuse_other(found, unknown=False)
    if (found / INDEX).is_file() and not any(found.glob("*/*.onnx")):
        index = read_config(found / INDEX, "the pipeline's index", DOWNLOAD_AGAIN, schema=PUBLISHED_INDEX)
        check_parts(index, found.resolve().name)
    found = found.absolute()
    chosen = _checked_name(
        name if name is not None else found.name.removesuffix(".safetensors"), given=name is not None
    )
    with _changing() as names:
        if chosen in names and names[chosen] != str(found) and not overwrite:
            raise UsageError(
                f"the name {chosen} is taken, by {names[chosen]}",
                hint="Choose another name, or take it with --overwrite.",
            )
        names[chosen] = str(found)
    if os.path.lexists(chosen):
        warn(f"there is a file or folder {chosen} here, which comes before the name: run sdort from another folder")
    return NamedModel(chosen, found, True)


@typed
def list_models() -> NamedModels:
    """List the models that have names.

    Raises:
        BadModelError: the file of names is broken.

    Example:
        >>> sdort.list_models().models
        []
    """
    return NamedModels([NamedModel(name, Path(path), os.path.exists(path)) for name, path in sorted(_read().items())])


@typed
def remove_model(name: str) -> NamedModel:
    """Take a name away; its model stays.

    Args:
        name: a name of :func:`add_model`.

    Raises:
        UsageError: no model has the name.
        OutputError: the names cannot be written.
    """
    with _changing() as names:
        if name not in names:
            raise unknown_name(name)
        path = names.pop(name)
    return NamedModel(name, Path(path), os.path.exists(path))


def names() -> list[str]:
    """All names, sorted.

    Raises:
        BadModelError: the file of names is broken.
    """
    return sorted(_read())


def path_of_name(name: str) -> Path | None:
    """Where the model of a name lies; None where nothing has that name.

    Raises:
        UsageError: it lies there no more.
    """
    path = _read().get(name) if _NAME.fullmatch(name) else None
    if path is None:
        return None
    if not os.path.exists(path):
        raise UsageError(
            f"{name} is the name of {path}, which is not there any more",
            hint=f"Say where it is now, or take the name away:\n    sdort add PATH {name} --overwrite\n"
            f"    sdort remove {name}",
        )
    return Path(path)


def unknown_name(name: str) -> UsageError:
    """The error for a name that no model has."""
    known = names()
    close = nearest_name(name, known, _ALIKE)
    hint = f"Is it {close}?" if close else "To see all names:\n    sdort list" if known else "sdort add gives names."
    return UsageError(f"no model has the name {cut(name)}", hint=hint)


def _checked_name(name: str, *, given: bool) -> str:
    problem = None
    if name in DEMO_NAMES:
        problem = "is the name of sdort's own model"
    elif name.endswith(_ENDS):
        problem = "ends as a file's does"
    elif not _NAME.fullmatch(name):
        problem = "is not of letters, digits and . _ + - alone, up to 100, a letter or digit first"
    if problem is None:
        return name
    hint = "Choose another name." if given else "Give a name behind the path."
    raise UsageError(f"the name {cut(repr(name))} {problem}", hint=hint)


def _read() -> dict[str, str]:
    path = data_folder() / _FILE
    if not os.path.lexists(path):
        return {}
    hint = f"Correct it, or begin anew without it:\n    rm {shlex.quote(str(path))}"
    try:
        content = parse_json(read_input(path, "the file of names", limit=_LIMIT, hint=hint))
    except ValueError as error:
        raise BadModelError(f"the file of names {path} {error}", hint=hint) from error
    names = content.get("names") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not all(_NAME.fullmatch(name) and _is_place(names[name]) for name in names):
        raise BadModelError(f"the file of names {path} holds something else", hint=hint)
    return dict(names)


def _is_place(value: object) -> bool:
    return isinstance(value, str) and os.path.isabs(value) and "\0" not in value


@contextmanager
def _changing() -> Iterator[dict[str, str]]:
    """The names, which are written if the block succeeds; no other process changes them meanwhile."""
    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".names.lock"):
            names = _read()
            before = dict(names)
            yield names
            if names != before:
                write_atomically(folder / _FILE, json.dumps({"names": names}, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise OutputError(f"cannot write in {folder}: {error.strerror or error}") from error
