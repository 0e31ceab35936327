"""SplitFastGelu; of cases that are drawn with a bias, SplitSilu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from support.group_norm_cases import tolerance
from support.row_cases import Rows
from support.rows import Array, Inputs, Promise, Results, RowOperator

GELU = 2 * np.sqrt(2 / np.pi)


def inputs(case: Rows) -> Inputs:
    return {"x": case.grid(0, case.rows, 2 * case.width)}


def sizes(case: Rows) -> dict[str, Any]:
    return {"linear": 1.0, "cubic": 0.0} if "bias" in case.optional else {"linear": GELU, "cubic": 0.044715 * GELU}


def results(case: Rows, tensors: Inputs) -> Results:
    """The exponent is rounded some times, each 2^-24 of it; all else loses some units in the last place."""
    left, right = np.split(np.asarray(tensors["x"], np.float64), 2, -1)
    numbers = sizes(case)
    power = right * (numbers["linear"] + numbers["cubic"] * right**2)
    share = np.exp(np.minimum(power, 0)) / (1 + np.exp(-np.abs(power)))
    exact = left * right * share
    error = np.abs(exact) * 2.0**-24 * (16 + 5 * np.minimum(np.abs(power), 87)) + np.abs(left * right) * 1e-37
    return {"y": (exact, tolerance(exact, error, case.dtype))}


def promise(variant: str, nvidia: bool) -> Promise:
    if variant == "narrow":
        return Promise(blocks=8)
    return Promise(blocks=8, in_flight=2, loads=2, stores=1)  # two halves of X; Y


@dataclass(frozen=True)
class Split(RowOperator):
    """Of two operators: which one a case's node is, its activation says."""

    def node(self, case: Rows) -> tuple[str, dict[str, Array | None], list[str], dict[str, Any]]:
        name, *others = super().node(case)
        return ("SplitSilu" if "bias" in case.optional else name), *others  # type: ignore[return-value]


OPERATOR = Split("SplitFastGelu", inputs, results, promise=promise, spread=3.0, domain="sdort", sizes=sizes)
