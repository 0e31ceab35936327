"""scripts/torch_operators_benchmark.py on a tiny decoder: a row that fails is said, in the exit code too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_operators_benchmark

EAGER, COMPILED = ["eager", "eager + operators"], ["compile (default)", "compile + operators (default)"]


def run(monkeypatch: pytest.MonkeyPatch, report: Path, *more: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr(torch_operators_benchmark, "serves", lambda device: True)
    words = ["--family", "tiny", "--size", "64", "--models", "vae", "--repeats", "1", "--json", str(report), *more]
    monkeypatch.setattr(sys, "argv", ["torch_operators_benchmark.py", *words])
    code = torch_operators_benchmark.main()
    return code, {row["row"]: row for row in json.loads(report.read_text())["rows"]}


def test_a_row_that_fails_leaves_the_others_and_fails_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: object, **__: object) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch_operators_benchmark, "replace", lambda model: model)
    monkeypatch.setattr(torch, "compile", missing)
    code, rows = run(monkeypatch, tmp_path / "rows.json")
    assert code == 5
    assert [name for name, row in rows.items() if row.get("ms", 0) > 0] == EAGER
    assert [name for name, row in rows.items() if row.get("not measured") == "no compiler here"] == COMPILED


def test_nothing_is_compared_with_an_eager_row_that_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole, calls = torch_operators_benchmark.forward_of, []

    def forward_of(name: str, args: Any, compiled: bool, replaced: bool) -> Any:
        calls.append((compiled, replaced))
        if len(calls) == 1:
            raise RuntimeError("no memory")
        return whole(name, args, False, False)

    monkeypatch.setattr(torch_operators_benchmark, "forward_of", forward_of)
    code, rows = run(monkeypatch, tmp_path / "rows.json")
    assert (code, rows["eager"]["not measured"]) == (5, "no memory")
    assert len(calls) == 4
    assert not any("ms" in row or "difference" in row for row in rows.values())
    assert rows["compile (default)"]["not measured"] == "eager, which it is compared with, was not measured"


def test_the_mode_reaches_the_compiler_and_the_rows_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    modes = []

    def compiled(call: Any, *, backend: str, mode: str) -> Any:
        modes.append(mode)
        return call

    monkeypatch.setattr(torch_operators_benchmark, "replace", lambda model: model)
    monkeypatch.setattr(torch, "compile", compiled)
    code, rows = run(monkeypatch, tmp_path / "rows.json", "--mode", "reduce-overhead")
    assert (code, modes) == (0, ["reduce-overhead"] * 2)
    assert list(rows) == [*EAGER, "compile (reduce-overhead)", "compile + operators (reduce-overhead)"]
