"""What is advised for another program's Python: nothing that changes its torch or adds a second ONNX Runtime."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import machines
from support.runtime_copies import install

from sdort.cli import cli
from sdort.integrations import program_python
from sdort.integrations.program_python import advice, find_python


def environment(program: Path, place: str, **versions: str) -> Path:
    """An environment in a program's folder, of packages name -> version; its interpreter."""
    python = program / place / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    packages = program / place / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    for name, version in versions.items():
        package = "onnxruntime" if name.startswith("onnxruntime") else name
        install(packages, name.replace("_", "-"), version, (f"{package}/__init__.py",))
    return python


def commands(program: Path) -> list[list[str]]:
    lines = advice(find_python(program), "ComfyUI")
    return [shlex.split(line) for line in lines if line.startswith("    ")]


@pytest.mark.parametrize("place", ["venv", ".venv", "env", "../venv"])
@pytest.mark.parametrize(
    ("torch", "extra"),
    [("2.14.1+rocm7.2", "migraphx"), ("2.13.0+cu130", "cuda"), ("2.13.0+cpu", "cpu"), ("2.13.0", "rocks")],
)
def test_the_torch_that_is_there_is_asked_for(
    place: str, torch: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build without a name is the package index's, and then the machine's GPUs say what it is."""
    monkeypatch.setattr(program_python, "System", lambda: machines.rocm_7(tmp_path / "machine"))
    (tmp_path / "ComfyUI").mkdir()
    python = environment(tmp_path / "ComfyUI", place, torch=torch, numpy="2.1")
    ((found, *words),) = commands(tmp_path / "ComfyUI")
    assert Path(found).samefile(python)
    assert words[:3] == ["-m", "pip", "install"]
    assert words[4:] == [f"torch=={torch}"]
    assert words[3].endswith(f"[{extra if extra != 'rocks' else 'migraphx'},export]")


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnxruntime_gpu", "onnxruntime_openvino"])
def test_an_onnx_runtime_that_is_there_gets_no_second_one(runtime: str, tmp_path: Path) -> None:
    environment(tmp_path, "venv", torch="2.13.0+cu130", **{runtime: "1.27"})
    ((*_, wanted, torch),) = commands(tmp_path)
    assert (wanted.rpartition("[")[2], torch) == ("export]", "torch==2.13.0+cu130")


def test_two_of_them_are_told(tmp_path: Path) -> None:
    environment(tmp_path, "venv", torch="2.13.0+cu130", onnxruntime="1.27", onnxruntime_gpu="1.27")
    remove, add = commands(tmp_path)
    assert remove[1:] == ["-m", "pip", "uninstall", "-y", "onnxruntime", "onnxruntime-gpu"]
    assert add[-2].endswith("[cuda,export]")


def test_where_all_is_there_nothing_is_advised(tmp_path: Path) -> None:
    environment(tmp_path, "venv", torch="2.13.0", onnxruntime_rocm="1.22.2", sdort="0.1.0")
    assert commands(tmp_path) == []
    assert list(advice(find_python(tmp_path), "ComfyUI")) == ["ComfyUI's Python has sdort 0.1.0 and onnxruntime-rocm."]


def test_the_command_looks_before_it_advises(tmp_path: Path) -> None:
    for name in ("main.py", "nodes.py", "comfy/sd.py", "custom_nodes/other/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    environment(tmp_path, "venv", torch="2.14.1+rocm7.2")
    said = CliRunner().invoke(cli, ["integrate", "comfyui", str(tmp_path)]).output
    assert f"{tmp_path}/venv/bin/python -m pip install " in said
    assert "torch==2.14.1+rocm7.2" in said
