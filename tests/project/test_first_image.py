"""scripts/first_image.sh: pip, asked beside a torch for ROCm, leaves that as it is and brings no other."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from support.runtime_copies import install

ROOT = Path(__file__).parents[2]


def test_an_install_leaves_the_torch_that_is_there(tmp_path: Path) -> None:
    """The tests' environment has all but that torch, so that pip needs no index; wanting another it would fail."""
    rocm = f"{version('torch').partition('+')[0]}+rocm7.2"
    install(tmp_path / "first", "torch", rocm, ("torch/__init__.py",))
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run", "--quiet", "--no-index",
            "--no-build-isolation", "--report", str(tmp_path / "report.json"), "-c", "constraints.txt", ".[cpu,export]",
        ],
        cwd=ROOT, env={"PYTHONPATH": str(tmp_path / "first"), "HOME": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "report.json").read_text())["install"]
    assert [each["metadata"]["name"] for each in found] == ["sdort"]


def test_the_script_is_whole() -> None:
    subprocess.run(["bash", "-n", "scripts/first_image.sh"], cwd=ROOT, check=True)
