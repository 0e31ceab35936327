"""The execution providers, one file each: ``TARGET`` is what it runs, ``PROVIDER`` what it can be asked for.

The files import neither ONNX Runtime nor graph libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sdort.errors import UsageError

if TYPE_CHECKING:
    from sdort.providers.target import Target

NAMES = ("rocm", "migraphx", "cuda", "cpu")


def load_target(name: str) -> Target:
    """A target by the name that ``--provider`` takes.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in NAMES:
        raise UsageError(f"there is no target {name!r}", hint=f"Choose one of {', '.join(NAMES)}.")
    target: Target = importlib.import_module(f"sdort.providers.{name}").TARGET
    return target
