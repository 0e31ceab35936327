"""Sessions, tuning and the denoising loop run where no graph library is installed."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("sdort.runtime.session", "sdort.tuning.session_hooks", "sdort.generation.device_loop", "sdort.cli.tuning")
UNNEEDED = {"diffusers", "onnx_graphsurgeon", "onnxconverter_common", "torch", "transformers", "xxhash"}


def test_what_runs_models_imports_no_graph_library() -> None:
    code = f"import sys, {', '.join(MODULES)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert UNNEEDED & set(done.stdout.split()) == set()
