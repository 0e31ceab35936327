"""The trace cache: finished graphs without weights (:mod:`sdort.exporter.template`), one file per architecture.

A file is three parts: the SHA-256 of the other two in a line of its own, so that a damaged file is noticed and traced
again; a line of JSON; a serialised ModelProto. Files are written beside their place and renamed, so that two exports
at once do no harm.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from sdort.console import detail, warn
from sdort.exporter.signatures import LIBRARIES, ComponentSpec
from sdort.exporter.template import Template, TemplateBlob
from sdort.machine.version import __version__
from sdort.staging import staged_file

# Part of every key: raise it when a trace of the same architecture would come out differently.
_FORMAT = 3

# Packages that the traced graph depends on, apart from the architecture.
_PACKAGES = ("torch", "diffusers", "transformers", "onnxscript")


def trace_key(component: ComponentSpec, opset: int) -> str:
    """The name of a trace: a hash of everything it depends on. ``component.config`` is normalised."""
    text = json.dumps([_FORMAT, __version__, _versions(), asdict(component), opset], sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()


def _versions() -> dict[str, str]:
    # Without the local part: torch 2.13.0+cpu and 2.13.0+rocm7.1 trace the same graph.
    return {package: version(package).partition("+")[0] for package in _PACKAGES}


class TraceCache:
    """Templates and class defaults in a folder, which is made when the first one is stored.

    Args:
        keeps: False stores nothing.
    """

    def __init__(self, folder: Path, *, keeps: bool = True) -> None:
        self.folder = folder
        self.keeps = keeps

    def load(self, component: ComponentSpec, opset: int) -> Template | None:
        """The stored template; None if there is none that is whole."""
        path = self._path(component, opset)
        try:
            digest, _, content = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            warn(f"cannot read {path}: {error.strerror or error}; tracing again")
            return None
        if digest != hashlib.sha256(content).hexdigest().encode():
            warn(f"{path} is damaged (it was changed or cut off); tracing again")
            return None
        try:
            return _read(content)
        except (ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
            warn(f"{path} is damaged ({error}); tracing again")
            return None

    def has(self, component: ComponentSpec, opset: int) -> bool:
        """Whether there is a stored template, whole or not."""
        return self._path(component, opset).is_file()

    def store(self, component: ComponentSpec, opset: int, template: Template) -> None:
        """Keep a template; a folder that cannot be written costs a warning, not the export."""
        header = {"component": component.name, "class": component.class_name} | vars(template)
        header.pop("proto")
        content = json.dumps(header).encode() + b"\n" + template.proto.SerializeToString(deterministic=True)
        self._write(self._path(component, opset), hashlib.sha256(content).hexdigest().encode() + b"\n" + content)

    def defaults(self, class_name: str, compute: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """``compute(class_name)``, remembered per version of the library, which then need not be imported."""
        path = self.folder / f"{class_name}-{version(LIBRARIES[class_name])}.json"
        try:
            known = json.loads(path.read_bytes())
            if isinstance(known, dict) and known:
                return known
        except (OSError, ValueError):
            detail(f"reading the defaults of {class_name} from {LIBRARIES[class_name]}")
        known = compute(class_name)
        self._write(path, json.dumps(known, indent=1).encode())
        return known

    def _path(self, component: ComponentSpec, opset: int) -> Path:
        return self.folder / f"{component.name}-{trace_key(component, opset)[:32]}.trace"

    def _write(self, path: Path, content: bytes) -> None:
        if not self.keeps:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with staged_file(path) as file:
                file.write(content)
        except OSError as error:
            warn(f"cannot keep the trace in {self.folder}: {error.strerror or error}")


def _read(content: bytes) -> Template:
    header, _, proto = content.partition(b"\n")
    parts = json.loads(header)
    return Template(
        onnx.ModelProto.FromString(proto),
        {name: tuple(shape) for name, shape in parts["parameters"].items()},
        parts["data_bytes"],
        tuple(TemplateBlob(*blob) for blob in parts["blobs"]),
        parts["small"],
    )
