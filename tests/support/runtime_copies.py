"""Copies of ONNX Runtime that are not there: pretended ones, and folders of files as pip leaves them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from sdort.machine import distributions
from sdort.machine.onnxruntime_copies import Flavour, RuntimeCopy

PLACE = Path(sysconfig.get_paths()["purelib"]).resolve()
"""Where pip installs to."""


def pretend(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], *hidden: RuntimeCopy) -> None:
    """As if pip had installed these distributions, name -> version, and no others."""
    owners = tuple(Flavour(name, version) for name, version in sorted(versions.items()))
    found = [RuntimeCopy(PLACE, owners, ())] if owners else []
    monkeypatch.setattr(distributions, "installed_copies", lambda: [*found, *hidden])


def install(folder: Path, name: str, version: str, files: tuple[str, ...] = ("onnxruntime/__init__.py",)) -> Path:
    """Write a distribution's files into a folder of Python's path, over what is there, and the list of them."""
    record = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not this\n")
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"__version__ = {version!r}\n")
    listed = [*files, f"{record.name}/METADATA", f"{record.name}/RECORD"]
    (record / "RECORD").write_text("".join(f"{file},sha256=abc,10\n" for file in listed))
    return record
