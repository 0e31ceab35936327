"""Sessions, tuning and the denoising loop run where no graph library is installed; inspecting takes no session."""

from __future__ import annotations

import subprocess
import sys

MODULES = (
    "sdort.runtime.session",
    "sdort.tuning.session_hooks",
    "sdort.generation.denoising.device_loop",
    "sdort.cli.tuning",
)
UNNEEDED = {"diffusers", "onnx_graphsurgeon", "onnxconverter_common", "torch", "transformers", "xxhash"}


def imported_by(*modules: str) -> set[str]:
    """The modules that are imported with ``modules``, in a process of its own."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_what_runs_models_imports_no_graph_library() -> None:
    assert UNNEEDED & imported_by(*MODULES) == set()


def test_a_run_imports_nothing_that_makes_graphs() -> None:
    """What widens a graph that gives NaN, and what makes an upscaler's, are imported when they are needed."""
    imported = imported_by("sdort.first_use.command")
    assert "sdort.generation.pipeline" in imported
    makers = ("sdort.rewrite.editor", "sdort.passes.half", "sdort.lowering.steps", "sdort.upscaling.upscaler")
    assert {*makers, "onnxconverter_common", "torch", "diffusers", "transformers"} & imported == set()


def test_jinja_is_imported_only_when_a_page_is_written() -> None:
    pages = ("sdort.verification.report.verification_page", "sdort.benchmark.report.benchmark_page")
    assert "jinja2" not in imported_by("sdort.verification.command", "sdort.benchmark.command", *pages)


def test_inspecting_imports_nothing_that_runs_models() -> None:
    imported = imported_by("sdort.inspection.command")
    assert "sdort.inspection.description" in imported
    assert {"sdort.operator_library", "sdort.runtime", "sdort.tuning"} & imported == set()
