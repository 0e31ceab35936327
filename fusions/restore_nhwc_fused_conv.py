"""ONNX Runtime's NhwcFusedConv, as another tool has put it in: an NhwcConv, restored next, and an activation."""

from sdort.fusions import restore_fused_conv
from sdort.fusions.restore_fused_conv import FORMS, SETTINGS, texts

STAGE = "restore"
ANCHOR = "com.microsoft.NhwcFusedConv"
BEFORE, AFTER = zip(*(texts(ANCHOR, "com.microsoft.NhwcConv", *form) for form in FORMS), strict=True)
EXAMPLE = {**SETTINGS, "x": [2, 5, 6, 4], "weight": [8, 3, 1, 2], "bias": [8], "added": [2, 3, 6, 8]}

check = restore_fused_conv.check
derive = restore_fused_conv.derive
