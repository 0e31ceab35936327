"""ONNX Runtime's SkipGroupNorm, as another tool has put it in: the sums before a GroupNorm, which is restored next.

The skip is an image, or one number for each channel of each sample, which broadcasts.
"""

from itertools import product

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "restore"
ANCHOR = "com.microsoft.SkipGroupNorm"
_SIGNATURE = """g (float[N, H, W, C] x, float[C] gamma, float[C] beta, {skip}{given}) => (float[] y, float[] sum) {{"""
_SETTINGS = """<activation: int = @activation, channels_last: int = @last, epsilon: float = @epsilon,
    groups: int = @groups>"""
_BEFORE = """
    y, sum = com.microsoft.SkipGroupNorm {settings} (x, gamma, beta, skip{bias})
}}"""
_AFTER = """
    {enter}
    {biased}
    sum = Add ({left}, {right})
    y = com.microsoft.GroupNorm {settings} (sum, gamma, beta)
}}"""
_SKIPS = ("float[B, C] skip", "float[B, P, Q, C] skip")
_FORMS = tuple(product(_SKIPS, (", float[C] bias", "")))


def _texts(skip: str, bias: str) -> tuple[str, str]:
    flat = skip == _SKIPS[0]
    head = _SIGNATURE.format(skip=skip, given=bias)
    parts = {
        "enter": "axes = Constant <value_ints = [1, 2]> ()  right = Unsqueeze (skip, axes)" if flat else "",
        "biased": "left = Add (x, bias)" if bias else "",
        "left": "left" if bias else "x",
        "right": "right" if flat else "skip",
    }
    return (
        head + _BEFORE.format(settings=_SETTINGS, bias=", bias" if bias else ""),
        head + _AFTER.format(settings=_SETTINGS, **parts),
    )


BEFORE, AFTER = zip(*(_texts(*form) for form in _FORMS), strict=True)
EXAMPLE = {
    "N": 2, "B": 2, "H": 3, "W": 5, "P": (3, 3, 1, 3), "Q": (5, 5, 1, 5), "C": 8, "epsilon": 1e-3, "groups": 4,
    "activation": 1, "last": 1,
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    if not m.attrs["last"]:
        return refuse("it is not channels-last, of which ONNX Runtime has no definition")
    sides = {(m.dims["P"], m.dims["Q"])} if "P" in m.dims else set()
    if sides <= {(1, 1), (m.dims["H"], m.dims["W"])}:
        return None
    return refuse("its skip is neither an image nor one pixel", (m.dims["P"], m.dims["Q"]))
