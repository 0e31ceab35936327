"""OpenVINO's plugin, which computes on Intel's processors alone, as a library that takes those of other vendors too.

It really computes: only ONNX Runtime's answer to whose processor this is comes from ``any_vendor.c``.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support import native

from sdort.providers import plugins
from sdort.providers.plugins import PluginLibrary
from sdort.providers.provider import Plugin

PACKAGE = "onnxruntime-ep-openvino"
_SOURCE = Path(__file__).with_name("any_vendor.c")


@cache
def openvino_library() -> str:
    """Path of the library; the test is skipped where the plugin is not installed."""
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        pytest.skip("onnxruntime-ep-openvino is not installed")
    plugin = importlib.import_module("onnxruntime_ep_openvino").get_library_path()

    def build(folder: Path) -> None:
        folder.mkdir()
        command = ["cc", "-shared", "-fPIC", "-O1", f'-DPLUGIN="{plugin}"', str(_SOURCE), "-ldl"]
        subprocess.run([*command, "-o", str(folder / "libany_vendor.so")], check=True)

    return str(native.built({"any_vendor.c": _SOURCE.read_bytes(), "": plugin.encode()}, build) / "libany_vendor.so")


def stand_in() -> None:
    """Have sdort find this library in the place of the installed package's, in this process.

    Whichever is registered first answers for both: they share what the plugin keeps for its process.
    """
    own = plugins.installed_plugin

    def installed(plugin: Plugin) -> PluginLibrary | None:
        found = own(plugin)
        return replace(found, path=Path(openvino_library())) if found and plugin.package == PACKAGE else found

    installed.cache_clear = own.cache_clear  # type: ignore[attr-defined]
    plugins.installed_plugin = installed  # type: ignore[assignment]
