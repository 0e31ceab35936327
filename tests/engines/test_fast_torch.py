"""Torch as it is timed: the layout, the search and the mode that a GPU gets, and what is compiled for which case."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_pipeline import Tiny

from sdort.demo import write_demo
from sdort.engines.fast_torch import FastTorchEngine
from sdort.engines.torch import TorchEngine
from sdort.providers import CPU, PROVIDERS
from sdort.providers.provider import Provider
from sdort.workload.cases import Case, make_feeds

CUDA = PROVIDERS["cuda"]
UNET, DECODER = Case("unet", 1, 64, 64), Case("vae_decoder", 1, 64, 64)


def engine(
    tiny: Tiny, provider: Provider, monkeypatch: pytest.MonkeyPatch, *, compiled: bool = True
) -> FastTorchEngine:
    """An engine that takes this machine's CPU for its provider's device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made = FastTorchEngine(tiny.diffusers, provider, "float32", compiled=compiled)
    made.device = "cpu"
    return made


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled and how, and where what was compiled is forgotten."""
    calls: list[Any] = []

    def record(call: Any, **how: Any) -> Any:
        calls.append(how)
        return call

    monkeypatch.setattr(torch, "compile", record)
    monkeypatch.setattr(torch.compiler, "reset", lambda: calls.append("reset"))
    monkeypatch.setattr(FastTorchEngine, "_compiled_for", None)
    return calls


@pytest.mark.parametrize(
    ("provider", "mode", "settings", "last"),
    [(CUDA, "reduce-overhead", "channels last, mode reduce-overhead", True), (CPU, "default", "mode default", False)],
)
def test_a_gpu_has_channels_last_and_graphs(
    provider: Provider, mode: str, settings: str, last: bool, tiny: Tiny, monkeypatch: pytest.MonkeyPatch,
    compiled: list[Any],
) -> None:  # fmt: skip
    made = engine(tiny, provider, monkeypatch)
    weight = made.pipeline("unet").unet.conv_in.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == last
    assert made.pipeline("vae_decoder").vae.decoder.conv_in.weight.is_contiguous(
        memory_format=torch.channels_last
    ) == last  # fmt: skip
    assert compiled == [{"mode": mode, "dynamic": False}] * 2
    assert (made.name, made.settings) == ("torch-compile", settings)
    assert engine(tiny, provider, monkeypatch, compiled=False).settings == ("channels last" if last else "")


def test_the_search_for_convolutions_is_on_while_it_runs_and_no_longer(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, compiled: list[Any]
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    for provider, on in ((CUDA, True), (CPU, False)):
        made = engine(tiny, provider, monkeypatch)
        assert made.guard(lambda: torch.backends.cudnn.benchmark) is on
        with pytest.raises(Exception, match="failed: no such kernel"):
            made.guard(failing)
        assert torch.backends.cudnn.benchmark is False
    reference = object.__new__(TorchEngine)
    reference.device = "cpu"
    assert reference.guard(lambda: torch.backends.cudnn.benchmark) is False


def failing() -> None:
    raise RuntimeError("no such kernel")


def test_what_is_compiled_is_forgotten_before_another_size_and_kept_for_engines_beside_it(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, compiled: list[Any]
) -> None:
    one, other = (engine(tiny, CPU, monkeypatch) for _ in range(2))
    plain = engine(tiny, CPU, monkeypatch, compiled=False)
    seen = []
    for case in (UNET, Case("unet", 1, 64, 64, seed=5), Case("unet", 2, 64, 64), DECODER):
        for each in (one, other, plain):
            each.prepare(case, 1, None)
        seen.append(compiled.count("reset"))
    assert seen == [1, 1, 2, 3]
    plain.close()
    assert compiled.count("reset") == 3
    one.close()
    assert (compiled.count("reset"), FastTorchEngine._compiled_for) == (4, None)


def test_an_output_that_another_compiled_module_has_written_over_is_computed_again(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, compiled: list[Any]
) -> None:
    """Its tensor raises then, as torch's of CUDA graphs do."""
    runner: Any = engine(tiny, CPU, monkeypatch).prepare(DECODER, 1, None)
    runner()
    expected = runner.result()["sample"]
    assert np.abs(expected).max() > 0
    runner.values = (SimpleNamespace(float=failing),)
    np.testing.assert_array_equal(runner.result()["sample"], expected)


@pytest.mark.parametrize("name", ["tiny-sd35", "tiny-z-image", "tiny-flux"])
def test_transformers_compute_in_fp16_what_they_do_in_fp32(name: str, tmp_path: Path) -> None:
    write_demo(f"random:{name}", tmp_path)
    case, found = Case("transformer", 1, 64, 64), {}
    for dtype in ("float32", "float16"):
        made = TorchEngine(tmp_path, CPU, dtype)
        runner = made.component_runner("transformer", make_feeds(case, made.inputs("transformer"), made.factor))
        runner()
        (found[dtype],) = runner.result().values()
    right = found["float32"]
    assert 0 < np.linalg.norm(found["float16"] - right) / np.linalg.norm(right) < 5e-3
