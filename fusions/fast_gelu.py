"""The tanh approximation of Gelu as ORT's operator."""

STAGE = "fuse"
ANCHOR = "Gelu"
BEFORE = 'g (float[] x) => (float[] y) { y = Gelu <approximate = "tanh"> (x) }'
AFTER = "g (float[] x) => (float[] y) { y = com.microsoft.FastGelu (x) }"
EXAMPLE = {"x": [2, 3, 8]}
