"""ModulatedLayerNormalization and its kin: which of them a case's node is, its optional tensors say.

With a sum it is gated, with a bias it is by the root mean square, and else, with beta, it is modulated twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from support.drawn import unit_of
from support.group_norm_cases import exact as normalized
from support.group_norm_cases import tolerance
from support.row_cases import Rows, normal
from support.rows import Array, Inputs, Promise, Results, RowOperator, held
from support.rows.gated_sum import image_rows, images, sum_of


def is_gated(case: Rows) -> bool:
    return "sum" in case.optional


def is_rms(case: Rows) -> bool:
    return "bias" in case.optional


def is_twice(case: Rows) -> bool:
    return "beta" in case.optional and not is_rms(case)


def attributes(case: Rows) -> dict[str, Any]:
    more = {"branch_epsilon": 2 * case.epsilon} if is_gated(case) and is_rms(case) else {}
    return {"epsilon": case.epsilon, **more}


def sizes(case: Rows) -> dict[str, Any]:
    return {"image_rows": image_rows(case), "rms": int(is_rms(case)), "branch_epsilon": 2 * case.epsilon}


def inputs(case: Rows) -> Inputs:
    """In the order of the operator that the case is of; the row's last element lies far off."""
    x, branch = (case.grid(i, case.rows, case.width, mean=case.mean) for i in (0, 1))
    x[:, -1] += case.dtype(16 * unit_of(case.spread))
    rng = np.random.default_rng([case.seed, 2])
    scale, shift, scale2, shift2, gate = (
        normal(rng, images(case), case.width, dtype=case.dtype, scale=size) for size in (1, 1, 1, 1, 0.25)
    )
    weight, factor = (normal(rng, case.width, dtype=case.dtype) for _ in range(2))
    found: Inputs = {"x": x}
    if is_gated(case):
        added = {"factor": factor} if is_rms(case) else {"bias": case.grid(3, case.width)}
        found |= {"branch": branch, **added, "gate": gate}
    found |= {"weight": weight, "scale": scale} if is_rms(case) else {"scale": scale, "shift": shift}
    return found | ({"scale2": scale2, "shift2": shift2} if is_twice(case) else {})


def root_mean_square(x: Array, epsilon: float) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon))


def results(case: Rows, tensors: Inputs) -> Results:
    """What rounding the sum's terms loses counts as the mean's own rounding does, relative to the deviation."""
    given = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    total, terms = given["x"], np.abs(given["x"])
    many = 8 + case.width / 32
    if "factor" in given:
        inner = root_mean_square(given["branch"], 2 * case.epsilon) * given["factor"]
        total, terms = sum_of(case, {**given, "branch": inner, "bias": np.zeros(case.width)})
        terms = terms + many * (terms - np.abs(given["x"]))
    elif is_gated(case):
        total, terms = sum_of(case, given)
    lost = 2.0**-23 * terms
    ones, zeros = np.ones(case.width), np.zeros(case.width)
    if is_rms(case):
        root = np.sqrt((total**2).mean(-1, keepdims=True) + case.epsilon)
        plain = total / root
        error = 2.0**-24 * many * np.abs(plain) + (lost + np.abs(plain) * lost.max(-1, keepdims=True)) / root
        plain, error = plain * given["weight"], error * np.abs(given["weight"])
    else:
        found, error = normalized(total[:, None], ones, zeros, 1, False, case.epsilon)
        plain, error = found[:, 0], error[:, 0]
        deviation = np.sqrt(total.var(-1, keepdims=True) + case.epsilon)
        spread = lost + lost.mean(-1, keepdims=True) + np.abs(plain) * lost.max(-1, keepdims=True)
        error = error + (spread + 2.0**-23 * np.abs(total).mean(-1, keepdims=True)) / deviation

    def modulated(scale: str, shift: str) -> tuple[Array, Array]:
        by = np.repeat(given[scale], image_rows(case), 0)
        moved = np.repeat(given[shift], image_rows(case), 0) if shift in given else np.zeros_like(by)
        y = plain * by + moved
        wrong = error * np.abs(by) + 2.0**-23 * (np.abs(plain * by) + np.abs(moved))
        return y, tolerance(y, wrong, case.dtype)

    outputs = {"y": modulated("scale", "shift")}
    if is_gated(case):
        outputs["sum"] = total, tolerance(total, lost, case.dtype)
    return outputs | ({"y2": modulated("scale2", "shift2")} if is_twice(case) else {})


LAYER, ROOT = frozenset({"sum", "beta"}), frozenset({"sum", "bias"})
"""Gated, of a layer norm that is modulated twice, and of root mean squares: together all that a kernel has."""
IN_BOTH_FORMS = ("l32v1", "l128v2", "wide")


def variants(dtype: Any, wave: int) -> Iterator[tuple[str, Rows]]:
    """Those of ``rows::held``, in one form after the other; some in both."""
    for (variant, case), form in zip(held(dtype, wave), itertools.cycle((LAYER, ROOT)), strict=False):
        for optional in (LAYER, ROOT) if variant in IN_BOTH_FORMS else (form,):
            yield variant, replace(case, optional=optional)


def promise(variant: str, nvidia: bool) -> Promise:
    if variant == "wide":
        return Promise(16)
    vectors = int(variant[-1])
    blocks = {1: 12, 2: 8, 3: 5, 5: 3}[vectors] if nvidia else {1: 16, 2: 16, 3: 10, 5: 6}[vectors]
    # X, branch, gate, bias, factor, scale, shift, weight, the second scale and shift; sum, Y, Y2
    return Promise(blocks, 2 * vectors, 10 * vectors, 3 * vectors)


def as_input(case: Rows, name: str, value: Array) -> Array:
    """Rows as (B, S, C), modulations as (B, 1, C)."""
    return value.reshape(images(case), -1, case.width) if value.ndim == 2 else value


@dataclass(frozen=True)
class Modulated(RowOperator):
    """Of six operators."""

    def node(self, case: Rows) -> tuple[str, dict[str, Array | None], list[str], dict[str, Any]]:
        name, *others = super().node(case)
        name = f"{'Gated' * is_gated(case)}{'Twice' * is_twice(case)}Modulated{'RMS' if is_rms(case) else 'Layer'}"
        return f"{name}Normalization", *others  # type: ignore[return-value]


OPERATOR = Modulated(
    "ModulatedLayerNormalization",
    inputs,
    results,
    variants,
    promise,
    attributes=attributes,
    as_input=as_input,
    domain="sdort",
    sizes=sizes,
)
