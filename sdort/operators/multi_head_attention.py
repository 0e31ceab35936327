"""com.microsoft.MultiHeadAttention: attention with the heads merged, of query, key and value apart or packed.

Packed are all three (query is (B, S, heads, 3, size)) or key and value (key is (B, S, heads, 2, size)).
"""

from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import Fact
from sdort.graph.operator import REQUIRED, Call, Category, Example, Operator, Sizes

LOWEST = -1e30
"""Added to scores that are closed."""
PAST = ("past_key", "past_value", "past_sequence_length", "cache_indirection")
PRESENT = ("present_key", "present_value", "qk")


def infer(call: Call) -> list[Fact]:
    q, dtype = call.shape("query"), call.dtype("query")
    if q is None:
        return [Fact(dtype)]
    if len(q) == 5:
        return [Fact(dtype, (q[0], q[1], q[2] * q[4]))]
    v = call.shape("value")
    return [Fact(dtype, (q[0], q[1], v[2] if v is not None and len(v) == 3 else q[2]))]


def heads(call: Call) -> str | None:
    if call.has("bias"):
        return None
    sizes = f"heads = Constant <value_ints = [0, 0, {call.attributes['num_heads']}, -1]> ()\n"
    sizes += "place = Constant <value_ints = [3]> ()\n"
    if not call.has("key"):
        query = "qp, kp, vp = Split <axis = 3, num_outputs = 3> (query)\n q4 = Squeeze (qp, place)\n"
    else:
        query = "q4 = Reshape (query, heads)\n"
        query += "" if call.has("value") else "kp, vp = Split <axis = 3, num_outputs = 2> (key)\n"
    if call.has("value"):
        return sizes + query + "k4 = Reshape (key, heads)\n v4 = Reshape (value, heads)\n"
    return sizes + query + "k4 = Squeeze (kp, place)\n v4 = Squeeze (vp, place)\n"


def definition(call: Call) -> str | None:
    apart = heads(call)
    if apart is None or call.has("key_padding_mask", *PAST, *PRESENT):
        return None
    mask = masking("attention_bias" if call.has("attention_bias") else None, bool(call.attributes["unidirectional"]))
    return apart + attention_steps(call, mask) + MERGE + "output = Identity (merged)"


def attention_steps(call: Call, mask: str) -> str:
    """Steps from q4, k4 and v4 [batch, rows, heads, size] to sums [batch, heads, rows, size], all in float32."""
    scale = call.attributes.get("scale")
    return f"""
      q = Identity (q4)
      k = Identity (k4)
      v = Identity (v4)
      width = Shape <start = -1> (q)
      width_float = Cast <to = 1> (width)
      root = Sqrt (width_float)
      factor = {f"Constant <value_float = {scale:.20f}> ()" if scale else "Reciprocal (root)"}
      queries = Transpose <perm = [0, 2, 1, 3]> (q)
      keys = Transpose <perm = [0, 2, 3, 1]> (k)
      values = Transpose <perm = [0, 2, 1, 3]> (v)
      products = MatMul (queries, keys)
      scaled = Mul (products, factor)
      narrow = Cast <to = {call.stored}> (scaled)
      scores = Cast <to = 1> (narrow)
      {mask}
      shares = Softmax <axis = -1> (masked)
      sums = MatMul (shares, values)
    """


MERGE = """
      flat = Constant <value_ints = [0, 0, -1]> ()
      rows = Transpose <perm = [0, 2, 1, 3]> (sums)
      merged = Reshape (rows, flat)
    """


def masking(mask: str | None, causal: bool, logical: bool = False) -> str:
    """Steps from scores to masked; ``mask`` is added to them, or says which are open."""
    lines, last = [f"lowest = Constant <value_float = {LOWEST}> ()"], "scores"
    if mask:
        added = [f"added = Cast <to = 1> ({mask})", "open = Add (scores, added)"]
        lines += [f"open = Where ({mask}, scores, lowest)"] if logical else added
        last = "open"
    if causal:
        lines += [
            "one = Constant <value_int = 1> ()",
            "square = Shape <start = -2> (scores)",
            "closed = Expand (lowest, square)",
            "triangle = Trilu <upper = 1> (closed, one)",
            f"causal = Add ({last}, triangle)",
        ]
        last = "causal"
    return "\n".join([*lines, f"masked = Identity ({last})"])


def unpacked(call: Call) -> str | None:
    """Packed inputs, unpacked for the CPU provider's own kernel, which takes them apart only."""
    if call.has("value"):
        return None
    if call.has(*PAST, *PRESENT):
        raise BadModelError("packed MultiHeadAttention has more inputs or outputs than its definition knows")
    names = ["k", "v"] if call.has("key") else ["q", "k", "v"]
    source, query = ("key", "query") if call.has("key") else ("query", "q")
    lines = [
        "merged = Constant <value_ints = [0, 0, -1]> ()",
        f"{', '.join(name + '_part' for name in names)} = Split <axis = 3, num_outputs = {len(names)}> ({source})",
        *(f"{name} = Reshape ({name}_part, merged)" for name in names),
    ]
    rest = [name if call.has(name) else '""' for name in ("bias", "key_padding_mask", "attention_bias")]
    while rest and rest[-1] == '""':
        rest.pop()
    settings = call.text("mask_filter_value", "num_heads", "scale", "unidirectional")
    arguments = ", ".join([query, "k", "v", *rest])
    return "\n".join([*lines, f"output = {MICROSOFT}.MultiHeadAttention {settings} ({arguments})"])


def stores_scores(call: Call) -> bool:
    """Kernels that are not fused into one, as ONNX Runtime's on ROCm, write the scores; known without mask and bias."""
    return not call.has("bias", "key_padding_mask", "attention_bias", *PAST) and not call.attributes["unidirectional"]


def operations(inputs: Sizes, outputs: Sizes) -> int | None:
    batch, queries, width = outputs[0][:3]
    keys = inputs[1][1] if len(inputs) > 1 else queries
    return 4 * batch * queries * keys * width


def any_mask(call: Call) -> str | None:
    """CUDA and the CPU have causal forms, and repeat a mask over prompts and heads. sdort's kernels take no mask:
    a model that has one runs ONNX Runtime's (:func:`sdort.operator_library.opening.unserved`).
    """
    dtype = call.dtype("query")
    if dtype is not None and dtype.name not in ("float32", "float16"):
        return f"MultiHeadAttention takes float32 and float16, these are {dtype}"
    return None


def on_rocm(call: Call) -> str | None:
    """The ROCm kernel ignores ``unidirectional``, refuses a bias, and reads a mask as one of every prompt and head
    (onnxruntime/contrib_ops/rocm/bert/batched_gemm_softmax_gemm_permute_pipelines.cuh: ``bias [B,N,S,T]``).
    """
    if call.attributes["unidirectional"]:
        return "MultiHeadAttention has no causal form on ROCm"
    if call.has("bias"):
        return "MultiHeadAttention takes no bias on ROCm"
    if call.has("attention_bias") and not is_of_every_head(call):
        return "MultiHeadAttention repeats no mask over prompts and heads on ROCm"
    return any_mask(call)


def is_of_every_head(call: Call) -> bool:
    """Whether a mask has all of [batch, heads, queries, keys]."""
    mask, q, k = (call.shape(name) for name in ("attention_bias", "query", "key"))
    return (
        mask is not None
        and q is not None
        and k is not None
        and mask == (q[0], call.attributes["num_heads"], q[1], k[1])
    )


def apart(call: Call) -> str | None:
    """Query, key and value apart: packed ones load on the CPU, then throw at run time."""
    return any_mask(call) if call.has("value") else "MultiHeadAttention takes no packed inputs"


def copied(call: Call) -> str | None:
    """Packed inputs on CUDA: read in place only by kernels for GPUs before Ampere, else copied apart first.

    onnxruntime/contrib_ops/cuda/bert/attention_prepare_qkv.cu of ONNX Runtime, PrepareQkv_MHA_PackedQKV and _PackedKV.

    Microseconds of products and attention, packed and apart, on an H100 (onnxruntime-gpu 1.31.1, CUDA graph): batch 2,
    4096x320 185 and 175, 1024x640 39 and 39, 256x1280 27 and 32, 4096x640 with 10 heads 246 and 220, 1024x1280 79 and
    70; batch 16, 1024x640 236 and 187, 256x1280 113 and 88. With 77 keys apart takes 1 more, and 8 to 10 less where
    keys and values are computed before the steps. A graph does not know its number of rows: one rule for all sizes.
    """
    return None if call.has("value") else "CUDA's MultiHeadAttention copies packed inputs apart"


def on_migraphx(call: Call) -> str | None:
    if call.has("attention_bias"):
        return "masked attention is MIGraphX's own to fuse, from standard operators"
    if call.attributes["unidirectional"]:
        return "MultiHeadAttention has no causal form in MIGraphX"
    return apart(call) or on_rocm(call)


OPERATOR = Operator(
    name="MultiHeadAttention",
    domain=MICROSOFT,
    category=Category.ATTENTION,
    inputs=("query", "key", "value", "bias", "key_padding_mask", "attention_bias", *PAST),
    outputs=("output", *PRESENT),
    attributes={"num_heads": REQUIRED, "mask_filter_value": None, "scale": None, "unidirectional": 0},
    infer=infer,
    definition=definition,
    on_cpu=unpacked,
    stores_intermediates=stores_scores,
    float32_inputs=(),
    additive=False,
    factors=(),
    operations=operations,
    kernels={"rocm": on_rocm, "migraphx": on_migraphx, "cuda": any_mask, "webgpu": apart, "cpu": apart},
    outdone={"cuda": copied},
    unserved={"MultiHeadAttention": ("key_padding_mask", "attention_bias", *PAST, *PRESENT)},
    heads=heads,
    examples=(
        Example(
            {"query": (2, 5, 12), "key": (2, 7, 12), "value": (2, 7, 12), "attention_bias": (1, 1, 5, 7)},
            {"num_heads": 3},
            outputs=("output",),
        ),
        Example({"query": (2, 5, 12), "key": (2, 7, 3, 2, 4)}, {"num_heads": 3}, outputs=("output",)),
        Example({"query": (2, 5, 3, 3, 4)}, {"num_heads": 3, "scale": 0.25}, outputs=("output",)),
    ),
    # Fused kernels compute blocks of queries and keys, with another way for few of them.
    trials=(
        Example({"query": (1, 64, 80), "key": (1, 64, 80), "value": (1, 64, 80)}, {"num_heads": 2}, ("output",)),
        Example({"query": (1, 64, 128), "key": (1, 77, 128), "value": (1, 77, 128)}, {"num_heads": 2}, ("output",)),
        Example({"query": (1, 64, 128), "key": (1, 77, 2, 2, 64)}, {"num_heads": 2}, ("output",)),
        Example({"query": (1, 64, 2, 3, 40)}, {"num_heads": 2}, ("output",)),
    ),
)
