"""ONNX Runtime's SkipLayerNormalization, as another tool has put it in: the sums and the LayerNormalization."""

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "restore"
ANCHOR = "com.microsoft.SkipLayerNormalization"
_PARAMETERS = (("beta, bias", "beta"), ("beta", "beta"), ('"", bias', ""), ("", ""))


def _texts(inputs: str, beta: str) -> tuple[str, str]:
    names = [name for name in ("beta", "bias") if name in inputs]
    flows = ", ".join(f"float[] {name}" for name in ("x", "skip", "gamma", *names))
    head = f"g ({flows}) => (float[] y, float[] sum) {{"
    arguments = ", ".join(part for part in ("x, skip, gamma", inputs) if part)
    before = f"""{head}
    y, mean, deviation, sum = com.microsoft.SkipLayerNormalization <epsilon: float = @epsilon> ({arguments})
}}"""
    biased = "biased = Add (x, bias)  sum = Add (biased, skip)" if "bias" in names else "sum = Add (x, skip)"
    after = f"""{head}
    {biased}
    y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma{", beta" if beta else ""})
}}"""
    return before, after


BEFORE, AFTER = zip(*(_texts(*parameters) for parameters in _PARAMETERS), strict=True)
EXAMPLE = {
    "x": [2, 3, 8], "skip": [2, 3, 8], "gamma": [8], "beta": [8], "bias": [8], "epsilon": 1e-3,
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    shape, skip = (m.editor.shape(m[name]) for name in ("x", "skip"))
    if shape is None or skip is None:
        return None
    wider = len(skip) > len(shape)
    for size, other in zip(reversed(shape), reversed(skip), strict=False):
        fixed = isinstance(size, int) and isinstance(other, int)
        wider |= other not in (1, size) and (fixed or size == 1)
    return refuse("its skip is larger than what it is added to", (list(skip), list(shape))) if wider else None
