"""Graphs for the tests of inference, in ONNX's text syntax; every tensor that their nodes compute is compared.

A case is ``== name``, with ``| vague:`` the tensors whose size (or value) names cannot tell, then its inputs, constants
and nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

UNARY = """
Identity Sigmoid Erf Tanh Sqrt Exp Neg Gelu Relu Sin Cos Abs Reciprocal Dropout Clip
"""

SHAPE_TEXTS = """
== Softmax
(float[B, H, W] x)
y = Softmax <axis = -1> (x)
== LayerNormalization
(float[B, S, 8] x, float[8] g)
y = LayerNormalization <axis = -1> (x, g, g)
== GroupNormalization
(float[B, 8, H, W] x, float[8] g)
y = GroupNormalization <num_groups = 2> (x, g, g)
== InstanceNormalization
(float[B, 8, H, W] x, float[8] g)
y = InstanceNormalization (x, g, g)
== Add
(float[B, 4, H, W] x, float[4, 1, 1] c)
y = Add (x, c)
== Sub
(float[B, 4, H, W] x, float[4, 1, 1] c)
y = Sub (x, c)
== Mul
(float[B, 4, H, W] x, float[4, 1, 1] c)
y = Mul (x, c)
== Div
(float[B, 4, H, W] x, float[4, 1, 1] c)
y = Div (x, c)
== Pow
(float[B, 1, H, W] x, float[3, H, 1] c)
y = Pow (c, x)
== Min
(float[B, 1, H, W] x, float[3, H, 1] c)
y = Min (c, x)
== Max
(float[B, 1, H, W] x, float[3, H, 1] c)
y = Max (c, x)
== Mod
(int64[B, 4] x) <int64 c = {3}>
y = Mod (x, c)
== Min of three
(float[B, 1, 1] x, float[H, 1] y, float[W] z)
m = Min (x, y, z)
== Equal
(float[B, 4] x, float[4] y)
z = Equal (x, y)
== Less
(float[B, 4] x, float[4] y)
z = Less (x, y)
== Greater
(float[B, 4] x, float[4] y)
z = Greater (x, y)
== LessOrEqual
(float[B, 4] x, float[B, 1] y)
z = LessOrEqual (x, y)
== GreaterOrEqual
(float[B, 4] x, float[B, 1] y)
z = GreaterOrEqual (x, y)
== And
(bool[B, 4] x, bool[S, 1, 4] y)
z = And (x, y)
== Or
(bool[B, 4] x, bool[S, 1, 4] y)
z = Or (x, y)
== two sizes that differ
(float[H] x, float[B, 1] y)
z = Add (x, y)
== Where
(bool[B, 1, S] c, float[H, 1] x, float y)
z = Where (c, x, y)
== Cast
(float[B, S] x)
y = Cast <to = 10> (x)
z = Cast <to = 7> (x)
== Gather rows
(float[49, 8] x, int64[B, S] i)
y = Gather (x, i)
== Gather middle
(float[B, 4, H] x) <int64 i = {2}, int64[2, 1] j = {0, 3}>
y = Gather <axis = 1> (x, i)
z = Gather <axis = -2> (x, j)
== Concat
(float[B, 4, H, W] x, float[B, 3, H, W] y)
z = Concat <axis = 1> (x, y)
w = Concat <axis = -1> (x, x)
== Concat of two lengths
(float[B, S, 4] x, float[B, H, 4] y)
z = Concat <axis = 1> (x, y)
a = Relu (x)
b = Relu (y)
== Unsqueeze
(float[B, S] x) <int64[1] a = {1}, int64[2] b = {0, -1}>
y = Unsqueeze (x, a)
z = Unsqueeze (x, b)
== GatherND
(float[B, S, 8] x) <int64[3, 2] i = {0, 1, 0, 0, 0, 2}, int64[1, 1] j = {0}>
y = GatherND (x, i)
z = GatherND (x, j)
== GatherND in a batch
(float[B, S, 8] x, int64[B, S] k) <int64[1] one = {1}>
i = ArgMax <axis = -1, keepdims = 1> (k)
y = GatherND <batch_dims = 1> (x, i)
== TopK
(int64[B, S] x, float[B, 4, S] y) <int64[1] one = {1}, int64[1] two = {2}>
a, b = TopK (x, one)
c, d = TopK <axis = 1> (y, two)
== Squeeze
(float[B, 1, S, 1] x) <int64[2] a = {1, 3}, int64[1] b = {-1}>
y = Squeeze (x, a)
z = Squeeze (x, b)
== Squeeze of computed axes | vague: y
(float[1, 4, 1, 1] x, int64[2] v)
k = Abs (v)
y = Squeeze (x, k)
== Squeeze all
(float[1, 4, 1] x)
y = Squeeze (x)
== Slice | vague: c
(float[B, 8, H] x) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] five = {5}, int64[1] far =
{9223372036854775807}, int64[1] axis2 = {-1}, int64[1] last = {-1}, int64[1] two = {2}>
a = Slice (x, zero, five, one)
b = Slice (x, one, far, axis2, one)
c = Slice (x, one, last, axis2)
d = Slice (x, last, far, axis2)
e = Slice (x, zero, far, axis2, two)
== Slice of fixed
(float[B, 8] x) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] back =
{-3}, int64[1] five = {5}, int64[1] twenty = {20}, int64[1] far = {2147483647}, int64[1] low = {-20}>
a = Slice (x, back, far, one)
b = Slice (x, zero, far, one, three)
c = Slice (x, five, two, one)
d = Slice (x, zero, twenty, one)
e = Slice (x, low, five, one)
f = Slice (x, zero, low, one)
h = Slice (x, twenty, far, one)
== Slice up to a number | vague: a
(float[B, S] x) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}>
a = Slice (x, zero, three, one)
== Slice of one
(float[B, S] x) <int64[1] zero = {0}, int64[1] one = {1}>
a = Slice (x, zero, one, one)
b = Slice (x, one, one, one)
== Slice before the end | vague: a b c
(float[B, H] x) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] back = {-2}, int64[1] far = {9223372036854775807},
int64[1] five = {5}>
a = Slice (x, zero, back, one)
b = Slice (x, back, far, one)
c = Slice (x, five, far, one)
== Slice to a size
(float[1, 77] x, float[B, S] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}>
s = Shape (y)
n = Slice (s, one, two, zero)
a = Slice (x, zero, n, one)
== Slice to a size below 0 | vague: a
(float[B, S] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}>
s = Shape (y)
n = Slice (s, zero, one, zero)
m = Neg (n)
k = Sub (zero, n)
a = Slice (y, zero, k, one)
== Slice backwards | vague: a
(float[B, 8] x) <int64[1] last = {-1}, int64[1] low = {-9}, int64[1] one = {1}>
a = Slice (x, last, low, one, last)
== Slice by data | vague: a
(float[B, 8] x, int64[1] i) <int64[1] zero = {0}, int64[1] one = {1}>
a = Slice (x, zero, i, one)
== Reshape
(float[B, 8, H, W] x) <int64[3] flat = {0, 8, -1}, int64[5] heads = {0, 2, 4, -1, 1}, int64[2] groups = {-1, 4}>
a = Reshape (x, flat)
b = Reshape (x, heads)
c = Reshape (x, groups)
== Reshape by a shape
(float[B, 8, H, W] x) <int64[1] zero = {0}, int64[2] rest = {8, -1}>
s = Shape (x)
b = Gather (s, zero)
t = Concat <axis = 0> (b, rest)
a = Reshape (x, t)
== Reshape by data | vague: a
(float[2, 2] x, int64[3] i) <int64 none = {0}, int64[3] target = {1, 2, -1}>
m = Mul (i, none)
t = Add (m, target)
a = Reshape (x, t)
== Flatten
(float[B, 3, H, W] x)
a = Flatten (x)
b = Flatten <axis = 2> (x)
c = Flatten <axis = -1> (x)
d = Flatten <axis = 0> (x)
== Expand
(float[1, 8] x, float[B, S] y) <int64[1] one = {1}, int64[1] eight = {8}, int64[3] ones = {2, 1, 1}>
s = Shape (y)
n = Gather (s, one)
t = Concat <axis = 0> (n, eight)
a = Expand (x, t)
b = Expand (y, ones)
== ConstantOfShape
(float[B, S] y)
s = Shape (y)
a = ConstantOfShape (s)
b = ConstantOfShape <value: tensor = int64[1] {7}> (s)
== Range
(float[B, S] y) <int64 one = {1}, int64 zero = {0}>
s = Shape (y)
n = Gather (s, one)
a = Range (zero, n, one)
b = Range (one, n, one)
== Range in steps | vague: a
(float[B, S] y) <int64 one = {1}, int64 zero = {0}, int64 two = {2}>
s = Shape (y)
n = Gather (s, one)
a = Range (zero, n, two)
== Transpose
(float[B, 3, H, W] x)
a = Transpose <perm = [0, 2, 3, 1]> (x)
b = Transpose (x)
== MatMul
(float[B, 2, H, 8] x, float[8, W] y, float[2, 8, S] z, float[W, 8] v)
a = MatMul (x, y)
b = MatMul (x, z)
c = MatMul (v, z)
== MatMul of a vector
(float[B, H, 8] x, float[8] y)
a = MatMul (x, y)
== pooling
(float[B, 4, H, W] x)
a = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)
b = MaxPool <kernel_shape = [3, 3], strides = [2, 1], pads = [1, 1, 1, 1]> (x)
c = LpPool <kernel_shape = [2, 3], auto_pad = "VALID"> (x)
d = AveragePool <kernel_shape = [3, 3], auto_pad = "SAME_UPPER", strides = [2, 2]> (x)
e = MaxPool <kernel_shape = [3, 2], dilations = [2, 1]> (x)
== Conv
(float[B, 4, H, W] x, float[6, 4, 3, 3] k, float[4, 1, 5, 1] d)
a = Conv <pads = [1, 1, 1, 1]> (x, k)
b = Conv <strides = [2, 2], pads = [0, 0, 1, 1]> (x, k)
c = Conv <group = 4, strides = [1, 3]> (x, d)
e = Conv <dilations = [2, 1], pads = [2, 0, 2, 3]> (x, k)
== Conv padded by itself
(float[B, 4, H, W] x, float[6, 4, 3, 3] k)
a = Conv <auto_pad = "SAME_UPPER"> (x, k)
b = Conv <auto_pad = "SAME_LOWER", strides = [2, 3]> (x, k)
c = Conv <auto_pad = "VALID", strides = [2, 1], dilations = [1, 1]> (x, k)
d = Conv <auto_pad = "NOTSET", pads = [1, 0, 0, 2]> (x, k)
== Conv of a sequence
(float[B, 4, S] x, float[6, 4, 3] k)
a = Conv <pads = [1, 1], strides = [2]> (x, k)
== Resize by scales
(float[B, 4, H, W] x) <float[4] twice = {1.0, 1.0, 2.0, 2.0}, float[2] three = {3.0, 1.0}>
a = Resize <mode = "nearest"> (x, , twice)
b = Resize <axes = [2, 3]> (x, , three)
== Resize by fractions | vague: a
(float[B, 4, H, W] x) <float[4] half = {1.0, 1.0, 0.5, 1.5}>
a = Resize (x, , half)
== Resize within bounds | vague: a b
(float[B, 4, H, W] x) <int64[2] bounds = {8, 6}>
a = Resize <axes = [2, 3], keep_aspect_ratio_policy = "not_larger"> (x, , , bounds)
b = Resize <axes = [2, 3], keep_aspect_ratio_policy = "not_smaller"> (x, , , bounds)
== Resize of a region | vague: a
(float[B, 4, H, W] x) <float[4] twice = {1.0, 1.0, 2.0, 2.0}, float[8] roi = {0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.5, 0.5}>
a = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, roi, twice)
== Resize by sizes, the scales an empty tensor
(float[B, 4, H, W] x) <float[0] empty = {}, int64[4] sizes = {1, 4, 8, 6}>
a = Resize (x, empty, empty, sizes)
== Resize by sizes
(float[B, 4, H, W] x, float[1, S, 2, H] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] far
= {9223372036854775807}>
s = Shape (y)
t = Slice (s, one, far, zero)
f = Shape <end = 2> (x)
u = Slice (t, zero, two, zero)
v = Concat <axis = 0> (f, u)
a = Resize (x, , , v)
b = Resize <axes = [2, -1]> (x, , , u)
== Attention
(float[B, S, 8] q, float[B, 7, 8] k, float[B, 7, 12] v, float[B, 2, S, 4] r, float[B, 2, H, 4] l, float[B, 2, H, 6] m)
a = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)
b = Attention (r, l, m)
== QuickGelu
(float[B, S] x)
y = com.microsoft.QuickGelu (x)
z = com.microsoft.Gelu (x)
w = com.microsoft.FastGelu (x)
== BiasGelu
(float[B, S, 8] x, float[8] b)
y = com.microsoft.BiasGelu (x, b)
z = com.microsoft.BiasAdd (x, b, x)
== GroupNorm
(float[B, H, W, 8] x, float[8] g)
y = com.microsoft.GroupNorm <groups = 2, activation = 1> (x, g, g)
z, s = com.microsoft.SkipGroupNorm <groups = 2, activation = 0> (x, g, g, x)
w = com.microsoft.SkipGroupNorm <groups = 2, activation = 0> (x, g, g, x, g)
== sdort.GroupNorm of two
(float[B, H, W, 8] x, float[B, H, W, 4] x2, float[12] g)
y, s = sdort.GroupNorm <groups = 2, activation = 1, epsilon = 0.00001> (x, x2, g, g)
== sdort.GroupNorm of one
(float[B, H, W, 8] x, float[8] g, float[8] b)
y, s = sdort.GroupNorm <groups = 2, activation = 0, epsilon = 0.00001> (x, "", g, g, x, b)
== SkipLayerNormalization | vague: d m
(float[B, S, 8] x, float[8] g)
y, m, d, s = com.microsoft.SkipLayerNormalization (x, x, g, g, g)
z = com.microsoft.SkipLayerNormalization (x, x, g)
== NhwcConv
(float[B, H, W, 4] x, float[6, 3, 1, 4] k)
y = com.microsoft.NhwcConv <pads = [1, 0, 1, 2], strides = [2, 1]> (x, k)
== FusedConv
(float[B, 4, H, W] x, float[8, 4, 3, 3] w, float[8] b)
p = com.microsoft.FusedConv <activation = "Relu", pads = [1, 1, 1, 1]> (x, w, b)
== NhwcFusedConv
(float[B, H, W, 4] x, float[8, 3, 3, 4] w)
y = com.microsoft.NhwcFusedConv <activation = "Relu", strides = [2, 2]> (x, w)
== FusedMatMul
(float[B, S, 8] a, float[B, 7, 8] b, float[8, 5] w)
p = com.microsoft.FusedMatMul <transB = 1> (a, b)
q = com.microsoft.FusedMatMul <transA = 1, alpha = 0.5> (a, p)
r = com.microsoft.FusedMatMul (b, w)
== MultiHeadAttention
(float[B, S, 8] q, float[B, 7, 8] k, float[B, 7, 12] v, float[B, 7, 2, 2, 4] p, float[B, S, 2, 3, 4] r)
a = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)
b = com.microsoft.MultiHeadAttention <num_heads = 2> (q, p)
c = com.microsoft.MultiHeadAttention <num_heads = 2> (r)
== packed Attention
(float[B, S, 8] x, float[8, 24] w, float[24] b)
a = com.microsoft.Attention <num_heads = 2> (x, w, b)
== BiasSplitGelu
(float[B, S, 16] x, float[16] b)
a = com.microsoft.BiasSplitGelu (x, b)
== Pad
(float[B, 4, H, W] x) <int64[8] p = {0, 0, 1, 2, 0, 1, 0, 3}, float v = {1.0}>
a = Pad (x, p)
b = Pad (x, p, v)
== Pad of some axes | vague: a b
(float[B, 4, H, W] x) <int64[2] p = {1, 2}, float v = {1.0}, int64[1] axes = {3},
int64[8] q = {0, 1, 2, 3, 0, 0, 0, 0}, int64[4] all = {3, 2, 1, 0}>
a = Pad (x, p, v, axes)
b = Pad (x, q, v, all)
== Tile | vague: c
(float[B, 4, H] x, int64[3] given) <int64[3] times = {2, 1, 3}, int64[1] one = {1}>
a = Tile (x, times)
rows = Shape <start = 2> (x)
counted = Concat <axis = 0> (one, one, rows)
b = Tile (x, counted)
c = Tile (x, given)
== left to ONNX
(float[B, 4, H] x) <int64[1] last = {-1}>
a = ReduceMean <keepdims = 1> (x, last)
b = Trilu (x)
c, d = Split <axis = 1, num_outputs = 2> (x)
"""

VALUE_TEXTS = """
== Shape
(float[B, 3, H, W] x)
a = Shape (x)
b = Shape <start = 1> (x)
c = Shape <start = -2> (x)
d = Shape <start = 1, end = -1> (x)
== Size
(float[B, 3, H, W] x, float z)
a = Size (x)
b = Size (z)
== ScatterND | vague: c
(float[B, 3, H, W] x, int64[1] v) <int64[2, 1] places = {3, -4}, int64[2] new = {7, 9}, int64[1, 1] second = {1}>
s = Shape (x)
a = ScatterND (s, places, new)
t = Shape <start = 2, end = 3> (x)
b = ScatterND (s, second, t)
c = ScatterND <reduction = "add"> (s, second, t)
== Gather
(float[B, 3, H, W] x) <int64 i = {2}, int64[2] j = {3, 0}, int64 last = {-1}>
s = Shape (x)
a = Gather (s, i)
b = Gather (s, j)
c = Gather (s, last)
== Slice
(float[B, 3, H, W] x) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] last = {-1}, int64[1] low
= {-3}, int64[1] far = {9223372036854775807}>
s = Shape (x)
a = Slice (s, one, far)
b = Slice (s, low, last, zero)
c = Slice (s, zero, far, zero, two)
== arithmetic
(float[B, 3, H, W] x) <int64 two = {2}>
s = Shape (x)
a = Add (s, two)
b = Sub (s, two)
c = Mul (s, s)
d = Div (s, two)
e = Mul (two, s)
f = Add (s, s)
g = Sub (s, s)
== scalars
(float[B, 3, H, W] x) <int64 i = {2}, int64 j = {3}, int64[1] z = {0}, int64[1] minus = {-1}>
s = Shape (x)
h = Gather (s, i)
w = Gather (s, j)
area = Mul (h, w)
u = Unsqueeze (area, z)
v = Squeeze (u, z)
c = Concat <axis = 0> (u, u)
r = Reshape (area, minus)
== Concat
(float[B, 3, H, W] x) <int64[2] rest = {-1, 4}>
s = Shape (x)
c = Concat <axis = 0> (s, rest, s)
== casts | vague: d e g
(float[B, 3, H, W] x) <int64[2] many = {300, 2}>
s = Shape (x)
a = Cast <to = 6> (s)
b = Cast <to = 7> (a)
c = Identity (b)
d = Cast <to = 9> (s)
e = Cast <to = 3> (many)
g = Cast <to = 3> (s)
f = Cast <to = 6> (many)
== wrapped | vague: f
(float[B] x) <int64[1] far = {9223372036854775807}>
f = Cast <to = 6> (far)
g = Shape (x)
== through floats | vague: f g i
(float[B, 3, H, W] x) <float half = {0.5}>
s = Shape (x)
f = Cast <to = 1> (s)
g = Mul (f, half)
i = Cast <to = 7> (g)
== comparisons
(float[B, 3, H, W] x) <int64[4] minus = {-1, -1, -1, -1}, int64[4] one = {1, 1, 1, 1}, int64[2] few = {1, 5}, int64[2]
more = {2, 5}>
s = Shape (x)
a = Equal (minus, s)
b = Equal (s, s)
c = Where (a, one, s)
d = Equal (few, more)
e = Less (few, more)
f = Greater (few, more)
== undecided | vague: a b c
(float[B, 3, H, W] x, float[S] y)
s = Shape (x)
t = Shape (y)
a = Equal (s, t)
b = Less (s, t)
c = Where (a, s, s)
== data | vague: a b
(int64[4] x, float[B] y)
a = Add (x, x)
t = Shape (y)
b = Mul (x, t)
== filled
(float[B, 3, H, W] x) <int64[4] minus = {-1, 1, -1, 1}>
s = Shape (x)
n = Shape (s)
a = ConstantOfShape <value: tensor = int64[1] {1}> (n)
b = Equal (a, minus)
c = Where (b, a, s)
== many numbers | vague: a
(float[B] x) <int64[1] count = {100}>
a = ConstantOfShape <value: tensor = int64[1] {1}> (count)
n = Shape (a)
== divisions
(float[B, 3, H, W] x) <int64 one = {1}, int64 two = {2}, int64 four = {4}>
s = Shape (x)
t = Add (s, one)
a = Div (t, two)
b = Div (a, two)
c = Mul (b, four)
== negative divisions | vague: d
(float[B, 3, H, W] x) <int64 minus = {-1}, int64 two = {2}>
s = Shape (x)
m = Sub (minus, s)
a = Div (m, two)
n = Add (s, minus)
b = Div (n, two)
c = Sub (b, two)
d = Div (c, two)
== negative numbers
(float[5, 3] x) <int64 minus = {-2}, int64 two = {2}>
s = Shape (x)
m = Sub (minus, s)
a = Div (m, two)
== equal to a number | vague: a
(float[B, 3, H, W] x) <int64[4] minus = {-1, -1, -1, -1}, int64 many = {7}>
s = Shape (x)
t = Sub (s, many)
a = Equal (t, minus)
b = Equal (s, minus)
== other arithmetic | vague: a b c
(float[B, 3, H, W] x) <int64 two = {2}>
s = Shape (x)
a = Mod (s, two)
b = Min (s, two)
c = Max (s, two)
d = Div (s, s)
== divisions by sizes | vague: f g
(float[B, 3, H, W] x) <int64 zero = {0}, int64 two = {2}, int64 three = {3}, int64[1] last = {-1}>
s = Shape (x)
b = Gather (s, zero)
h = Gather (s, two)
w = Gather (s, three)
area = Mul (h, w)
n = Mul (area, b)
a = Div (n, b)
t = Sub (b, n)
c = Div (t, b)
u = Add (h, w)
v = Mul (u, u)
d = Div (v, u)
m = Neg (d)
f = Div (h, w)
k = Add (n, two)
g = Div (k, b)
e = Div (zero, u)
== bounds | vague: d e
(float[B, 3, H, W] x) <int64 zero = {0}, int64 one = {1}, int64 three = {3}>
s = Shape (x)
a = Max (s, one)
b = Min (zero, s)
t = Add (s, three)
c = Min (t, s)
u = Mul (s, s)
d = Max (s, three)
v = Gather (s, three)
e = Min (u, v)
== order | vague: d h i j
(float[B, 3, H, W] x, float[S] y) <int64 zero = {0}, int64 one = {1}>
s = Shape (x)
a = Less (zero, s)
b = Less (s, s)
t = Add (s, one)
c = Equal (s, t)
d = Less (one, s)
e = Greater (t, s)
f = LessOrEqual (one, s)
g = GreaterOrEqual (s, t)
n = Shape (y)
h = LessOrEqual (s, n)
i = Equal (s, one)
j = LessOrEqual (s, one)
== matrix | vague: b
(float[B, 3] x) <int64[1] z = {0}, int64[1] flat = {-1}>
s = Shape (x)
a = Unsqueeze (s, z)
b = Add (a, a)
c = Reshape (a, flat)
"""


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    vague: frozenset[str] = frozenset()


def read_cases(text: str) -> list[Case]:
    cases = []
    for block in text.split("== ")[1:]:
        title, _, graph = block.partition("\n")
        name, _, vague = title.partition(" | vague: ")
        inputs, _, rest = graph.partition(")")
        constants, _, body = rest.partition(">\n") if rest.lstrip().startswith("<") else ("", "", rest)
        close = "> " if constants else ""
        cases.append(
            Case(name, f"g {inputs}) => (float unused) {constants}{close}{{ {body} }}", frozenset(vague.split()))
        )
    return cases


SHAPES = read_cases("".join(f"== {op}\n(float[B, 3, H, W] x)\ny = {op} (x)\n" for op in UNARY.split()) + SHAPE_TEXTS)
VALUES = read_cases(VALUE_TEXTS)
