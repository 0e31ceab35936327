"""sdort's tables of operators against what installed providers say of themselves."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.registered_kernels import Versions, has, registered

from sdort.graph.domains import MICROSOFT
from sdort.operators import load_operators
from sdort.providers import CPU, load_target

CHROMIUM = Path("/usr/lib/chromium")
"""Its software Vulkan, without which WebGPU's plugin makes no session on a machine without a GPU."""
_ASK_WEBGPU = """
import json, onnxruntime, onnxruntime_ep_webgpu as plugin
from support.registered_kernels import registered
onnxruntime.register_execution_provider_library("webgpu", plugin.get_library_path())
print(json.dumps(registered("WebGpuExecutionProvider")))
"""
NOT_WRITTEN = {
    "FusedConv": "of ONNX Runtime's own optimizer, which makes it when a session opens",
    "FusedMatMul": "of ONNX Runtime's own optimizer, which makes it when a session opens",
    "Attention": "packed weights are read by ROCm's and CUDA's kernels alone in graphs of sdort's",
}
"""Operators that files may have and that sdort writes for none of these providers, and why."""


@pytest.fixture(scope="module", params=["cpu", "webgpu"])
def provider(request: pytest.FixtureRequest) -> tuple[str, Versions]:
    """A provider and its kernels."""
    name: str = request.param
    return name, registered(CPU.ep) if name == "cpu" else webgpu()


def webgpu() -> Versions:
    if importlib.util.find_spec("onnxruntime_ep_webgpu") is None or not (CHROMIUM / "libvulkan.so.1").exists():
        pytest.skip("onnxruntime-ep-webgpu or Chromium's software Vulkan is not installed")
    environ = {
        **os.environ, "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1", "LD_LIBRARY_PATH": str(CHROMIUM),
        "VK_ICD_FILENAMES": str(CHROMIUM / "vk_swiftshader_icd.json"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _ASK_WEBGPU], env=environ, capture_output=True, text=True, check=True, timeout=120
    )
    found: Versions = json.loads(done.stdout.splitlines()[-1])
    return found


def test_an_operator_of_the_table_has_a_kernel(provider: tuple[str, Versions]) -> None:
    name, kernels = provider
    named = {each for each in load_target(name).conditions if each.startswith(MICROSOFT)}
    assert named
    assert named - kernels.keys() == set()


def test_a_kernel_of_an_operator_that_sdort_writes_is_in_the_table(provider: tuple[str, Versions]) -> None:
    name, kernels = provider
    target = load_target(name)
    written = {each.qualified_name for each in load_operators().values()}
    unused = {each for each in written & kernels.keys() if each.startswith(MICROSOFT)} - target.conditions.keys()
    assert {each.removeprefix(f"{MICROSOFT}.") for each in unused - target.doubted.keys()} <= NOT_WRITTEN.keys()


def test_what_the_table_says_is_missing_has_no_kernel(provider: tuple[str, Versions]) -> None:
    name, kernels = provider
    target = load_target(name)
    assert [each for each in target.missing if has(kernels, each, target.opset)] == []


def test_standard_operators_have_kernels_at_the_target_s_opset(provider: tuple[str, Versions]) -> None:
    name, kernels = provider
    for operator in ("Conv", "MatMul", "Gemm", "Softmax", "LayerNormalization", "InstanceNormalization", "Resize"):
        assert has(kernels, operator, load_target(name).opset), operator
