"""Max of 0, as sdort writes a Relu behind a channels-last convolution (sdort/passes/layout_rules.py): a Relu."""

STAGE = "restore"
ANCHOR = "Max"
BEFORE = "g (float[] x) => (float[] y) <float zero = {0.0}> { y = Max (x, zero) }"
AFTER = "g (float[] x) => (float[] y) { y = Relu (x) }"
EXAMPLE = {"x": [2, 3, 8]}


def concerns(editor: object, anchor: object) -> bool:
    return False
