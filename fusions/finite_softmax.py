"""A softmax whose scores cannot be minus infinity has no rows of NaN: what replaces them is not needed."""

from sdort.rewrite.masks import extremes
from sdort.rewrite.match import Match, Refusal, decline

STAGE = "raise"
ANCHOR = "IsNaN"
RUN_AFTER = ("safe_softmax",)
BEFORE = """
g (float[] x) => (float[] y) <float zero = {0.0}> {
    p = Softmax <axis = -1> (x)
    bad = IsNaN (p)
    y = Where (bad, zero, p)
}"""
AFTER = "g (float[] x) => (float[] y) { y = Softmax <axis = -1> (x) }"
EXAMPLE = {"x": [2, 3, 5]}


def check(m: Match) -> Refusal | None:
    return decline("a score may be minus infinity", m["x"].name) if extremes(m.editor, m["x"]).infinite else None
