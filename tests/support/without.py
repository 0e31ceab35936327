"""sdort in a process of its own that has no torch, diffusers, transformers and onnxscript, as a core install."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PACKAGES = ("torch", "diffusers", "transformers", "onnxscript", "onnx_ir", "scipy")

_PROGRAM = """
import importlib.machinery, importlib.metadata, json, sys

PACKAGES = {packages!r}


class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in PACKAGES else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *args, **kwargs):
        found = super().find_distributions(*args, **kwargs)
        return (each for each in found if each.metadata["Name"].lower() not in PACKAGES)


sys.meta_path[:] = [Without if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
{code}
"""
_COMMANDS = """
from sdort.__main__ import main

for arguments in json.loads({arguments!r}):
    sys.argv = ["sdort", *arguments]
    try:
        main()
    except SystemExit as left:
        if left.code:
            sys.exit(left.code)
"""


def run_code(
    code: str, packages: Sequence[str] = PACKAGES, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python code in such a process, in ``folder``; ``packages`` are those that it does not have."""
    program = _PROGRAM.format(packages=tuple(packages), code=code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=folder)


def run_commands(commands: Sequence[Sequence[object]], then: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``sdort`` with these arguments one after another in one such process, then code; up to what fails."""
    arguments = json.dumps([[str(each) for each in command] for command in commands])
    return run_code(_COMMANDS.format(arguments=arguments) + then)


def draw(pipeline: Path, folder: Path, prompt: str, *cases: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """The image, uint8 [height, width, 3], that ``sdort.load(pipeline).generate`` draws with each case's options in
    such a process; ``folder`` is for files."""
    settings = [{name: _plain(value) for name, value in options.items()} for options in cases]
    done = run_code(f"""
import sdort
pipeline = sdort.load({str(pipeline)!r}, provider="cpu")
for number, options in enumerate({settings!r}):
    pipeline.generate({prompt!r}, **options).images[0].save({str(folder)!r} + f"/{{number}}.png")
assert not set(PACKAGES) & set(sys.modules), set(PACKAGES) & set(sys.modules)
""")
    assert done.returncode == 0, done.stderr
    return [np.asarray(Image.open(folder / f"{number}.png")) for number in range(len(cases))]


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
