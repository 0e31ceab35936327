"""The folder of what a user told sdort, and what sdort cannot make again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_DATA_HOME/sdort``, by default below ``~/.local/share``."""
    configured = environ.get("XDG_DATA_HOME")
    home = os.path.expanduser(environ.get("HOME", "~"))
    return (Path(configured) if configured else Path(home, ".local", "share")) / "sdort"
