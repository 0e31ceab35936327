"""ONNX Runtime's FusedConv, as another tool has put it in: the Conv, a sum and an activation."""

from itertools import product
from typing import Any

import numpy as np

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "restore"
ANCHOR = "com.microsoft.FusedConv"
_SETTINGS = """auto_pad: string = @auto_pad, dilations: ints = @dilations, group: int = @group,
    kernel_shape: ints = @kernel, pads: ints = @pads, strides: ints = @strides"""
ACTIVATIONS = {
    "": "y = Identity (summed)",
    "Relu": "y = Relu (summed)",
    "Sigmoid": "y = Sigmoid (summed)",
    "Tanh": "y = Tanh (summed)",
    "LeakyRelu": "y = LeakyRelu <alpha: float = @first> (summed)",
    "HardSigmoid": "y = HardSigmoid <alpha: float = @first, beta: float = @second> (summed)",
    "Clip": "y = Clip (summed, low, high)",
}
"""By the name that the node has, with its parameters (onnxruntime/core/optimizer/conv_activation_fusion.cc)."""
PARAMETERS = {"LeakyRelu": 1, "HardSigmoid": 2, "Clip": 2}
FORMS = (
    *((activation, bias, 0) for activation, bias in product(ACTIVATIONS, (1, 0)) if activation),
    *((activation, bias, 1) for activation, bias in product(("", "Relu"), (1, 0))),  # others ONNX Runtime adds to none
)
"""Activation, whether there is a bias, whether a tensor is added."""


def texts(fused: str, conv: str, activation: str, bias: int, added: int) -> tuple[str, str]:
    """Before and After of one form; ``fused`` and ``conv`` are the operators."""
    optional = "".join(f", float[] {name}" for name, there in (("bias", bias), ("added", added)) if there)
    head = f"g (float[] x, float[] weight{optional}) => (float[] y)"
    given = ["x", "weight", *(["bias"] if bias else ['""'] if added else []), *(["added"] if added else [])]
    name = f'activation = "{activation}", ' if activation else ""
    name += "activation_params: floats = @params, " if activation in PARAMETERS else ""
    before = f"{head} {{ y = {fused} <{name}{_SETTINGS}> ({', '.join(given)}) }}"
    last = ACTIVATIONS[activation].replace("summed", "summed" if added else "convolved")
    return before, f"""{head} {{
    convolved = {conv} <{_SETTINGS}> (x, weight{", bias" if bias else ""})
    {"summed = Add (convolved, added)" if added else ""}
    {last}
}}"""  # fmt: skip


BEFORE, AFTER = zip(*(texts(ANCHOR, "Conv", *form) for form in FORMS), strict=True)
SETTINGS = {
    "auto_pad": "NOTSET", "dilations": [1, 1], "group": 2, "pads": [1, 0, 1, 0], "strides": [2, 1], "kernel": [3, 1],
    "params": tuple([0.25, 0.75][: PARAMETERS.get(activation, 0)] for activation, *_ in FORMS),
}  # fmt: skip
EXAMPLE = {**SETTINGS, "x": [2, 4, 5, 6], "weight": [8, 2, 3, 1], "bias": [8], "added": [2, 8, 3, 6]}


def check(m: Match) -> Refusal | None:
    given = m.attrs.get("params") or []
    (activation,) = {node.attrs.get("activation", "") for node in m.nodes.values()}
    wanted = PARAMETERS.get(activation, 0)
    if wanted and len(given) != wanted:
        return refuse(f"its {activation} needs {wanted} activation_params", tuple(given))
    return None


def derive(m: Match) -> dict[str, Any]:
    first, second = [*(m.attrs.get("params") or []), 0.0, 0.0][:2]
    dtype = m.editor.dtype(m["x"])
    return {
        "first": first,
        "second": second,
        "low": m.editor.constant(np.array(first, dtype), "low"),
        "high": m.editor.constant(np.array(second, dtype), "high"),
    }
