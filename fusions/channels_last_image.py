"""A sequence turned back to an image: [N, H*W, C] is the channels-last image, flattened."""

STAGE = "raise"
ANCHOR = "Transpose"
BEFORE = """
g (float[N, S, C] x, int64[] image) => (float[N, C, H, W] y) <float[N, C, S] f> {
    f = Transpose <perm = [0, 2, 1]> (x)
    y = Reshape (f, image)
}"""
AFTER = """
g (float[N, S, C] x, int64[] image) => (float[N, C, H, W] y) <int64[4] last = {0, 2, 3, 1}> {
    target = Gather (image, last)
    r = Reshape (x, target)
    y = Transpose <perm = [0, 3, 1, 2]> (r)
}"""
EXAMPLE = {"N": 2, "C": 4, "H": 3, "W": 5, "S": 15, "image": [2, 4, 3, 5]}
