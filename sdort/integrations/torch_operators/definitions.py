"""The operators ``torch.ops.sdort.*``: their schemas, and what torch asks of an operator.

Importing this module registers them. They run as kernels of the library on the CPU and on GPUs of CUDA and HIP (torch
calls both ``cuda``), and as :mod:`~sdort.integrations.torch_operators.formulas` where there is none for a tensor.
Results lie in memory as x does, attention's as (N, S, h, e).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sdort.errors import ProviderError
from sdort.integrations.torch_operators import argument_checks, formulas
from sdort.integrations.torch_operators.compiling import offer_formulas
from sdort.integrations.torch_operators.launching import reason, serves, tell

_library = torch.library.Library("sdort", "DEF")

SCHEMAS = (
    "bias_add(Tensor x, Tensor bias, Tensor skip) -> Tensor",
    "bias_split_gelu(Tensor x, Tensor bias) -> Tensor",
    "layer_norm(Tensor x, Tensor weight, Tensor? bias=None, float eps=1e-05) -> Tensor",
    "skip_layer_norm(Tensor x, Tensor skip, Tensor weight, Tensor? bias=None, float eps=1e-05, Tensor? shift=None)"
    " -> (Tensor, Tensor)",
    "group_norm(Tensor x, int groups, Tensor weight, Tensor bias, float eps=1e-05, bool silu=False,"
    " Tensor? shift=None) -> Tensor",
    "skip_group_norm(Tensor x, Tensor skip, int groups, Tensor weight, Tensor bias, float eps=1e-05, bool silu=False,"
    " Tensor? shift=None) -> (Tensor, Tensor)",
    "attention(Tensor query, Tensor key, Tensor value, float? scale=None, bool causal=False) -> Tensor",
)

Result: TypeAlias = Tensor | tuple[Tensor, ...]
Device: TypeAlias = torch.device | str | None


def _like_x(device: Device, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, device=device)


def _twice_like_x(device: Device, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, device=device), torch.empty_like(x, device=device)


def _half_as_wide(device: Device, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2), device=device)


def _heads_in_rows(device: Device, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    batches, heads, queries, _ = query.shape
    width = value.shape[3]
    strides = (queries * heads * width, width, heads * width, 1)
    return query.new_empty_strided((batches, heads, queries, width), strides, device=device)


_OUTPUTS: dict[str, Callable[..., Result]] = {
    "bias_add": _like_x,
    "bias_split_gelu": _half_as_wide,
    "layer_norm": _like_x,
    "skip_layer_norm": _twice_like_x,
    "group_norm": _like_x,
    "skip_group_norm": _twice_like_x,
    "attention": _heads_in_rows,
}
"""Empty results, on the arguments' device or another; of fake tensors fake ones."""


def _bias_add_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (bias,) = ctx.saved_tensors
    return formulas.bias_add_backward(gradient, bias)


def _bias_split_gelu_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return formulas.bias_split_gelu_backward(gradient, *ctx.saved_tensors)


def _layer_norm_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return *formulas.layer_norm_backward(gradient, *ctx.saved_tensors, *ctx.rest), None


def _skip_layer_norm_backward(ctx: Any, gradient: Tensor, of_sum: Tensor) -> tuple[Any, ...]:
    total, weight, bias, shift = ctx.saved_tensors
    dtotal, dweight, dbias = formulas.layer_norm_backward(gradient, total, weight, bias, *ctx.rest)
    dtotal = dtotal + of_sum
    dshift = None if shift is None else formulas.row_shift_gradient(dtotal, shift)
    return dtotal, dtotal, dweight, dbias, None, dshift


def _group_norm_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, weight, bias, shift = ctx.saved_tensors
    groups, eps, silu = ctx.rest
    dx, dweight, dbias = formulas.group_norm_backward(
        gradient, formulas.shifted(x, shift), groups, weight, bias, eps, silu
    )
    dshift = None if shift is None else formulas.shift_gradient(dx, shift)
    return dx, None, dweight, dbias, None, None, dshift


def _skip_group_norm_backward(ctx: Any, gradient: Tensor, of_sum: Tensor) -> tuple[Any, ...]:
    total, weight, bias, shift = ctx.saved_tensors
    groups, eps, silu = ctx.rest
    dtotal, dweight, dbias = formulas.group_norm_backward(gradient, total, groups, weight, bias, eps, silu)
    dtotal = dtotal + of_sum
    dshift = None if shift is None else formulas.shift_gradient(dtotal, shift)
    return dtotal, dtotal, None, dweight, dbias, None, None, dshift


def _attention_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return *formulas.attention_backward(gradient, *ctx.saved_tensors, *ctx.rest), None, None


_SAVED: dict[str, Callable[[tuple[Any, ...], Any], tuple[tuple[Tensor | None, ...], tuple[Any, ...]]]] = {
    "bias_add": lambda given, _: ((given[1],), ()),
    "bias_split_gelu": lambda given, _: (given, ()),
    "layer_norm": lambda given, _: (given[:3], given[3:]),
    "skip_layer_norm": lambda given, out: ((out[1], given[2], given[3], given[5]), (given[4],)),
    "group_norm": lambda given, _: ((given[0], given[2], given[3], given[6]), (given[1], given[4], given[5])),
    "skip_group_norm": lambda given, out: (
        (out[1], given[3], given[4], given[7]),
        (given[2], given[5], given[6]),
    ),
    "attention": lambda given, _: (given[:3], given[3:]),
}
"""Arguments and results -> the tensors and the rest that the backward reads. A sum is kept, not what went into it."""

_BACKWARD = {
    "bias_add": _bias_add_backward,
    "bias_split_gelu": _bias_split_gelu_backward,
    "layer_norm": _layer_norm_backward,
    "skip_layer_norm": _skip_layer_norm_backward,
    "group_norm": _group_norm_backward,
    "skip_group_norm": _skip_group_norm_backward,
    "attention": _attention_backward,
}


def _tensors(result: Result) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result


def _laid_out(computed: Tensor, wanted: Tensor) -> Tensor:
    """``computed`` with the strides of ``wanted``."""
    if computed.stride() == wanted.stride():
        return computed
    return torch.empty_like(wanted, device=computed.device).copy_(computed)


class _Shortcut:
    """``register_autograd`` registers through this: an operator's kernel is called at once where no gradient is wanted.

    The way through torch's autograd and its dispatcher takes the host as long as all the rest of the call. Forward mode
    and torch.func, which know nothing of the operator's backward, differentiate its formula.
    """

    def __init__(self, by_kernel: Callable[..., Result], by_formula: Callable[..., Result]) -> None:
        self.by_kernel, self.by_formula = by_kernel, by_formula

    def impl(self, name: str, autograd: Callable[..., Result], key: str, *, with_keyset: bool) -> None:
        """As ``torch.library.Library.impl``."""
        by_kernel, by_formula = self.by_kernel, self.by_formula
        grad_enabled, are_transformed = torch.is_grad_enabled, torch._C._are_functorch_transforms_active
        in_forward_mode = formulas.in_forward_mode

        def kernel_or_autograd(keys: Any, *given: Any) -> Result:
            if in_forward_mode() or are_transformed():
                return by_formula(*given)
            if not grad_enabled() and _are_plain(keys.raw_repr()):
                return by_kernel(*given)
            return autograd(keys, *given)

        _library.impl(name, kernel_or_autograd, key, with_keyset=with_keyset)


@cache
def _are_plain(keys: int) -> bool:
    """Whether nothing is between autograd and the kernels: no fake tensor, no mode, no subclass, no lazy negation."""
    below = torch._C.DispatchKeySet.from_raw_repr(keys) & torch._C._after_ADInplaceOrView_keyset
    return below.highestPriorityTypeId() in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)


_QUEUED, _UNSERVED, _COPY_NEEDED = 0, 1, 2
"""Return values of a launch; anything else is an error (``custom_ops/torch/operators.cpp``)."""


def _as_vectors(name: str, names: Sequence[str], given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with copies of weights and biases, in the kernels' types and layout."""
    in_float32 = ("weight", "bias") if name.endswith("group_norm") else ()

    def copied(argument: str, x: Any) -> Any:
        if x is None or argument not in _VECTORS:
            return x
        dtype = torch.float32 if argument in in_float32 else given[0].dtype
        return x.to(dtype, copy=True, memory_format=torch.contiguous_format)

    return tuple(copied(argument, x) for argument, x in zip(names, given, strict=True))


_VECTORS = ("weight", "bias", "shift")


def _define_launch(schema: str) -> Callable[..., int]:
    """``torch.ops.sdort.NAME.launch``: all arguments and the empty results to one of the numbers above. The library
    implements it, once it is loaded; nobody else is to call it, as it checks no shapes.
    """
    name, arguments, results = re.fullmatch(r"(\w+)\((.*)\) -> (.*)", schema).groups()  # type: ignore[union-attr]
    outputs = ", ".join(f"Tensor({letter}!) {letter}" for letter in "yz"[: results.count("Tensor")])
    _library.define(f"{name}.launch({re.sub('=[^,]*', '', arguments)}, {outputs}) -> int")
    _library.impl(f"{name}.launch", torch.library.fallthrough_kernel, "Autograd")
    return getattr(torch.ops.sdort, name).launch  # type: ignore[no-any-return]


_FORMULAS: dict[Any, tuple[Callable[..., Result], Callable[..., Result]]] = {}
"""Operators -> what they compute as torch's own, and empty results."""


@cache
def _offer_formulas() -> None:
    """Done when Inductor first traces a program: its import takes a second."""
    # In a torch whose compiler is another inside, programs call the operators, as they do in CUDA graphs.
    with suppress(ImportError, AttributeError, TypeError):
        offer_formulas(_FORMULAS)


def _define(schema: str) -> None:
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.needs_fixed_stride_order,))
    arguments = getattr(torch.ops.sdort, name).default._schema.arguments
    names, defaults = zip(*((argument.name, argument.default_value) for argument in arguments), strict=True)
    check, formula = (getattr(module, name) for module in (argument_checks, formulas))
    launch = _define_launch(schema)
    outputs, saved = _OUTPUTS[name], _SAVED[name]

    def completed(given: tuple[Any, ...]) -> tuple[Any, ...]:  # torch leaves out what is as the schema has it
        given = given + defaults[len(given) :]
        check(*given)
        return given

    def by_formula(*given: Any) -> Result:
        given = completed(given)
        pairs = zip(_tensors(formula(*given)), _tensors(outputs("meta", *given)), strict=True)
        out = tuple(_laid_out(computed, wanted) for computed, wanted in pairs)
        return out if len(out) > 1 else out[0]

    def by_kernel(*given: Any) -> Result:
        given = completed(given)
        if not serves(given[0].get_device()):
            return by_formula(*given)
        out = outputs(None, *given)
        results = _tensors(out)
        done = launch(*given, *results)
        if done == _COPY_NEEDED:
            done = launch(*_as_vectors(name, names, given), *results)
        if done == _QUEUED:
            return out
        if done != _UNSERVED:
            raise ProviderError(f"torch.ops.sdort.{name}: {reason()}")
        tell(f"torch.ops.sdort.{name} runs as torch's own operators: {reason()}")
        return by_formula(*given)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Result) -> None:
        tensors, ctx.rest = saved(inputs, output)
        ctx.save_for_backward(*tensors)

    for key, function in (("CPU", by_kernel), ("CUDA", by_kernel), ("CompositeExplicitAutograd", by_formula)):
        _library.impl(name, function, key)

    def fake(*given: Any) -> Result:
        if "torch._inductor.decomposition" in sys.modules:  # as torch.compile has imported it then
            _offer_formulas()
        return outputs(None, *completed(given))

    _FORMULAS[getattr(torch.ops.sdort, name).default] = (
        lambda *given: formula(*completed(given)),
        lambda *given: outputs(None, *completed(given)),
    )
    torch.library.register_fake(f"sdort::{name}", fake, lib=_library)
    torch.library.register_autograd(
        f"sdort::{name}", _BACKWARD[name], setup_context=setup_context, lib=_Shortcut(by_kernel, by_formula)
    )


for _schema in SCHEMAS:
    _define(_schema)
