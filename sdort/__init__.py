"""sdort: Stable Diffusion on ONNX Runtime, exported, fused, in FP16, fast and checked.

Each command of ``sdort`` is a function here (docs/python-api.md)::

    import sdort

    sdort.export("demo", "model")
    sdort.optimize("model", "fast", provider="cpu")
    pipeline = sdort.load("fast", provider="cpu")
    pipeline.generate("a red star on navy", steps=20, seed=7).save("star.png")

A function is imported when it is first asked for, so ``import sdort`` imports neither numpy nor onnx nor torch.
Errors are classes of :mod:`sdort.errors`. Nothing is printed unless :func:`set_verbosity` says so: messages are
records of the logger ``sdort``. What type checkers and editors see of this module is ``__init__.pyi``.
"""

from __future__ import annotations

import importlib
import os

# ONNX Runtime 1.31's package for Linux reports events under a device id that it keeps in the user's home, from its
# import on. It asks this variable.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "Ablation",
    "BatchReport",
    "CheckUp",
    "Devices",
    "Diagnosis",
    "ExportReport",
    "FusionList",
    "Generation",
    "GenerationOptions",
    "Image",
    "Measurement",
    "OptimizeReport",
    "Pipeline",
    "RunPlan",
    "ServeReport",
    "Upscaled",
    "Verification",
    "Warmup",
    "__version__",
    "add_model",
    "batch",
    "bench",
    "build_ops",
    "cache_limit",
    "clean_cache",
    "compare",
    "diagnose",
    "errors",
    "export",
    "export_tuning",
    "import_tuning",
    "inspect",
    "list_cache",
    "list_devices",
    "list_fusions",
    "list_models",
    "list_ops",
    "list_tuning",
    "load",
    "measure_machine",
    "optimize",
    "placement",
    "plan_export",
    "plan_optimize",
    "plan_run",
    "plan_warm",
    "prune_tuning",
    "remove_comfyui_nodes",
    "remove_model",
    "run",
    "serve",
    "set_verbosity",
    "to_json",
    "tune_ops",
    "tuned_ops",
    "upscale",
    "verify",
    "verify_signature",
    "verify_tuning",
    "warm",
    "write_comfyui_nodes",
]

_MODULES = {
    "sdort.doctor.caches": (
        "clean_cache",
        "list_cache",
    ),
    "sdort.batches.command": (
        "BatchReport",
        "batch",
    ),
    "sdort.benchmark.ablation": ("Ablation",),
    "sdort.benchmark.command": ("bench",),
    "sdort.benchmark.measure": ("Measurement",),
    "sdort.console": (
        "set_verbosity",
        "to_json",
    ),
    "sdort.checkup.command": ("CheckUp", "measure_machine"),
    "sdort.doctor.command": ("diagnose",),
    "sdort.doctor.diagnosis": ("Diagnosis",),
    "sdort.doctor.provider_devices": ("Devices", "list_devices"),
    "sdort.exporter.command": (
        "export",
        "plan_export",
    ),
    "sdort.exporter.manifest": ("ExportReport",),
    "sdort.first_use.command": (
        "RunPlan",
        "ServeReport",
        "load",
        "plan_run",
        "run",
    ),
    "sdort.first_use.model_names": (
        "add_model",
        "list_models",
        "remove_model",
    ),
    "sdort.first_use.cache_limit": ("cache_limit",),
    "sdort.generation.command": ("Pipeline",),
    "sdort.generation.requests.typed_options": ("GenerationOptions",),
    "sdort.generation.result": (
        "Generation",
        "Image",
    ),
    "sdort.generation.upscaled_files": (
        "Upscaled",
        "upscale",
    ),
    "sdort.inspection.command": (
        "compare",
        "inspect",
        "placement",
    ),
    "sdort.integrations.comfyui.node_folder": (
        "remove_comfyui_nodes",
        "write_comfyui_nodes",
    ),
    "sdort.machine.version": ("__version__",),
    "sdort.operator_library.command": (
        "build_ops",
        "list_ops",
        "tuned_ops",
    ),
    "sdort.optimizer.command": (
        "optimize",
        "plan_optimize",
    ),
    "sdort.optimizer.fusion_list": (
        "FusionList",
        "list_fusions",
    ),
    "sdort.optimizer.report": ("OptimizeReport",),
    "sdort.tuning.command": (
        "export_tuning",
        "import_tuning",
        "list_tuning",
        "prune_tuning",
        "verify_tuning",
    ),
    "sdort.pipelines.folder_signature": ("verify_signature",),
    "sdort.verification.command": ("verify",),
    "sdort.verification.outcome": ("Verification",),
    "sdort.serving.command": ("serve",),
    "sdort.serving.metrics": ("ServeReport",),
    "sdort.warmup.command": (
        "plan_warm",
        "warm",
    ),
    "sdort.warmup.warm_report": ("Warmup",),
    "sdort.warmup.tune_ops": ("tune_ops",),
}
"""Module -> the public names that it defines."""

_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("sdort.errors")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_HOME[name])
    except ImportError as error:
        from sdort.machine.optional_packages import of_failed_import

        raise (of_failed_import(error) or error) from error
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
