"""Models as a GPU computes them, in files: every result rounded to fp16 or bf16."""

from __future__ import annotations

from pathlib import Path

import onnx

from sdort.engines.rounding import emulate


def write_emulated(path: Path, out: Path, component: str) -> None:
    """Write the emulation of the model in ``path`` to ``out`` in the same folder, so that both share the weights."""
    onnx.save(emulate(path, component), out)
