"""The version of sdort: a module of its own, so that every other module can have it without the public names."""

from __future__ import annotations

__version__ = "0.1.0"
