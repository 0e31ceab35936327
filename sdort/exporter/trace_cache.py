"""The trace cache: finished graphs without weights (:mod:`sdort.exporter.template`), one file per architecture.

What traced is in the key by its content: the sources of diffusers, transformers and sdort's own passes, so that an
edited one of the same version has traces of its own. torch, onnx and onnxscript are in it by their versions: they are
compiled, or 50 MB of sources, and nobody edits them in place.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sdort.console import detail, warn
from sdort.errors import BadModelError
from sdort.exporter.signatures import LIBRARIES, ComponentSpec
from sdort.exporter.template import Template, pack, unpack
from sdort.families.text_models import TEXT_MODELS
from sdort.files.package_sources import PackageSources, package_folder, process_start_ns, read_sources
from sdort.files.verified_cache import VerifiedCache
from sdort.machine.optional_packages import TRACING, need_packages
from sdort.machine.version import __version__
from sdort.onnx_io.expression_json import UNREADABLE
from sdort.onnx_io.wire import MAX_GRAPH_BYTES

FORMAT = 4
"""Part of every key: raise it when the form of an entry changes."""

SOURCES: Mapping[str, Mapping[str, Collection[str]]] = {
    "diffusers": {"pipelines": (), "modular_pipelines": ()},
    "transformers": {"models": ("auto", *sorted({model.sources for model in TEXT_MODELS.values()}))},
    "sdort": {"": ("exporter", "families", "graph", "onnx_io", "operators", "passes", "rewrite")},
}
"""Packages whose sources a trace passes through -> as ``only`` of :func:`read_sources`: not other models' sources."""

_PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript", "numpy")

_SAME_SOURCE = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$")
"""Ends of versions of torch that tell builds of one source apart; that of a build of one's own names the commit."""

_MAX_DEFAULTS, _MAX_MEMO = 1 << 20, 4096


def trace_key(component: ComponentSpec, opset: int, sources: Mapping[str, str]) -> dict[str, Any]:
    """Everything that a trace depends on, as JSON values.

    Args:
        component: its config is normalised.
        sources: package -> hash of its sources.
    """
    return {
        "format": FORMAT,
        "sdort": __version__,
        "python": platform.python_version_tuple()[:2],
        "versions": _versions(),
        "sources": dict(sources),
        "component": json.loads(json.dumps(asdict(component), default=dict)),
        "opset": opset,
    }


@cache
def _versions() -> dict[str, str]:
    need_packages(*TRACING, what="tracing")
    return {package: _SAME_SOURCE.sub("", version(package)) for package in _PACKAGES}


class TraceCache:
    """Templates and class defaults in a folder, which is made when the first one is stored.

    Args:
        keeps: False stores nothing.
    """

    def __init__(self, folder: Path, *, keeps: bool = True) -> None:
        self.folder = folder
        self._traces = VerifiedCache(folder, "the trace", ".trace", MAX_GRAPH_BYTES, keeps)
        self._defaults = VerifiedCache(folder, "the defaults", ".defaults", _MAX_DEFAULTS, keeps)
        self._memo = VerifiedCache(folder, "the hash of sources", ".sources", _MAX_MEMO, keeps)

    @cached_property
    def sources(self) -> Mapping[str, PackageSources]:
        """Of each package of :data:`SOURCES`."""
        return {name: read_sources(package_folder(name), self._memo, only) for name, only in SOURCES.items()}

    def load(self, component: ComponentSpec, opset: int) -> Template | None:
        """The stored template; None if there is none that is whole."""
        content = self._traces.load(component.name, self._key(component, opset))
        if content is None:
            return None
        try:
            return unpack(content, component.name)
        except (BadModelError, *UNREADABLE) as error:
            path = self._traces.path(component.name, self._key(component, opset))
            warn(f"the trace {path} is damaged ({error}); it is made anew")
            return None

    def has(self, component: ComponentSpec, opset: int) -> bool:
        """Whether there is a stored template, whole or not."""
        return os.path.isfile(self._traces.path(component.name, self._key(component, opset)))

    def store(self, component: ComponentSpec, opset: int, template: Template) -> None:
        """Keep a template; a folder that cannot be written costs a warning, not the export."""
        if self._is_current(SOURCES):
            self._traces.store(component.name, self._key(component, opset), pack(template))

    def defaults(self, class_name: str, compute: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """``compute(class_name)``, remembered per state of the library, which then need not be imported."""
        library = LIBRARIES[class_name].partition(".")[0]
        sources = {name: self.sources[name].digest for name in (library, "sdort")}
        key = {"format": FORMAT, "class": class_name, "python": platform.python_version_tuple()[:2], "sources": sources}
        known: Any = self._defaults.load_json(class_name, key)
        if not isinstance(known, dict) or not known:
            detail(f"reading the defaults of {class_name} from {library}")
            known = compute(class_name)
            if self._is_current((library, "sdort")):
                self._defaults.store(class_name, key, json.dumps(known).encode())
        return dict(known)

    def _key(self, component: ComponentSpec, opset: int) -> dict[str, Any]:
        return trace_key(component, opset, {name: sources.digest for name, sources in self.sources.items()})

    def _is_current(self, packages: Collection[str]) -> bool:
        """Whether what this process imported is what was hashed: nothing changed since it began."""
        latest = process_start_ns() + 1_000_000_000
        changed = [name for name in packages if self.sources[name].changed_ns > latest]
        if changed:
            warn(f"the sources of {', '.join(changed)} changed while this process ran: its traces are not kept")
        return not changed
