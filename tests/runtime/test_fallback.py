"""A provider that is probed as good and then does not take a component: what ends with exit 6, and what goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from click.testing import CliRunner, Result
from support.tiny_pipeline import Tiny

from sdort.cli import cli
from sdort.generation.denoising import device_loop
from sdort.providers import CPU, PROVIDERS
from sdort.providers.provider import Provider
from sdort.runtime import opener, probe, session
from sdort.runtime.opener import NotLoadedError

ROCM = PROVIDERS["rocm"]
GONE = NotLoadedError(ROCM, "HIP failure 101: invalid device")
NO_KERNEL = RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no kernel for Conv")

Refuse = Callable[..., None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Lets rocm be found good, and ``error`` be raised where a component is opened on it."""
    real = opener.create_session

    def install(error: Exception, *components: str) -> None:
        def create(model: str | bytes, provider: Provider, *args: Any, **more: Any) -> Any:
            if provider.name != ROCM.name:
                return real(model, provider, *args, **more)
            if any(f"/{name}/" in str(model) for name in components):
                raise error
            return real(model, CPU, *args, **more)

        # Its memory is the host's: what takes the components is the CPU.
        monkeypatch.setitem(PROVIDERS, ROCM.name, replace(ROCM, device=CPU.device))
        for module in (session, device_loop):
            monkeypatch.setattr(module, "create_session", create)
        monkeypatch.setattr(probe, "_why_not", lambda *_: None)

    return install


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args])


def run(tiny: Tiny, tmp_path: Path, *args: str) -> Result:
    image = tmp_path / "x.png"
    return invoke("run", tiny.onnx, "--prompt", "x", "--steps", "1", "--json", "-o", image, "--provider", *args)


COMMANDS = {
    "run": ("run", "{tiny}", "--prompt", "x", "--steps", "1"),
    "bench": ("bench", "{tiny}", "--component", "unet", "--repeat", "1", "--warmup", "0"),
    "verify": ("verify", "{tiny}", "--against", "{tiny}", "--inputs", "random", "--no-images", "--no-torch"),
    "warm": ("warm", "{tiny}", "--component", "unet"),
    "inspect": ("inspect", "{tiny}", "--placement"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_named_provider_that_is_not_here_ends_every_command_before_anything_is_loaded(
    command: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "InferenceSession", None)
    result = invoke(*(arg.format(tiny=tiny.onnx) for arg in COMMANDS[command]), "--provider", "rocm")
    assert result.exit_code == 6, result.output
    assert "Error: rocm cannot be used: " in result.stderr
    assert "built without ROCMExecutionProvider" in result.stderr
    hint = "Without --placement nothing is opened" if command == "inspect" else "With --fallback it runs on the CPU"
    assert hint in result.stderr


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "warm"])  # whose keys need a real GPU
def test_a_session_without_the_named_provider_ends_every_command(
    command: str, tiny: Tiny, refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse(GONE, "unet", "text_encoder", "vae_decoder")
    result = invoke(*(arg.format(tiny=tiny.onnx) for arg in COMMANDS[command]), "--provider", "rocm")
    assert result.exit_code == 6, result.output
    assert "rocm does not load: HIP failure 101" in result.stderr
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("provider", [("rocm", "--fallback"), ("auto",)], ids=["named", "auto"])
def test_a_component_that_the_provider_refuses_goes_to_the_cpu_where_that_is_allowed(
    provider: tuple[str, ...], tiny: Tiny, refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(NO_KERNEL, "vae_decoder")
    monkeypatch.setattr(probe, "_first_that_loads", lambda options: (PROVIDERS["rocm"], None))
    result = run(tiny, tmp_path, *provider)
    assert result.exit_code == 0, result.output
    assert "warning: vae_decoder runs on cpu: rocm cannot run" in result.stderr
    record = json.loads(result.stdout)
    assert record["provider"] == "rocm"
    assert record["fallback"].startswith("vae_decoder runs on cpu: ")


def test_the_record_names_what_ran_the_unet(tiny: Tiny, refuse: Refuse, tmp_path: Path) -> None:
    refuse(GONE, "unet")
    record = json.loads(run(tiny, tmp_path, "rocm", "--fallback").stdout)
    assert (record["provider"], record["requested_provider"]) == ("cpu", "rocm")


@pytest.mark.parametrize("args", [("rocm",), ("rocm", "--fallback", "--graph")])
def test_a_component_that_the_provider_refuses_ends_the_run_otherwise(
    args: tuple[str, ...], tiny: Tiny, refuse: Refuse, tmp_path: Path
) -> None:
    refuse(NO_KERNEL, "unet")
    result = run(tiny, tmp_path, *args)
    assert result.exit_code == 6, result.output
    assert "rocm cannot run" in result.stderr
