"""Environments of their own for distributions of ONNX Runtime, which share one import name: made when first needed.

Each is a folder ``.test-venv-<distribution>`` in the checkout, kept between runs and made anew when what it is made
from has changed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def environment(*requirements: str) -> Iterator[Path]:
    """The folder of one with these (or options of pip), named by the first; parallel processes wait for each other.

    Raises:
        RuntimeError: they cannot be installed; the installer's text.
    """
    distribution = re.split("[^a-z-]", requirements[0])[0]
    folder = ROOT / f".test-venv-{distribution}"
    folder.mkdir(exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        requested, made_from = f"{sys.version} {requirements}", folder / "made-from"
        if not made_from.exists() or made_from.read_text() != requested:
            _make(folder, requirements)
            made_from.write_text(requested)
        yield folder


def _make(folder: Path, requirements: tuple[str, ...]) -> None:
    (folder / "made-from").unlink(missing_ok=True)
    run_command([sys.executable, "-m", "venv", "--clear", str(folder / "new")])
    for entry in (folder / "new").iterdir():
        target = folder / entry.name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        entry.replace(target)
    (folder / "new").rmdir()
    pip = [str(python_of(folder)), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run_command([*pip, *requirements])


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def run_script(folder: Path, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code there, with further environment variables."""
    # Without another Python's packages, and what a session here was for.
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SDORT_OPS_PROVIDER")}
    environment = {**kept, **variables}
    command = [str(python_of(folder)), "-c", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def run_command(command: list[str]) -> str:
    """Its standard output.

    Raises:
        RuntimeError: it failed; the ends of what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:6])} ... failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
