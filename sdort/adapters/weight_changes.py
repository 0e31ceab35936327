"""The changes of weights and biases that the tensors of one module of an adapter describe."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from sdort.adapters.weight_deltas import (
    Factor,
    Form,
    Hadamard,
    Kronecker,
    LowRank,
    Product,
    Residual,
    Shape,
    Table,
    Whole,
)

Parts = Mapping[str, Factor]
"""The tensors of a module's change, by the part of it that each one is (see ``adapter_keys``)."""

_MAGNITUDES = ("magnitude", "dora_scale")
_MODIFIERS = {"alpha", *_MAGNITUDES}
_RESIDUAL = ("bias_indices", "bias_values", "bias_size")
"""Single numbers beside a difference, or alone."""
_INTEGERS = {"alpha", "bias_indices", "bias_size"}
"""Parts that may be integers: alpha as trainers make it of a setting, and places."""
_VECTORS = {"bias_values", "bias_size", "alpha", *_MAGNITUDES, "diff", "diff_b", "w_norm", "b_norm", "up_bias"}
"""Parts that may have a single axis."""


class Change(NamedTuple):
    """A change of one parameter of a module."""

    leaf: str
    """The parameter: ``weight`` or ``bias``."""
    kind: str
    """``LoRA``, ``LoHa``, ``LoKr``, ``difference``."""
    form: Form
    rank: int | None
    """The rank that ``alpha`` is divided by; None where alpha does not count."""


class _Recipe(NamedTuple):
    """How the change of a kind is made of parts."""

    leaf: str
    kind: str
    needed: frozenset[str]
    optional: frozenset[str]
    make: Callable[[Parts], Form]


def _hadamard(parts: Parts) -> Form:
    halves = [Product(parts[f"hada_w{n}_a"], parts[f"hada_w{n}_b"], parts.get(f"hada_t{n}")) for n in (1, 2)]
    return Hadamard(*halves)


def _kronecker(parts: Parts) -> Form:
    first, second = (
        Whole(parts[name]) if name in parts else Product(parts[f"{name}_a"], parts[f"{name}_b"], parts.get(core))
        for name, core in (("lokr_w1", ""), ("lokr_w2", "lokr_t2"))
    )
    return Kronecker(first, second)


def _whole(name: str, parts: Parts) -> Form:
    return Whole(parts[name])


def _recipes() -> list[_Recipe]:
    weight, bias, none = "weight", "bias", frozenset[str]()
    recipes = [
        _Recipe(weight, "LoRA", frozenset({"up", "down"}), frozenset({"mid"}),
                lambda parts: LowRank(parts["up"], parts["down"], parts.get("mid"))),
        _Recipe(weight, "LoRA", frozenset({"table_up", "table_down"}), none,
                lambda parts: Table(LowRank(parts["table_up"], parts["table_down"]))),
        _Recipe(weight, "LoHa", frozenset({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}), none, _hadamard),
        _Recipe(weight, "LoHa", frozenset({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2"}),
                none, _hadamard),
    ]  # fmt: skip
    for first, second in product((("w1",), ("w1_a", "w1_b")), (("w2",), ("w2_a", "w2_b"), ("w2_a", "w2_b", "t2"))):
        needed = frozenset(f"lokr_{name}" for name in (*first, *second))
        recipes.append(_Recipe(weight, "LoKr", needed, none, _kronecker))
    for leaf, name in ((weight, "diff"), (weight, "w_norm"), (bias, "diff_b"), (bias, "b_norm"), (bias, "up_bias")):
        kind = "LoRA" if name == "up_bias" else "difference"
        recipes.append(_Recipe(leaf, kind, frozenset({name}), none, partial(_whole, name)))
    return recipes


_RECIPES = _recipes()


def changes_of(parts: Parts) -> list[Change] | str:
    """The changes that the tensors describe, one for each parameter; or the reason why they describe none."""
    rest = parts.keys() - _MODIFIERS
    residual = [parts[name] for name in _RESIDUAL if name in parts]
    if len(residual) == len(_RESIDUAL):
        rest -= set(_RESIDUAL)
    chosen = []
    # The recipe that takes most: LoHa with cores before LoHa without.
    for recipe in sorted(_RECIPES, key=lambda recipe: -len(recipe.needed)):
        if recipe.needed <= rest:
            chosen.append(recipe)
            rest -= recipe.needed | recipe.optional
    if rest or not (chosen or residual):
        return f"a part of the change is missing: there is only {', '.join(sorted(rest or parts))}"
    if len({recipe.leaf for recipe in chosen}) < len(chosen):
        return "there are two changes of the same weight"
    if problem := _problem(parts, chosen):
        return problem
    changes = [Change(recipe.leaf, recipe.kind, recipe.make(parts), None) for recipe in chosen]
    if residual:
        changes = _with_residual(changes, residual)
    if not all(change.form.fits for change in changes):
        return "the shapes of its parts do not belong together"
    if all(_is_out_of_proportion(change.form, parts) for change in changes):
        return f"its factors have far more values than a weight of {changes[0].form.outputs} x {changes[0].form.inputs}"
    # A LoRA's bias is scaled as the product beside it.
    rank = next((change.form.rank for change in changes if change.leaf == "weight"), None)
    return [change._replace(rank=None if change.kind == "difference" else rank) for change in changes]


def _with_residual(changes: list[Change], residual: list[Factor]) -> list[Change]:
    """The changes with single numbers in that of the weight, which may have no other."""
    others = [change for change in changes if change.leaf != "weight"]
    weight = next((change for change in changes if change.leaf == "weight"), None)
    whole = Residual(weight.form if weight else None, *residual)
    return [*others, Change("weight", weight.kind if weight else "difference", whole, None)]


_RANK = 4096
"""A rank up to which factors are taken even if the weight is smaller; usual are 1 to 256."""


def _is_out_of_proportion(form: Form, parts: Parts) -> bool:
    """Whether factors would take much more memory than the largest that mean something: their ranks are those of their
    weight at most. A file of a few kilobytes may claim gigabytes that no disk holds."""
    largest = (form.outputs + form.inputs) * max(_RANK, min(form.outputs, form.inputs))
    return sum(math.prod(factor.shape) for factor in parts.values()) > 2 * largest


def _problem(parts: Parts, chosen: list[_Recipe]) -> str | None:
    for part, factor in parts.items():
        whole = part in _INTEGERS and np.issubdtype(factor.stored.dtype, np.integer)
        if part in _RESIDUAL and (part in _INTEGERS) != whole:
            return f"its {part} are {factor.stored.dtype}"
        if not whole and not np.issubdtype(factor.stored.dtype, np.floating) and str(factor.stored.dtype) != "bfloat16":
            return f"its values are {factor.stored.dtype}, not floating-point numbers"
        if len(factor.shape) < (1 if part in _VECTORS else 2) and part != "alpha":
            return f"the shape {list(factor.shape)} is none of a {part}"
    if "alpha" in parts and math.prod(parts["alpha"].shape) != 1:
        return "its alpha is no single number"
    magnitudes = [part for part in _MAGNITUDES if part in parts]
    decomposed = [recipe for recipe in chosen if recipe.leaf == "weight" and "table_up" not in recipe.needed]
    if len(magnitudes) > 1 or (magnitudes and not decomposed and "bias_values" not in parts):
        return "DoRA's magnitudes belong to no weight"
    return None


def magnitude_of(parts: Parts) -> Factor | None:
    """DoRA's magnitudes, if the change has any."""
    return next((parts[part] for part in _MAGNITUDES if part in parts), None)


def by_input(parts: Parts, outputs: int, shape: Shape) -> bool | None:
    """Whether DoRA's magnitudes are those of input channels; None where there is another number of them.

    peft's are of outputs always, and of shape [1, outputs, 1, 1] for convolutions; LyCORIS's have one axis that is not
    1: the first for outputs, the second for inputs.

    Args:
        outputs: rows of the changed matrix, which may be fused of several weights.
        shape: the weight's.
    """
    magnitude = magnitude_of(parts)
    assert magnitude is not None
    count = math.prod(magnitude.shape)
    if count == outputs and ("magnitude" in parts or magnitude.shape[0] == outputs):
        return False
    if "dora_scale" in parts and magnitude.shape[:2] == (1, *shape[1:2]) and count == shape[1]:
        return True
    return None
