"""Machines of these tests have no plugins, whatever the one that runs them has."""

from __future__ import annotations

import pytest

from sdort.providers import plugins


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "installed_plugin", lambda plugin: None)
