"""com.microsoft.QuickGelu: x * sigmoid(alpha * x)."""

from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, runs_itself, same


def definition(call: Call) -> str:
    return f"""
      alpha = Constant <value_float = {call.attributes["alpha"]:.20f}> ()
      bent = Mul (X, alpha)
      gate = Sigmoid (bent)
      Y = Mul (X, gate)"""


OPERATOR = Operator(
    name="QuickGelu",
    domain=MICROSOFT,
    category=Category.ACTIVATION,
    inputs=("X",),
    outputs=("Y",),
    attributes={"alpha": 1.702},
    infer=same,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=(),
    operations=5,
    kernels={
        "rocm": any_form,
        "migraphx": any_form,
        "cuda": any_form,
        "webgpu": any_form,
        "openvino": any_form,
        "cpu": any_form,
    },
    unserved={},
    examples=(Example({"X": (2, 5, 12)}), Example({"X": (2, 5, 12)}, {"alpha": 1.0})),
)
