"""Forms of ONNX's Attention: a model of each, random inputs, and what the specification says of them in float64.

Specification: https://onnx.ai/onnx/operators/onnx__Attention.html (opset 23).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

Array = npt.NDArray[Any]
BATCH, HEADS = 2, 4
FLOAT, HALF, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE


@dataclass(frozen=True)
class Form:
    """One use of the operator.

    ``mask`` says what its elements are, ``axes`` which of [batch, heads, rows, keys] it has: ``b1rk`` has one head for
    all; ``short`` keys at its end are left out.
    """

    apart: bool = False
    """Heads have an axis of their own."""
    kv_heads: int = HEADS
    rows: int = 5
    keys: int = 7
    past: int = 0
    size: int = 8
    value_size: int = 8
    mask: str = ""
    axes: str = "rk"
    short: int = 0
    causal: bool = False
    scale: float | None = None
    softcap: float = 0.0
    precision: int | None = None
    mode: int | None = None
    """Of qk_matmul_output, which then is a second result."""
    dynamic: bool = False

    def __str__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return "-".join(f"{k}={v}" for k, v in values.items() if v != getattr(Form, k)) or "plain"


CHOICES: dict[str, tuple[Any, ...]] = {
    "apart": (False, True), "kv_heads": (4, 4, 2, 1), "rows": (1, 5, 6), "keys": (5, 6, 7), "past": (0, 0, 3),
    "value_size": (8, 8, 6), "mask": ("", "float", "bool", "infinite"),
    "axes": ("rk", "nrk", "1nrk", "b1rk", "bnrk", "b11k", "11rk", "1rk", "1k"), "short": (0, 0, 0, 2),
    "causal": (False, False, True), "scale": (None, 0.3), "softcap": (0.0, 0.0, 1.5),
    "precision": (None, None, FLOAT, HALF, DOUBLE), "mode": (None, None, 0, 1, 2, 3), "dynamic": (False, True),
}  # fmt: skip


def random_form(rng: np.random.Generator) -> Form:
    """A form with every property drawn; nothing that the specification rules out."""
    chosen = {name: values[rng.integers(len(values))] for name, values in CHOICES.items()}
    if not chosen["mask"] or "k" not in chosen["axes"]:
        chosen["short"] = 0
    return Form(**chosen)


def mask_of(form: Form, rng: np.random.Generator) -> Array:
    total = form.keys + form.past
    sizes = {"b": BATCH, "n": HEADS, "r": form.rows, "k": total - form.short, "1": 1}
    shape = [sizes[axis] for axis in form.axes]
    if form.mask == "float":
        return rng.standard_normal(shape).astype(np.float32)
    open_ = rng.random(shape) < 0.6
    open_[..., :1, :] &= rng.random() < 0.5  # of some masks the first row is closed
    if form.mask == "bool":
        return open_
    return np.where(open_, rng.standard_normal(shape), -np.inf).astype(np.float32)


def inputs_of(form: Form, rng: np.random.Generator) -> dict[str, Array]:
    """Random inputs by name, in the operator's order; those that the form leaves out are missing."""

    def heads(count: int, rows: int, size: int) -> Array:
        values = rng.standard_normal((BATCH, count, rows, size)).astype(np.float32)
        return values if form.apart else values.transpose(0, 2, 1, 3).reshape(BATCH, rows, count * size)

    found = {
        "Q": heads(HEADS, form.rows, form.size),
        "K": heads(form.kv_heads, form.keys, form.size),
        "V": heads(form.kv_heads, form.keys, form.value_size),
    }
    if form.mask:
        found["mask"] = mask_of(form, rng)
    if form.past:
        for name, size in (("past_key", form.size), ("past_value", form.value_size)):
            found[name] = rng.standard_normal((BATCH, form.kv_heads, form.past, size)).astype(np.float32)
    return found


def model_of(form: Form, inputs: dict[str, Array], dtype: int = FLOAT) -> onnx.ModelProto:
    """A model of one Attention, whose floating-point tensors are all of ``dtype``."""
    names = [name if name in inputs else "" for name in ("Q", "K", "V", "mask", "past_key", "past_value")]
    while not names[-1]:
        names.pop()
    attrs: dict[str, Any] = {"scale": form.scale, "softmax_precision": form.precision}
    attrs |= {"is_causal": 1} if form.causal else {}
    attrs |= {"softcap": form.softcap} if form.softcap else {}
    attrs |= {} if form.apart else {"q_num_heads": HEADS, "kv_num_heads": form.kv_heads}
    attrs |= {"qk_matmul_output_mode": form.mode} if form.mode is not None else {}
    outputs = ["Y", "present_key" if form.past else "", "present_value" if form.past else ""]
    outputs.append("" if form.mode is None else "scores")
    while not outputs[-1]:
        outputs.pop()
    node = helper.make_node(
        "Attention", names, outputs, "attention", **{k: v for k, v in attrs.items() if v is not None}
    )
    infos = [_info(form, name, value, dtype) for name, value in inputs.items()]
    results = [helper.make_tensor_value_info(name, dtype, None) for name in outputs if name]
    graph = helper.make_graph([node], "attention", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def _info(form: Form, name: str, value: Array, dtype: int) -> onnx.ValueInfoProto:
    shape: list[int | str] = list(value.shape)
    if form.dynamic:
        rows = 2 if form.apart or name.startswith("past") else 1
        names = {
            "Q": {0: "batch", rows: "rows"},
            "past_key": {0: "batch", 2: "past"},
            "past_value": {0: "batch", 2: "past"},
        }
        shape = [names.get(name, {0: "batch", rows: "keys"}).get(axis, size) for axis, size in enumerate(shape)]
        if name == "mask":
            sizes: dict[str, int | str] = {"b": "batch", "n": HEADS, "r": "rows", "1": 1}
            shape = [sizes[axis] for axis in form.axes[:-1]]
            # Its keys are those of past and present together.
            shape.append(value.shape[-1] if form.short else "total" if form.past else "keys")
    return helper.make_tensor_value_info(name, TensorProto.BOOL if value.dtype == np.bool_ else dtype, shape)


def expected(form: Form, inputs: dict[str, Array]) -> dict[str, Array]:
    """The results in float64, by the specification's words."""
    q, k, v = (_heads(form, inputs[name].astype(np.float64), name) for name in ("Q", "K", "V"))
    if form.past:
        k = np.concatenate([inputs["past_key"], k], 2)
        v = np.concatenate([inputs["past_value"], v], 2)
    found = {"present_key": k, "present_value": v} if form.past else {}
    k, v = (np.repeat(each, HEADS // form.kv_heads, 1) for each in (k, v))
    total = k.shape[2]
    bias = np.zeros((form.rows, total))
    if form.mask:
        mask = inputs["mask"]
        given = np.where(mask, 0, -np.inf) if mask.dtype == np.bool_ else mask.astype(np.float64)
        bias = bias + np.pad(given, [(0, 0)] * (given.ndim - 1) + [(0, form.short)], constant_values=-np.inf)
    if form.causal:
        bias = np.where(np.arange(total) <= np.arange(form.rows)[:, None] + form.past, bias, -np.inf)
    raw = q @ k.transpose(0, 1, 3, 2) * (form.scale or form.size**-0.5)
    capped = form.softcap * np.tanh(raw / form.softcap) if form.softcap else raw
    masked = capped + bias
    closed = np.broadcast_to(np.isneginf(bias).all(-1, keepdims=True), (*masked.shape[:-1], 1))
    powers = np.exp(masked - np.where(closed, 0, masked.max(-1, keepdims=True)))
    shares = np.where(closed, 0, powers / np.where(closed, 1, powers.sum(-1, keepdims=True)))
    result = shares @ v
    found["Y"] = result if form.apart else result.transpose(0, 2, 1, 3).reshape(BATCH, form.rows, -1)
    if form.mode is not None:
        found["scores"] = (raw, capped, masked, shares)[form.mode]
    return found


def _heads(form: Form, values: Array, name: str) -> Array:
    if form.apart:
        return values
    heads = HEADS if name == "Q" else form.kv_heads
    return values.reshape(BATCH, values.shape[1], heads, -1).transpose(0, 2, 1, 3)
