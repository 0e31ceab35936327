"""scripts/gpu_benchmark.py on a tiny UNet and the CPU: every peer has a row, one that fails too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gpu_benchmark
import pytest
import torch


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_benchmark.py", *map(str, words)])
    return gpu_benchmark.main()


@pytest.mark.filterwarnings("ignore")  # torch's, of its TorchScript exporter
def test_every_peer_has_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: object, **__: object) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", missing)
    monkeypatch.setattr(gpu_benchmark, "WARMUP", 0)
    monkeypatch.setattr(gpu_benchmark, "REPEAT", 1)
    report = tmp_path / "report.json"
    code = run(
        monkeypatch, "--work", tmp_path, "--provider", "cpu", "--family", "tiny", "--components", "unet",
        "--engines", "torch,compile,ort", "--size", "64x64", "--json", report,
    )  # fmt: skip
    rows = {row["engine"]: row for row in json.loads(report.read_text())["rows"]}
    assert list(rows) == ["torch eager", "torch.compile", "ORT optimizer", "ORT optimizer + graph"]
    failed = rows.pop("torch.compile")
    assert (code, failed["ok"], failed["error"]) == (5, False, "RuntimeError: no compiler here")
    assert all(row["ok"] and 0 < row["error"] < 1e-2 and row["median_ms"] > 0 for row in rows.values())


def test_a_size_without_a_reference_leaves_the_others_their_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, report, seen = gpu_benchmark.inputs, tmp_path / "report.json", []

    def inputs(component: str, args: Any, checkpoint: Path) -> Any:
        seen.append(len(json.loads(report.read_text())["rows"]) if report.exists() else 0)
        if args.batch == 2:
            raise RuntimeError("CUDA out of memory.\nTried to allocate more")
        return whole(component, args, checkpoint)

    monkeypatch.setattr(gpu_benchmark, "inputs", inputs)
    monkeypatch.setattr(gpu_benchmark, "WARMUP", 0)
    monkeypatch.setattr(gpu_benchmark, "REPEAT", 1)
    code = run(
        monkeypatch, "--work", tmp_path, "--provider", "cpu", "--family", "tiny", "--components", "unet",
        "--engines", "torch", "--size", "64x64", "--batch", "1,2,4", "--json", report,
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
