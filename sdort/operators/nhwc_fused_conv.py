"""com.microsoft.NhwcFusedConv: FusedConv on (N, H, W, C) with weights (M, kH, kW, C / group)."""

from dataclasses import replace

from sdort.graph.operator import Call, Example
from sdort.operators import fused_conv, nhwc_conv


def definition(call: Call) -> str | None:
    end = fused_conv.activated(call)
    conv = f"convolved = Conv {call.text(*nhwc_conv.SETTINGS)} (planes, filters{', B' if call.has('B') else ''})"
    return (
        end
        and f"""
      planes = Transpose <perm = [0, 3, 1, 2]> (X)
      filters = Transpose <perm = [0, 3, 1, 2]> (W)
      {conv.replace("convolved", "turned", 1)}
      convolved = Transpose <perm = [0, 2, 3, 1]> (turned)
      {end}"""
    )


OPERATOR = replace(
    fused_conv.OPERATOR,
    name="NhwcFusedConv",
    infer=nhwc_conv.infer,
    definition=definition,
    on_cpu=definition,  # ONNX Runtime's own kernel there is for fp16 on some processors
    channels_axis=nhwc_conv.channels_axis,
    examples=(
        Example({"X": (2, 6, 5, 4), "W": (6, 3, 1, 4), "B": (6,)}, {"activation": "Relu", "pads": [1, 0, 1, 0]}),
        Example(
            {"X": (2, 6, 5, 4), "W": (6, 3, 3, 2), "Z": (2, 4, 3, 6)},
            {"activation": "HardSigmoid", "activation_params": [0.25, 0.5], "group": 2},
        ),
    ),
)
