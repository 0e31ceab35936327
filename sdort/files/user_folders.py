"""The folders of the user in which sdort keeps what it can make again, and what it cannot, and the user's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_DATA_HOME/sdort``, by default below ``~/.local/share``."""
    configured = environ.get("XDG_DATA_HOME")
    home = os.path.expanduser(environ.get("HOME", "~"))
    return (Path(configured) if configured else Path(home, ".local", "share")) / "sdort"


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CONFIG_HOME/sdort/config.toml``, by default below ``~/.config``: what the user has sdort do always."""
    configured = environ.get("XDG_CONFIG_HOME")
    home = os.path.expanduser(environ.get("HOME", "~"))
    return (Path(configured) if configured else Path(home, ".config")) / "sdort" / "config.toml"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/sdort``, by default below ``~/.cache``."""
    configured = environ.get("XDG_CACHE_HOME")
    home = os.path.expanduser(environ.get("HOME", "~"))
    return (Path(configured) if configured else Path(home, ".cache")) / "sdort"


def traces_folder() -> Path:
    """``$XDG_CACHE_HOME/sdort/traces``, by default below ``~/.cache``: what ``sdort export`` traced."""
    return cache_folder() / "traces"


def schedules_folder() -> Path:
    """``$XDG_CACHE_HOME/sdort/schedules``, by default below ``~/.cache``: schedulers of ``sdort run`` as numbers."""
    return cache_folder() / "schedules"


def checked_folder() -> Path:
    """``$XDG_CACHE_HOME/sdort/checked``, by default below ``~/.cache``: the files that were compared with a list."""
    return cache_folder() / "checked"


def trials_folder() -> Path:
    """``$XDG_CACHE_HOME/sdort/trials``, by default below ``~/.cache``: which kernels were found to be right."""
    return cache_folder() / "trials"


def models_folder() -> Path:
    """``$XDG_CACHE_HOME/sdort/models``, by default below ``~/.cache``: checkpoints that were optimized on first use."""
    return cache_folder() / "models"
