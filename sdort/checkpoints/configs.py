"""JSON files of pipelines and checkpoints: what they are called, their one reader and one writer."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sdort.checkpoints.config_schemas import MANIFEST_SCHEMA, PROCESSOR_FILES, component_schema
from sdort.checkpoints.json_schema import Kind
from sdort.checkpoints.lfs import MAGIC, pull_advice
from sdort.errors import BadModelError, OutputError
from sdort.errors.plain_text import encodable
from sdort.files.input_file import read_input
from sdort.files.json_text import parse_json
from sdort.files.model_folder import check_own_file

__all__ = [
    "CONFIG_BYTES",
    "INDEX",
    "MANIFEST",
    "TABLE_BYTES",
    "check_processor",
    "optional_config",
    "read_component_config",
    "read_config",
    "read_manifest",
    "write_json",
]

INDEX = "model_index.json"
"""The file that makes a folder a pipeline: its classes and those of its components, as diffusers wrote it."""


MANIFEST = "sdort.json"
"""The file in a pipeline's folder that says what made it, and of what."""

CONFIG_BYTES, TABLE_BYTES = 1 << 20, 16 << 20
"""The most bytes of a config, which has a few kB, and of a table, such as a vocabulary or an index of shards, which has
up to a few MB. Python takes up to 30 times as much memory for a hostile one."""
_EXPORT_AGAIN = "Export the pipeline again."


def read_config(
    path: Path,
    what: str = "",
    hint: str = _EXPORT_AGAIN,
    *,
    schema: Kind | None = None,
    infinity: bool = False,
    limit: int = CONFIG_BYTES,
) -> dict[str, Any]:
    """A JSON object from a file.

    Args:
        what: which file it is, for messages, such as ``the config``.
        hint: what to do where it is broken.
        schema: what its values may be.
        infinity: also take ``-Infinity``, which diffusers writes.
        limit: the most bytes that it may have.

    Raises:
        BadModelError: it is missing, unreadable, too large, no JSON, no object, or not as the schema says.
    """
    name = f"{what} {path}".lstrip()
    content = read_input(path, what, limit=limit, hint=hint)
    if content.startswith(MAGIC):
        raise BadModelError(f"{name} is a git-lfs pointer, not the file itself", hint=pull_advice(path))
    try:
        config = parse_json(content, infinity=infinity)
    except ValueError as error:
        raise BadModelError(f"{name} {error}", hint=hint) from error
    if not isinstance(config, dict):
        raise BadModelError(f"{name} is no JSON object", hint=hint)
    if schema and (problem := schema.problem(config, "")):
        raise BadModelError(f"{name}: {problem}", hint=hint)
    return config


def optional_config(path: Path, schema: Kind | None = None) -> dict[str, Any]:
    """:func:`read_config`, empty where there is no such file.

    Raises:
        BadModelError: as :func:`read_config`.
    """
    return read_config(path, schema=schema) if os.path.lexists(path) else {}


def read_component_config(path: Path, component: str) -> dict[str, Any]:
    """A component's ``config.json``, empty where there is none.

    Raises:
        BadModelError: as :func:`read_config`.
    """
    return optional_config(path, component_schema(component))


def read_manifest(folder: Path) -> dict[str, Any]:
    """A pipeline's ``sdort.json``, empty where there is none: it comes from elsewhere.

    Raises:
        BadModelError: as :func:`read_config`; or it is a link out of the folder.
    """
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return {}
    check_own_file(path, folder)
    return read_config(path, schema=MANIFEST_SCHEMA, limit=TABLE_BYTES)


def check_processor(folder: Path, hint: str = _EXPORT_AGAIN, besides: Collection[str] = ()) -> None:
    """Read the JSON files of a scheduler, a tokenizer or a feature extractor, for the library that will.

    Args:
        besides: files that were read before.

    Raises:
        BadModelError: as :func:`read_config`.
    """
    for path in sorted(folder.glob("*.json")):
        if path.name in besides:
            continue
        schema = PROCESSOR_FILES.get(path.name)
        read_config(path, hint=hint, schema=schema, infinity=path.parent.name == "scheduler", limit=TABLE_BYTES)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, indented by two as diffusers does.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        text = encodable(json.dumps(content, indent=2, ensure_ascii=False))  # a half of a surrogate pair as JSON has it
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
