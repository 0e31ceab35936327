"""A softmax whose rows of minus infinities become 0, as torch takes it apart, in the spelling of its exporters: IsNaN.

Such a row has no largest score, its shares are NaN (https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html).
"""

STAGE = "raise"
ANCHOR = "ReduceMax"
BEFORE = """
g (float[] x) => (float[] y) <float lowest = {-inf}, float zero = {0.0}, int64[1] axis = {-1}> {
    p = Softmax <axis = -1> (x)
    closed = Equal (x, lowest)
    open = Not (closed)
    number = Cast <to = 7> (open)
    any = ReduceMax <keepdims = 1> (number, axis)
    some = Cast <to = 9> (any)
    none = Not (some)
    y = Where (none, zero, p)
}"""
AFTER = """
g (float[] x) => (float[] y) <float zero = {0.0}> {
    p = Softmax <axis = -1> (x)
    bad = IsNaN (p)
    y = Where (bad, zero, p)
}"""
EXAMPLE = {"x": [2, 3, 5]}
