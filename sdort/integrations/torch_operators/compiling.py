"""Inductor's code for the operators: kernels of the library in CUDA graphs, else kernels of its own.

A compiled program calls a library's operator as eager code does, at the same cost of the host. Of torch's own operators
Inductor makes kernels that it fuses and launches in a few microseconds. A CUDA graph replays both for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

Results: TypeAlias = Tensor | tuple[Tensor, ...]


def offer_formulas(operators: Mapping[Any, tuple[Callable[..., Results], Callable[..., Results]]]) -> None:
    """Have Inductor compile formulas in the place of operators, where it records no CUDA graphs.

    Args:
        operators: operator -> its formula, and empty results of the right strides.
    """
    from torch._inductor import config, decomposition, lowering

    def define(operator: Any, formula: Callable[..., Results], outputs: Callable[..., Results]) -> None:
        @decomposition.register_decomposition([operator])  # type: ignore[untyped-decorator]
        def decomposed(*given: Any) -> Any:
            if config.triton.cudagraphs:
                return NotImplemented
            computed, wanted = formula(*given), outputs(*given)
            if isinstance(computed, Tensor) and isinstance(wanted, Tensor):
                return _laid_out(computed, wanted)
            return tuple(_laid_out(each, like) for each, like in zip(computed, wanted, strict=True))

    for operator, (formula, outputs) in operators.items():
        define(operator, formula, outputs)
        lowering.make_fallback(operator, lowering.constrain_to_fx_strides, warn=False, override_decomp=True)
    if clear := getattr(decomposition.fast_random_decomps, "cache_clear", None):
        clear()  # a table that an earlier compilation made


def _laid_out(computed: Tensor, wanted: Tensor) -> Tensor:
    """``computed`` with the strides of ``wanted``, without a write in place: programs have none there."""
    if computed.stride() == wanted.stride():
        return computed
    if wanted.ndim != 4 or wanted.is_contiguous():
        return computed.contiguous()
    if wanted.is_contiguous(memory_format=torch.channels_last):
        return computed.contiguous(memory_format=torch.channels_last)
    return computed.transpose(1, 2).contiguous().transpose(1, 2)  # attention's rows of heads
