"""What importing an integration imports: programs pay for it at every start, ComfyUI with every node folder."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from sdort.integrations import torch, torch_operators

HEAVY = {"diffusers", "transformers", "peft", "onnxruntime", "torch._dynamo", "sympy"}
"""Libraries, and parts of torch, that take from half a second to three."""


@pytest.mark.parametrize(
    "module",
    [
        "sdort.integrations.torch",
        "sdort.integrations.torch.tensor_session",
        "sdort.integrations.torch.opened_component",
        "sdort.integrations.torch_operators",
        "sdort.integrations.comfyui.nodes",
    ],
)
def test_an_import_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert module in result.stdout.split()
    assert HEAVY & set(result.stdout.split()) == set()


@pytest.mark.parametrize("package", [torch, torch_operators])
def test_every_public_name_is_there(package: ModuleType) -> None:
    assert {name for name in package.__all__ if getattr(package, name) is None} == set()
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
