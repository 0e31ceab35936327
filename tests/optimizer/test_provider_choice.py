"""What ``sdort optimize`` makes a model for where no provider is named, and what comes next on this machine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from support import machines, runtime_copies

import sdort
from sdort.cli.optimize import _next
from sdort.cli.optimize import command as optimize_command
from sdort.cli.run import command as run_command
from sdort.errors import ProviderError
from sdort.machine.system import System
from sdort.optimizer import provider_choice
from sdort.optimizer.provider_choice import for_gpus, provider_here, runs_here
from sdort.providers import AUTO, PROVIDERS


def test_the_default_is_that_of_run() -> None:
    defaults = [
        next(each.default for each in command.params if isinstance(each, click.Option) and each.name == "provider")
        for command in (optimize_command, run_command)
    ]
    assert defaults == [AUTO, AUTO]
    for function in (sdort.optimize, sdort.plan_optimize, sdort.load):
        assert inspect.signature(function).parameters["provider"].default == AUTO


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_that_is_named_is_taken_wherever_it_works(name: str) -> None:
    assert provider_here(name) == name


@pytest.mark.parametrize("name", PROVIDERS)
def test_it_is_what_runs_here_and_is_said(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runtime_copies.pretend(monkeypatch, {"acme-ort": "1.27"})
    monkeypatch.setattr(provider_choice, "choose_provider", lambda options: (PROVIDERS[name], None))
    monkeypatch.setattr(provider_choice, "device_name", lambda provider: "a device")
    monkeypatch.setattr(provider_choice, "System", lambda: machines.processor(tmp_path))
    assert provider_here(AUTO) == name
    said = " ".join(capsys.readouterr().err.split())
    assert f"optimizing for {name}, which the installed acme-ort 1.27 runs here (a device)" in said
    assert "arning" not in said


MACHINES: tuple[tuple[Callable[[Path], System], str], ...] = (
    (machines.rocm_7, "migraphx"), (machines.nvidia, "cuda"), (machines.processor, "cpu"),
)  # fmt: skip


@pytest.mark.parametrize(("machine", "expected"), MACHINES)
def test_without_onnx_runtime_the_gpus_decide_and_no_provider_that_ended(
    machine: Any, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system = machine(tmp_path)
    provider, gpu = for_gpus(system)
    assert (provider.name, gpu is None) == (expected, expected == "cpu")
    assert provider.last_release == ""
    runtime_copies.pretend(monkeypatch, {})
    monkeypatch.setattr(provider_choice, "System", lambda: system)
    assert provider_here(AUTO) == expected
    assert "ONNX Runtime is not installed" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("machine", "expected"), MACHINES)
@pytest.mark.parametrize("refused", [None, "a reason"])
def test_a_gpu_that_is_not_taken_is_told(
    machine: Any, expected: str, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    system = machine(tmp_path)
    runtime_copies.pretend(monkeypatch, {"onnxruntime": "1.31.1"})
    monkeypatch.setattr(provider_choice, "choose_provider", lambda options: (PROVIDERS["cpu"], refused))
    monkeypatch.setattr(provider_choice, "System", lambda: system)
    assert provider_here(AUTO) == "cpu"
    said = " ".join(capsys.readouterr().err.split())
    told = refused or f"sdort doctor --provider {expected}"
    assert (told in said) == (refused is not None or expected != "cpu")


@pytest.mark.parametrize("works", [True, False])
def test_what_comes_next_works_here(works: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    monkeypatch.setattr(provider_choice, "runs_here", lambda name: works)
    parts = dict.fromkeys(("text_encoder", "unet", "vae_decoder"))
    report: Any = SimpleNamespace(out=str(tmp_path), source="model", provider="rocm", components=parts)
    expected = f"sdort run {tmp_path} --provider rocm --prompt " if works else f"sdort verify {tmp_path}"
    assert _next(report).startswith(expected)


def test_what_runs_here_is_asked_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_here("cpu")
    monkeypatch.setattr(provider_choice, "why_not", lambda provider, options: "a reason")
    assert not runs_here("rocm")

    def fail() -> Any:
        raise ProviderError("ONNX Runtime is not installed")

    monkeypatch.setattr(provider_choice, "flavour", fail)
    assert not runs_here("cpu")
