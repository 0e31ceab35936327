"""com.microsoft.Attention: self-attention that projects its input itself."""

import math

from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import Fact
from sdort.graph.operator import (
    REQUIRED,
    Call,
    Category,
    Example,
    Operator,
    Sizes,
    any_form,
    outputs_only,
    runs_itself,
)
from sdort.graph.symbolic import divide, unknown
from sdort.operators.multi_head_attention import MERGE, attention_steps, masking


def infer(call: Call) -> list[Fact]:
    x, w, dtype = call.shape("input"), call.shape("weights"), call.dtype("input")
    if x is None or w is None:
        return [Fact(dtype)]
    widths = call.attributes["qkv_hidden_sizes"]
    width = widths[2] if widths else divide(w[1], 3)
    return [Fact(dtype, (x[0], x[1], unknown() if width is None else width))]


def heads(call: Call) -> str | None:
    if call.attributes["qkv_hidden_sizes"] or call.attributes["do_rotary"]:
        return None
    return f"""
      heads = Constant <value_ints = [0, 0, {call.attributes["num_heads"]}, -1]> ()
      product = MatMul (input, weights)
      projected = {"Add (product, bias)" if call.has("bias") else "Identity (product)"}
      q3, k3, v3 = Split <axis = -1, num_outputs = 3> (projected)
      q4 = Reshape (q3, heads)
      k4 = Reshape (k3, heads)
      v4 = Reshape (v3, heads)
    """


def definition(call: Call) -> str | None:
    apart = heads(call)
    if apart is None or call.has("mask_index", "past", "past_sequence_length", "present"):
        return None
    mask = masking("attention_bias" if call.has("attention_bias") else None, bool(call.attributes["unidirectional"]))
    return apart + attention_steps(call, mask) + MERGE + "output = Identity (merged)"


def operations(inputs: Sizes, outputs: Sizes) -> int | None:
    batch, rows, width = outputs[0][:3]
    projection = 2 * math.prod(inputs[0]) * inputs[1][1] if len(inputs) > 1 else 0
    return projection + 4 * batch * rows * rows * width


def channels_axis(call: Call) -> int:
    return 0


OPERATOR = Operator(
    name="Attention",
    domain=MICROSOFT,
    category=Category.ATTENTION,
    inputs=("input", "weights", "bias", "mask_index", "past", "attention_bias", "past_sequence_length"),
    outputs=("output", "present"),
    attributes={
        "num_heads": REQUIRED, "do_rotary": None, "mask_filter_value": None, "past_present_share_buffer": None,
        "qkv_hidden_sizes": None, "rotary_embedding_dim": None, "scale": None, "unidirectional": 0,
    },
    infer=infer,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=("weights",),
    operations=operations,
    kernels={"rocm": any_form, "cuda": any_form, "cpu": any_form},
    unserved={},
    channels_axis=channels_axis,
    heads=heads,
    examples=(
        Example({"input": (2, 5, 8), "weights": (8, 36), "bias": (36,)}, {"num_heads": 3}, outputs=("output",)),
        Example(
            {"input": (2, 5, 8), "weights": (8, 36), "bias": (36,)},
            {"num_heads": 3, "unidirectional": 1, "scale": 0.2},
            outputs=("output",),
        ),
    ),
)  # fmt: skip
