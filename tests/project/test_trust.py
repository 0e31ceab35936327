"""scripts/trust.py: right and fast, end to end on the demo model; and that it sees what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.pipelines import export_family, trace_folder
from support.script_modules import SCRIPTS, load_script

pytestmark = pytest.mark.long

SCRIPT = SCRIPTS / "trust.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_script("trust", monkeypatch)


ELSEWHERE = ("fp16-auto", "verify-auto", "ablation", "save", "compare", "compare-slower", "engines", "compile")
"""Steps whose commands other tests run on this model, and look at all that they give (precision, benchmark)."""


def test_all_of_it_on_the_demo_model(script: ModuleType, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """With the tests' own traces: the export's tests trace this architecture, which takes more than a minute."""
    made, out = tmp_path / "made", tmp_path / "trust"
    made.mkdir()
    export_family("sd1", made, trace_folder(request.config))  # waits for another process that is at it
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "sdort"
    cache.mkdir(parents=True)
    (cache / "traces").symlink_to(trace_folder(request.config))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", str(out), *(f"--without={name}" for name in ELSEWHERE)],
        capture_output=True,
        text=True,
        check=False,
    )
    logs = "\n".join(log.read_text() for log in sorted((out / "logs").iterdir()))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    said = [line.split()[:2] for line in done.stdout.splitlines()]
    assert said[:-1] == [[step.name, "ok"] for step in script.STEPS if step.name not in ELSEWHERE]


def test_a_step_that_ends_otherwise_is_told(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    assert not script.run(script.Step("none", ("inspect", "none")), tmp_path)
    assert "exit code 2, not 0" in capsys.readouterr().out
    assert "none" in (tmp_path / "logs" / "none.log").read_text()


def row(verdict: str = "same", **values: Any) -> dict[str, Any]:
    return {"status": "ok", "median_ms": 1.0, "engine": "torch", "component": "unet",
            "compared": {"verdict": verdict}, **values}  # fmt: skip


def stage(*rows: dict[str, Any], problem: str | None = None) -> dict[str, Any]:
    return {"step": "fp16", "problem": problem, "rows": list(rows)}


def problems(script: ModuleType, check: str, said: Any, folder: Path) -> str:
    found = getattr(script, check)
    return "; ".join((found("slower") if check == "compared" else found)(said, folder))


@pytest.mark.parametrize(
    ("check", "said", "words"),
    [
        ("safe", {"passed": False, "failed": ["unet"], "images": [1, 2]}, "unet"),
        ("safe", {"passed": True, "failed": [], "images": [1]}, "1 images"),
        ("stages", {"stages": [stage(row())] * 8}, "8 steps"),
        ("stages", {"stages": [stage(row())] * 8 + [stage(row(status="it is wrong", median_ms=None))]}, "it is wrong"),
        ("stages", {"stages": [stage(row())] * 8 + [stage(problem="not made")]}, "not made"),
        ("stages", {"stages": [stage(row())] * 9}, "no images-dark.png"),
        ("compared", {"stages": [stage(row("same"))]}, "same"),
        ("compared", {"stages": [stage(row("slower"), row("not comparable"))]}, "not comparable"),
        ("right", {"components": [], "images": [], "semantic": {"counts": {"single": [4, 4], "pair": [4, 4]}}}, "vae"),
        ("right", {"components": [], "images": [1, 2], "semantic": {"counts": {"single": [4, 4], "pair": [0, 0]}}},
         "judged"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_seen(script: ModuleType, check: str, said: Any, words: str, tmp_path: Path) -> None:
    assert words in problems(script, check, said, tmp_path)


def test_an_engine_that_is_wrong_or_missing_is_seen(script: ModuleType, tmp_path: Path) -> None:
    check = script.engines("onnxruntime", "torch")
    assert "engines" in "; ".join(check({"rows": [row(), row()]}, tmp_path))
    rows = [row(engine="onnxruntime"), row(status="it is wrong")]
    assert list(check({"rows": rows}, tmp_path)) == ["torch, unet: it is wrong"]
