"""JSON files of pipelines and checkpoints: what they are called, their one reader and one writer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdort.errors import BadModelError, OutputError
from sdort.errors.plain_text import encodable
from sdort.machine.input_file import read_input

INDEX = "model_index.json"
"""The file that makes a folder a pipeline: its classes and those of its components, as diffusers wrote it."""

MAX_CONFIG = 64 << 20
"""Upper bound in bytes of a JSON file; the index of a checkpoint's shards has some hundred thousand."""

MANIFEST = "sdort.json"
"""The file in a pipeline's folder that says what made it, and of what."""


def read_config(path: Path, what: str = "", hint: str = "Export the pipeline again.") -> dict[str, Any]:
    """A JSON object from a file.

    Args:
        what: which file it is, for messages, such as ``the config``.
        hint: what to do where it is broken.

    Raises:
        BadModelError: it is missing, unreadable, no JSON or no object.
    """
    name = f"{what} {path}".lstrip()
    try:
        config = json.loads(read_input(path, what, limit=MAX_CONFIG, hint=hint))
    except (ValueError, RecursionError) as error:
        raise BadModelError(f"{name} is no JSON ({error})", hint=hint) from error
    if not isinstance(config, dict):
        raise BadModelError(f"{name} is no JSON object", hint=hint)
    return config


def optional_config(path: Path) -> dict[str, Any]:
    """:func:`read_config`, empty where there is no such file.

    Raises:
        BadModelError: as :func:`read_config`.
    """
    return read_config(path) if os.path.lexists(path) else {}


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
