"""Pipelines that a test has changed, as if sdort had written them so."""

from __future__ import annotations

import json
from pathlib import Path

from sdort.pipelines.manifest import write_listed_files


def relist(folder: Path) -> None:
    """Write the list of a pipeline's files anew, where it has one: what was changed is not taken for damage."""
    manifest = folder / "sdort.json"
    if manifest.is_file():
        content = json.loads(manifest.read_text())
        content.pop("files", None)
        write_listed_files(folder, content, {})
