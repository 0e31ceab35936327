"""sdort.MultiHeadAttention: com.microsoft.MultiHeadAttention of heads too wide for ONNX Runtime's fast kernels.

Which heads that are, its fusion says (fusions/wide_attention.py); the library computes every size.
"""

from dataclasses import replace

from sdort.graph.domains import MICROSOFT, OWN_DOMAIN
from sdort.graph.operator import REQUIRED, Call, Example, outputs_only
from sdort.operators import multi_head_attention


def definition(call: Call) -> str:
    """The function that a model carries: ONNX Runtime's own operator."""
    return f"output = {MICROSOFT}.MultiHeadAttention {call.text('num_heads', 'scale')} (query, key, value)"


OPERATOR = replace(
    multi_head_attention.OPERATOR,
    domain=OWN_DOMAIN,
    inputs=("query", "key", "value"),
    outputs=("output",),
    attributes={"num_heads": REQUIRED, "scale": 0.0},  # 0: one over the square root of the head size
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    kernels={"cuda": multi_head_attention.any_mask},
    outdone=None,
    unserved={},
    examples=(Example({"query": (2, 5, 12), "key": (2, 7, 12), "value": (2, 7, 12)}, {"num_heads": 3, "scale": 0.25}),),
    trials=multi_head_attention.OPERATOR.trials[:2],
)
