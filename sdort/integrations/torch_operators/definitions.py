"""The operators ``torch.ops.sdort.*``: their schemas, and what torch asks of an operator.

Importing this module registers them. They run as kernels of the library on the CPU and on GPUs of CUDA and HIP (torch
calls both ``cuda``), and as :mod:`~sdort.integrations.torch_operators.formulas` where there is none for a tensor.
Results lie in memory as x does, attention's as (N, S, h, e).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sdort.integrations.torch_operators import argument_checks, formulas, problems
from sdort.integrations.torch_operators.launching import current, kernels_for, launch, tell, where_of
from sdort.integrations.torch_operators.problems import Kept, UnservedError

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


def _define(schema: str) -> None:
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.needs_fixed_stride_order,))
    arguments = getattr(torch.ops.sdort, name).default._schema.arguments
    defaults = tuple(argument.default_value for argument in arguments)
    check, formula, problem = (getattr(module, name) for module in (argument_checks, formulas, problems))
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
        with current(given[0]):
            return on_device(given)

    def on_device(given: tuple[Any, ...]) -> Result:
        where = where_of(given[0])
        kernels = kernels_for(where)
        if kernels is None:
            return by_formula(*given)
        kept: Kept = []
        out = outputs(None, *given)
        try:
            made = problem(out, kept, *given)
        except UnservedError as reason:
            tell(f"torch.ops.sdort.{name} runs as torch's own operators: {reason}")
            return by_formula(*given)
        launch(made, given[0], where, kernels)
        return out

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Result) -> None:
        tensors, ctx.rest = saved(inputs, output)
        ctx.save_for_backward(*tensors)

    for key, function in (("CPU", by_kernel), ("CUDA", by_kernel), ("CompositeExplicitAutograd", by_formula)):
        _library.impl(name, function, key)
    torch.library.register_fake(f"sdort::{name}", lambda *given: outputs(None, *completed(given)), lib=_library)
    torch.library.register_autograd(f"sdort::{name}", _BACKWARD[name], setup_context=setup_context, lib=_library)


for _schema in SCHEMAS:
    _define(_schema)
