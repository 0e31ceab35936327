"""RMSNormalization as exporters below opset 23 write it: y = gamma * x / sqrt(mean(x^2) + epsilon) over the last axes.

https://arxiv.org/abs/1910.07467; the root mean square norms of T5, Llama and diffusers' transformers.
"""

from typing import Any

from sdort.fusions.layer_normalization import normalized_sizes, parameter, parameter_refusal

from sdort.rewrite.match import Match, Refusal

STAGE = "raise"
ANCHOR = "ReduceMean"
RUN_AFTER = ("norm_square", "norm_root", "norm_division", "layer_normalization")
_BEFORE = """
g (float[] x{0}) => (float[] y) <float epsilon, int64[] axes> {{
    square = Mul (x, x)
    mean = ReduceMean <keepdims = 1> (square, axes)
    shifted = Add (mean, epsilon)
    root = Sqrt (shifted)
    {1}
}}"""
BEFORE = tuple(
    _BEFORE.format(more, end)
    for more, end in (
        (", float[] gamma", "normal = Div (x, root)  y = Mul (normal, gamma)"),
        (", float[] gamma", "scaled = Mul (x, gamma)  y = Div (scaled, root)"),
        ("", "y = Div (x, root)"),
    )
)
AFTER = """
g (float[] x, float[] scale) => (float[] y) {
    y = RMSNormalization <axis: int = @axis, epsilon: float = @eps> (x, scale)
}"""
EXAMPLE = {"x": [2, 3, 8], "gamma": [8], "axes": [-1], "epsilon": [1e-5]}


def check(m: Match) -> Refusal | None:
    sizes = normalized_sizes(m)
    return sizes if isinstance(sizes, Refusal) else parameter_refusal(m, "gamma", sizes)


def derive(m: Match) -> dict[str, Any]:
    sizes = normalized_sizes(m)
    assert not isinstance(sizes, Refusal)
    return {"scale": parameter(m, "gamma", sizes), "axis": -len(sizes), "eps": m.scalar("epsilon")}
