"""The trace cache: graphs without weights, one file per traced architecture.

A file is one line of JSON and a serialized ModelProto whose parameters have names, shapes and no data. The line
holds the proto's SHA-256, so a damaged file is noticed and traced again. Files are written beside their place and
renamed, so that two exports at once do no harm.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from sdort import __version__
from sdort.console import detail, warn
from sdort.export.components import LIBRARIES, Component
from sdort.staging import staged_file

# Part of every key: raise it when a trace of the same architecture would come out differently.
_FORMAT = 2

# What the traced graph depends on, apart from the architecture.
_PACKAGES = ("torch", "diffusers", "transformers", "onnxscript")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """A graph without weights.

    ``parameters`` are all parameters of the traced module, also those that the graph does not use (the two halves of
    an autoencoder share one checkpoint). Those that it uses are external initializers of the same name.
    """

    proto: onnx.ModelProto
    parameters: Mapping[str, Shape]


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/sdort/traces``, by default below ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sdort" / "traces"


def trace_key(component: Component, opset: int) -> str:
    """The name of a trace: a hash of everything it depends on. ``component.config`` is normalised."""
    text = json.dumps([_FORMAT, __version__, _versions(), asdict(component), opset], sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()


def _versions() -> dict[str, str]:
    # Without the local part: torch 2.13.0+cpu and 2.13.0+rocm7.1 trace the same graph.
    return {package: version(package).partition("+")[0] for package in _PACKAGES}


class TraceCache:
    """Traces and class defaults in a folder, which is made when the first one is stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, component: Component, opset: int) -> Trace | None:
        """The stored trace, or None if there is none that is whole."""
        path = self._path(component, opset)
        try:
            header, _, body = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            warn(f"cannot read {path}: {error.strerror or error}; tracing again")
            return None
        try:
            parsed = json.loads(header)
            if parsed["sha256"] != hashlib.sha256(body).hexdigest():
                raise ValueError("it was changed or cut off")
            shapes = {str(name): tuple(shape) for name, shape in parsed["parameters"].items()}
            return Trace(onnx.ModelProto.FromString(body), shapes)
        except (ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
            warn(f"{path} is damaged ({error}); tracing again")
            return None

    def store(self, component: Component, opset: int, trace: Trace) -> None:
        """Keep a trace; a folder that cannot be written costs a warning, not the export."""
        body = trace.proto.SerializeToString(deterministic=True)
        header = {
            "component": component.name,
            "class": component.class_name,
            "sha256": hashlib.sha256(body).hexdigest(),
            "parameters": trace.parameters,
        }
        self._write(self._path(component, opset), json.dumps(header).encode() + b"\n" + body)

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

    def _path(self, component: Component, opset: int) -> Path:
        return self.folder / f"{component.name}-{trace_key(component, opset)[:32]}.trace"

    def _write(self, path: Path, content: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with staged_file(path) as file:
                file.write(content)
        except OSError as error:
            warn(f"cannot keep the trace in {self.folder}: {error.strerror or error}")
