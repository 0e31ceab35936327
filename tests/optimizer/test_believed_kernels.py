"""Graphs are made for the kernels that were found right on this machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sdort.errors import ProviderError
from sdort.graph.domains import MICROSOFT
from sdort.optimizer import believed_kernels
from sdort.optimizer.believed_kernels import believed_target
from sdort.providers import load_target
from sdort.runtime.operator_trials import Trial, Trials

ATTENTION, NORM = f"{MICROSOFT}.MultiHeadAttention", f"{MICROSOFT}.SkipLayerNormalization"
Install = Callable[..., list[str]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Lets these trials be known, or be made; who tries is noted."""

    def install(known: Trials | None, made: Trials, runs: bool = True) -> list[str]:
        tried: list[str] = []

        def make(provider: object, options: object, dtype: str) -> Trials:
            tried.append(dtype)
            return made

        monkeypatch.setattr(believed_kernels, "kept", lambda provider, options, dtype: known)
        monkeypatch.setattr(believed_kernels, "tried", make)
        monkeypatch.setattr(believed_kernels, "runs_here", lambda name: runs)
        return tried

    return install


def test_a_doubted_kernel_is_tried_where_its_provider_is(machine: Install) -> None:
    tried = machine(None, {ATTENTION: Trial(1e-6)})
    assert ATTENTION in believed_target("webgpu", "float32").conditions
    assert tried == ["float32"]
    machine(None, {ATTENTION: Trial(0.9)})
    assert "its error is 0.9 standard deviations" in believed_target("webgpu", "float32").doubted[ATTENTION]


def test_a_machine_without_the_provider_keeps_the_doubt(machine: Install) -> None:
    tried = machine(None, {ATTENTION: Trial(1e-6)}, runs=False)
    assert believed_target("webgpu", "float16").doubted == load_target("webgpu").doubted
    assert tried == []


def test_nothing_is_tried_for_a_target_without_doubts(machine: Install) -> None:
    tried = machine(None, {NORM: Trial(0.9)})
    assert believed_target("cuda", "float16").doubted == {}
    assert tried == []


def test_what_was_found_before_counts_for_every_target(machine: Install) -> None:
    tried = machine({NORM: Trial(0.9), ATTENTION: Trial(problem="no memory")}, {})
    cuda = believed_target("cuda", "float16")
    assert {*load_target("cuda").conditions} - {*cuda.conditions} == {NORM}
    # What does not run says so itself, and a doubt stays one.
    assert ATTENTION in believed_target("webgpu", "float16").doubted
    assert tried == []


def test_the_cpu_is_what_others_are_compared_with(machine: Install) -> None:
    machine({NORM: Trial(0.9)}, {NORM: Trial(0.9)})
    assert believed_target("cpu", "float32").doubted == {}


def test_optimizing_needs_no_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*of: object) -> None:
        raise ProviderError("ONNX Runtime is not installed")

    monkeypatch.setattr(believed_kernels, "kept", none)
    assert believed_target("webgpu", "float32").doubted == load_target("webgpu").doubted
