"""scripts/measure_gpu.sh with a Python that only writes down what it was asked: steps, their logs and failures."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "measure_gpu.sh"
PYTHON = """#!/bin/sh
case "$*" in *find_spec*) echo $MISSING; exit ;; esac
echo "$@"
case "$*" in *vae_decoder*) exit 7 ;; *cold_start*) sleep 30 ;; esac
"""


def run(folder: Path, *words: str, minutes: str = "1", missing: str = "") -> subprocess.CompletedProcess[str]:
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    settings = {"OUT": str(folder / "out"), "PYTHON": str(python), "MINUTES": minutes, "PATH": "/usr/bin:/bin"}
    settings["MISSING"] = missing
    return subprocess.run(["bash", str(SCRIPT), *words], env=settings, capture_output=True, text=True, timeout=120)


def test_a_failed_step_leaves_the_others_and_is_named_at_the_end(tmp_path: Path) -> None:
    done = run(tmp_path, "cpu", "peers", "kernels")
    out = tmp_path / "out"
    assert done.returncode == 1
    assert done.stderr == f"failed: peers-vae: exit code 7, see {out}/peers-vae.log\n"
    assert "4 of 5 steps measured what they should" in done.stdout
    assert sorted(log.name for log in out.glob("*.log")) == [
        "build.log", "kernels.log", "peers-sd1.log", "peers-sdxl.log", "peers-vae.log"
    ]  # fmt: skip
    assert "--family tiny" in (out / "peers-sdxl.log").read_text()
    assert (out / "kernels.log").read_text().startswith("this step times kernels of a GPU")


def test_all_steps_run_without_a_name(tmp_path: Path) -> None:
    done = run(tmp_path, "rocm", minutes="0.02")
    assert "cold: stopped after 0.02 minutes" in done.stderr
    words = (tmp_path / "out" / "sizes-sd21.log").read_text()
    assert "--family sd21 " in words
    assert "--batch 1,2,8,16 " in words
    assert "--provider rocm " in words


def test_a_step_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "cuda", "kernels", "kernel")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("there is no step kernel; steps: build attention peers-sd1 ")
    assert "measure_gpu.sh cuda|rocm|cpu" in run(tmp_path).stderr


def test_a_python_without_the_packages_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "rocm", missing="torch diffusers")
    assert (done.returncode, done.stdout) == (2, "")
    assert "lacks: torch diffusers. Install sdort for rocm" in done.stderr
