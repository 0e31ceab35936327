"""The library's kernels as PyTorch operators: importing this package makes ``torch.ops.sdort.*``.

What puts them into diffusers' modules is imported when it is first asked for, as diffusers is then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdort.machine.optional_packages import COMPARING, need_packages

need_packages("torch", what=__name__)

from sdort.integrations.torch_operators import definitions as _definitions  # noqa: E402, F401  (registers them)

if TYPE_CHECKING:
    from sdort.integrations.torch_operators.module_replacement import Replacement, replace

__all__ = ["Replacement", "replace"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_packages(*COMPARING, what=f"{__name__}.{name}")
    from sdort.integrations.torch_operators import module_replacement

    value = globals()[name] = getattr(module_replacement, name)
    return value
