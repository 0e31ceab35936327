"""ONNX Runtime's NhwcConv, as another tool has put it in: a Conv between two Transposes."""

STAGE = "restore"
ANCHOR = "com.microsoft.NhwcConv"
RUN_AFTER = ("restore_nhwc_fused_conv",)
_SETTINGS = """<auto_pad: string = @auto_pad, dilations: ints = @dilations, group: int = @group,
    kernel_shape: ints = @kernel, pads: ints = @pads, strides: ints = @strides>"""
_BEFORE = """g (float[N, H, W, C] x, float[M, P, Q, D] weight{given}) => (float[] y) {{
    y = com.microsoft.NhwcConv {settings} (x, weight{bias})
}}"""
_AFTER = """g (float[N, H, W, C] x, float[M, P, Q, D] weight{given}) => (float[] y) {{
    planes = Transpose <perm = [0, 3, 1, 2]> (x)
    filters = Transpose <perm = [0, 3, 1, 2]> (weight)
    convolved = Conv {settings} (planes, filters{bias})
    y = Transpose <perm = [0, 2, 3, 1]> (convolved)
}}"""
_BIASES = ({"given": ", float[M] bias", "bias": ", bias"}, {"given": "", "bias": ""})
BEFORE = tuple(_BEFORE.format(settings=_SETTINGS, **bias) for bias in _BIASES)
AFTER = tuple(_AFTER.format(settings=_SETTINGS, **bias) for bias in _BIASES)
EXAMPLE = {
    "N": 2, "H": 5, "W": 6, "C": 4, "M": 8, "P": 3, "Q": 1, "D": 2, "auto_pad": "NOTSET", "dilations": [1, 1],
    "group": 2, "kernel": [3, 1], "pads": [1, 0, 1, 0], "strides": [2, 1],
}  # fmt: skip
