"""JSON configs in a pipeline's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sdort.errors import BadModelError


def read_config(path: Path) -> dict[str, Any]:
    """A JSON object from a pipeline's folder.

    Raises:
        BadModelError: it is missing, unreadable or not an object.
    """
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadModelError(f"cannot read {path}: {reason}", hint="Export the pipeline again.") from error
    if not isinstance(config, dict):
        raise BadModelError(f"{path} is not a JSON object", hint="Export the pipeline again.")
    return config
