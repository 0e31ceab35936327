"""scripts/gpu_trust.py: what a step that fails leaves behind."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from support.script_modules import load_script

FAILING = """
import sys
print("a result", flush=True)
print("a remark", file=sys.stderr, flush=True)
print("another result", flush=True)
print("Error: the last word", file=sys.stderr)
sys.exit(5)
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_script("gpu_trust", monkeypatch)


def arguments(script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> object:
    words = ["gpu_trust.py", "--output", str(folder / "out"), "--work", str(folder / "work"), *more]
    monkeypatch.setattr(sys, "argv", words)
    found = script.arguments()
    found.output.mkdir()
    found.work.mkdir()
    return found


def test_a_failed_step_shows_the_end_of_its_log(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = script.Runner(arguments(script, tmp_path, monkeypatch, "--only", "doctor"))
    for _ in range(2):  # again: the log is that of the last run alone
        runner.run_all(iter([script.Step("doctor", 60, [sys.executable, "-c", FAILING])]))
    shown = capsys.readouterr().out.splitlines()
    assert "FAILED with exit code 5" in shown[0]
    assert shown[1:5] == [
        "    | a result", "    | a remark", "    | another result", "    | Error: the last word",
    ]  # fmt: skip
    assert len(shown) == 10
    assert runner.close() == 1


def test_results_are_packed_without_what_is_large(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = arguments(script, tmp_path, monkeypatch, "--only", "doctor", "--pack")
    runner = script.Runner(found)
    out = tmp_path / "out"
    (out / "plots").mkdir()
    (out / "plots" / "small.png").write_bytes(bytes(script.LARGEST))
    (out / "large.html").write_bytes(bytes(script.LARGEST + 1))
    runner.run_all(iter([script.Step("doctor", 60, [sys.executable, "-c", "print('fine')"])]))
    for _ in range(2):  # the second time there is one already
        assert runner.close() == 0
        with tarfile.open(out / "results.tgz") as archive:
            names = archive.getnames()
            summary = archive.extractfile("out/summary.json")
            assert summary is not None
            assert json.load(summary) == {"doctor": "ok"}
        assert sorted(names) == ["out/logs/doctor.log", "out/plots/small.png", "out/summary.json"]
