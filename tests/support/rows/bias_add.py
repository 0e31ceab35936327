"""BiasAdd: sums are exact, so they are rounded once."""

from __future__ import annotations

import numpy as np
from support.row_cases import Rows
from support.rows import Inputs, Promise, Results, RowOperator, rounded_once


def inputs(case: Rows) -> Inputs:
    x, skip = (case.grid(i, case.rows, case.width, mean=case.mean) for i in (0, 1))
    return {"x": x, "bias": case.grid(2, case.width), "skip": skip}


def results(case: Rows, tensors: Inputs) -> Results:
    x, bias, skip = (np.asarray(value, np.float64) for value in tensors.values())
    return {"y": rounded_once(x + bias + skip, case.dtype)}


def promise(variant: str, nvidia: bool) -> Promise:
    if variant == "narrow":
        return Promise(blocks=8)
    return Promise(blocks=8, in_flight=2, loads=3, stores=1)  # X, skip, bias; Y


OPERATOR = RowOperator("BiasAdd", inputs, results, promise=promise)
