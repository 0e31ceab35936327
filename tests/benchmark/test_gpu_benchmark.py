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
    assert (code, failed["ok"], failed["error"]) == (5, False, "no compiler here")
    assert all(row["ok"] and 0 < row["error"] < 5e-3 and row["median_ms"] > 0 for row in rows.values())


def test_an_engine_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--work", tmp_path, "--engines", "sdort,tensorrt")
    assert "--engines knows sdort, torch, compile, ort, and not tensorrt" in capsys.readouterr().err
