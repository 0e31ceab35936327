"""scripts/gpu_benchmark.py on a tiny UNet and the CPU: every peer has a row, one that fails too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gpu_benchmark
import pytest
import torch
from support.tiny_pipeline import edit_weights

from sdort.workload.cases import Case


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_benchmark.py", *map(str, words)])
    return gpu_benchmark.main()


@pytest.mark.filterwarnings("ignore")  # torch's, of its TorchScript exporter
def test_every_peer_has_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: object, **__: object) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", missing)
    monkeypatch.setattr(gpu_benchmark, "WARMUP", 0)
    report = tmp_path / "report.json"
    code = run(
        monkeypatch, "--work", tmp_path, "--provider", "cpu", "--family", "tiny", "--components", "unet",
        "--engines", "torch,compile,ort", "--size", "64x64", "--repeat", 1, "--json", report,
    )  # fmt: skip
    rows = {row["engine"]: row for row in json.loads(report.read_text())["rows"]}
    assert list(rows) == ["torch eager", "torch.compile", "ORT optimizer", "ORT optimizer + graph"]
    failed = rows.pop("torch.compile")
    assert (code, failed["ok"], failed["error"]) == (5, False, "torch-compile on cpu failed: no compiler here")
    assert all(row["ok"] and row["error"] < 1e-2 and row["median_ms"] > 0 for row in rows.values())
    assert [row["dtype"] for row in rows.values()] == ["float32", "float16", "float16"]
    assert rows["ORT optimizer"]["error"] > 1e-4


def test_a_row_takes_turns_with_sdort_and_one_that_is_wrong_has_no_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The decoder without its phases, which compute the same; then with a last bias that is off."""
    monkeypatch.setattr(gpu_benchmark, "WARMUP", 0)
    words = [
        "--work", tmp_path, "--provider", "cpu", "--family", "tiny", "--components", "vae_decoder", "--size", "64x64",
        "--batch", 1, "--repeat", 5, "--engines", "sdort", "--ablation", "--json", tmp_path / "report.json",
    ]  # fmt: skip
    assert run(monkeypatch, *words) == 0
    whole, less = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert (whole["engine"], less["engine"]) == ("sdort", "sdort, without upsampling_phases")
    assert whole["ratio"] is None
    assert less["ratio"][1] <= less["ratio"][0] <= less["ratio"][2]
    assert whole["weights_mb"] > less["weights_mb"] > 0  # the phases' weights are sums of the convolution's
    broken = tmp_path / "checkpoint-tiny-vae_decoder-dynamic-cpu-upsampling_phases" / "vae_decoder" / "model.onnx"
    edit_weights(broken, lambda values, _: values + 1, "conv_out.bias")
    assert run(monkeypatch, *words) == 5
    whole, less = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert whole["ok"]
    assert not less["ok"]
    assert "from torch in fp32, norm over norm; at most 0.0001" in less["error"]


def test_a_size_without_a_reference_leaves_the_others_their_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, report, seen = gpu_benchmark.reference_of, tmp_path / "report.json", []

    def reference_of(case: Case, *given: Any) -> Any:
        seen.append(len(json.loads(report.read_text())["rows"]) if report.exists() else 0)
        if case.batch == 2:
            raise RuntimeError("CUDA out of memory.\nTried to allocate more")
        return whole(case, *given)

    monkeypatch.setattr(gpu_benchmark, "reference_of", reference_of)
    monkeypatch.setattr(gpu_benchmark, "WARMUP", 0)
    code = run(
        monkeypatch, "--work", tmp_path, "--provider", "cpu", "--family", "tiny", "--components", "unet",
        "--engines", "torch", "--size", "64x64", "--batch", "1,2,4", "--repeat", 1, "--json", report,
    )  # fmt: skip
    rows = json.loads(report.read_text())["rows"]
    assert [(row["batch"], row["engine"], row["ok"]) for row in rows] == [
        (1, "torch eager", True), (2, "reference", False), (4, "torch eager", True)
    ]  # fmt: skip
    assert code == 5
    assert "RuntimeError: CUDA out of memory. Tried to allocate more" in capsys.readouterr().out
    assert seen == [0, 1, 2]  # rows that the report had by then


def test_an_engine_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--work", tmp_path, "--engines", "sdort,tensorrt")
    assert "--engines knows sdort, torch, compile, ort, and not tensorrt" in capsys.readouterr().err
