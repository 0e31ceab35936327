"""scripts/measure_gpu.sh: its steps, logs and failures, with a Python that only writes down what it was asked; whether
scripts take what they are asked; and steps for real, on the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tiny_pipeline import Tiny

from sdort.optimizer.command import optimize

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "measure_gpu.sh"
PYTHON = """#!/bin/sh
case "$*" in *find_spec*) echo $MISSING; exit ;; esac
case "$*" in *resolve*) echo library.so; exit ;; esac
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
    assert "--family tiny " in (out / "peers-sdxl.log").read_text()
    assert (out / "kernels.log").read_text().startswith("this step times kernels of a GPU")


def test_all_steps_run_without_a_name(tmp_path: Path) -> None:
    done = run(tmp_path, "rocm", minutes="0.02")
    assert "cold: stopped after 0.02 minutes" in done.stderr
    words = (tmp_path / "out" / "sizes-sd21.log").read_text()
    assert "--family sd21 " in words
    assert "--batch 1,2,8,16 " in words
    assert "--provider rocm " in words
    words = (tmp_path / "out" / "transformers-z-image.log").read_text()
    assert "--family z-image --" in words
    assert "--size 1024x1024 --engines sdort,torch,compile" in words


def test_a_step_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "cuda", "kernels", "kernel")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("there is no step kernel; steps: build attention peers-sd1 ")
    assert "measure_gpu.sh cuda|rocm|cpu" in run(tmp_path).stderr


def test_a_python_without_the_packages_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "rocm", missing="torch diffusers")
    assert (done.returncode, done.stdout) == (2, "")
    assert "lacks: torch diffusers. Install sdort for rocm" in done.stderr


class ParsedError(Exception):
    """A script has read its arguments."""


@pytest.mark.parametrize("provider", ["cuda", "rocm", "cpu"])
def test_scripts_take_the_arguments_that_they_get(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = argparse.ArgumentParser.parse_args

    def parse_args(parser: argparse.ArgumentParser, *given: Any) -> argparse.Namespace:
        whole(parser, *given)
        raise ParsedError

    run(tmp_path, provider, minutes="0.02")
    text = "\n".join(log.read_text() for log in (tmp_path / "out").glob("*.log"))
    calls = set(re.findall(r"^scripts/(\w+)\.py (.+)$", text, re.MULTILINE))
    scripts = {name for name, _ in calls}
    assert {
        "gpu_benchmark",
        "torch_overhead",
        "torch_operators_benchmark",
        "diffusers_benchmark",
        "cold_start",
    } <= scripts
    assert provider == "cpu" or {"gpu_kernels", "ops_benchmark"} <= scripts
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    for name, words in calls:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words.split()])
        with pytest.raises(ParsedError):
            importlib.import_module(name).main()


REAL = """#!/bin/sh
case "$*" in *"ops build"*) exit ;; esac
exec {python} -W ignore "$@"
"""
"""A Python that builds no library: nothing below has operators of its own."""


@pytest.mark.long
def test_steps_for_real(tiny: Tiny, tmp_path: Path) -> None:
    optimize(tiny.onnx, tmp_path / "work" / "diffusers-tiny-cpu", provider="cpu", fp16=True)
    (tmp_path / "python").write_text(REAL.format(python=sys.executable))
    (tmp_path / "python").chmod(0o755)
    settings = {"OUT": tmp_path / "out", "WORK": tmp_path / "work", "PYTHON": tmp_path / "python", "MINUTES": 2}
    environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}

    def steps(*names: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(SCRIPT), "cpu", *names]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    done = steps("cold", "kernels")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 steps measured what they should" in done.stdout
    assert json.loads((tmp_path / "out" / "cold.json").read_text())["whole"] > 0
    (tmp_path / "work" / "diffusers-tiny-cpu" / "unet" / "model.onnx").write_bytes(b"no model")
    done = steps("cold")
    assert done.returncode == 1
    assert done.stderr.startswith("failed: cold: exit code ")
