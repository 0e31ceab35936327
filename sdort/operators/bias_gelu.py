"""com.microsoft.BiasGelu: the exact Gelu of A + B."""

from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, runs_itself, same
from sdort.operators.gelu import by_error_function


def definition(call: Call) -> str:
    return "biased = Add (A, B)" + by_error_function("biased", "C")


OPERATOR = Operator(
    name="BiasGelu",
    domain=MICROSOFT,
    category=Category.ACTIVATION,
    inputs=("A", "B"),
    outputs=("C",),
    attributes={},
    infer=same,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=(),
    operations=9,
    kernels={"rocm": any_form, "migraphx": any_form, "cuda": any_form, "webgpu": any_form, "cpu": any_form},
    unserved={},
    examples=(Example({"A": (2, 5, 12), "B": (12,)}),),
)
