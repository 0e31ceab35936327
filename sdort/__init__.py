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

from sdort import errors

__all__ = [
    "Generation",
    "Image",
    "Pipeline",
    "Warmup",
    "__version__",
    "errors",
    "export",
    "load",
    "optimize",
    "run",
    "set_verbosity",
    "to_json",
    "warm",
]

__version__ = "0.1.0"

_MODULES = {
    "sdort.console": ("set_verbosity", "to_json"),
    "sdort.exporter.command": ("export",),
    "sdort.generation.command": ("Pipeline", "load", "run"),
    "sdort.generation.result": ("Generation", "Image"),
    "sdort.optimizer.command": ("optimize",),
    "sdort.warmup.command": ("Warmup", "warm"),
}
"""Module -> the public names that it defines."""

_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
