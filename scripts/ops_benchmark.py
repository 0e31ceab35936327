#!/usr/bin/env python3
"""Times ONNX Runtime's kernels against sdort's custom operators on a GPU, and checks both against float64.

    python scripts/ops_benchmark.py --library libsdort_ops.so --provider cuda --json ops.json --markdown ops.md
    python scripts/ops_benchmark.py --library libsdort_ops.so --variants --json attention.json

Every operator runs at the shapes that Stable Diffusion 1.5 gives it (batch 2, 64x64 latents; the VAE at batch 1), norms
and BiasSplitGelu also at those of SDXL (128x128 latents) and of batch 16, in fp16, with ONNX Runtime's kernel and with
ours in one process, in turn. A time is the slope between models of few and of many equal nodes, each on inputs of its
own, replayed as a CUDA or HIP graph with everything on the device: launch overhead and the run's fixed cost cancel.
Medians of 30 after 5 warm-ups. Needs onnxruntime-gpu or onnxruntime-rocm.

With --variants, attention's kernels one by one, each beside ONNX Runtime's. Every measurement is a process of its own:
one that crashes or hangs fails alone, with a sentence, and the script ends with 1.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from measuring import Arguments, in_turns
from onnx import helper

from sdort.operator_library.pointer_kernels import Attention, AttentionTensor, Kernels, Place, Problem

Array = npt.NDArray[Any]

STEP = 16
"""Nodes by which the two models of a slope differ."""
MOST_BYTES = 2**31
"""Of one model's tensors: fewer nodes where they are large."""
WARM_UP, REPEAT = 5, 30
FIRST = slice(16)
APART = slice(None, None, 63)
"""Queries at each place of a tile of 64, of 128 and so on: warps differ in what they may get wrong."""
OWN = "sdort"
"""The domain of operators that ONNX Runtime has in several nodes alone, which are what they are timed against."""


@dataclass(frozen=True)
class Case:
    """One operator at one shape. ``inputs`` makes the values, ``reference`` the first output in float64."""

    operator: str
    label: str
    inputs: Callable[[np.random.Generator], dict[str, Array]]
    reference: Callable[[dict[str, Array]], Array]
    bytes: int
    """That a perfect kernel moves."""
    flops: int = 0
    outputs: int = 1
    all_outputs: bool = False
    """Whether those between the first and the last are asked for, too."""
    domain: str = "com.microsoft"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constant: tuple[str, ...] = ()
    """Inputs that all nodes share, as weights are."""
    unfused: tuple[int, int, int, int] | None = None
    """Of attention: batch x heads, tokens, keys, head size; it is also timed as two MatMuls and a Softmax."""
    rows: slice = field(default_factory=lambda: slice(None))
    """Of the output's second dimension, what ``reference`` computes: all would take minutes."""
    problem: Callable[[], Problem] | None = None
    """What the library is asked about its variants."""


def half(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    values: Array = (rng.standard_normal(shape, np.float32) * scale).astype(np.float16)
    return values


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2.0)))


def normalised(x: Array, groups: int, silu: bool) -> Array:
    n, h, w, c = x.shape
    wide: Array = x.astype(np.float64).reshape(n, h * w, groups, c // groups)
    wide = (wide - wide.mean((1, 3), keepdims=True)) / np.sqrt(wide.var((1, 3), keepdims=True) + 1e-5)
    y = wide.reshape(x.shape)
    return np.asarray(y / (1 + np.exp(-y)) if silu else y)


def group_norm(side: int, channels: int, batch: int = 2, silu: bool = True) -> Case:
    size = batch * side * side * channels
    return Case(
        "GroupNorm",
        f"{batch}x{side}x{side}x{channels}" + (" silu" if silu else ""),
        lambda rng: {
            "X": half(rng, batch, side, side, channels),
            "gamma": np.ones(channels, np.float32),
            "beta": np.zeros(channels, np.float32),
        },
        lambda values: normalised(values["X"], 32, silu),
        4 * size,
        attributes={"groups": 32, "epsilon": 1e-5, "activation": int(silu), "channels_last": 1},
        constant=("gamma", "beta"),
    )


def skip_group_norm(side: int, channels: int, batch: int = 2) -> Case:
    size = batch * side * side * channels
    shape = (batch, side, side, channels)
    return Case(
        "SkipGroupNorm",
        f"{batch}x{side}x{side}x{channels} silu",
        lambda rng: {
            "X": half(rng, *shape),
            "gamma": np.ones(channels, np.float32),
            "beta": np.zeros(channels, np.float32),
            "skip": half(rng, batch, 1, 1, channels),
            "bias": half(rng, channels),
        },
        lambda v: normalised(v["X"].astype(np.float64) + v["skip"] + v["bias"], 32, True),
        4 * size,
        attributes={"groups": 32, "epsilon": 1e-5, "activation": 1, "channels_last": 1},
        constant=("gamma", "beta", "skip", "bias"),
    )


def bias_split_gelu(tokens: int, width: int, batch: int = 2) -> Case:
    def reference(v: dict[str, Array]) -> Array:
        wide = v["X"][:, FIRST].astype(np.float64) + v["bias"]  # erfc is slow
        return np.asarray(wide[..., :width] * gelu(wide[..., width:]))

    return Case(
        "BiasSplitGelu",
        f"{batch}x{tokens}x{2 * width}",
        lambda rng: {"X": half(rng, batch, tokens, 2 * width), "bias": half(rng, 2 * width)},
        reference,
        6 * batch * tokens * width,
        constant=("bias",),
        rows=FIRST,
    )


def bias_add(tokens: int, channels: int) -> Case:
    return Case(
        "BiasAdd",
        f"2x{tokens}x{channels}",
        lambda rng: {
            "X": half(rng, 2, tokens, channels),
            "bias": half(rng, channels),
            "skip": half(rng, 2, tokens, channels),
        },
        lambda v: np.asarray(v["X"].astype(np.float64) + v["bias"] + v["skip"]),
        6 * 2 * tokens * channels,
        constant=("bias",),
    )


def normalised_rows(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


def layer_norm(tokens: int, channels: int, batch: int = 2) -> Case:
    return Case(
        "LayerNormalization",
        f"{batch}x{tokens}x{channels}",
        lambda rng: {
            "X": half(rng, batch, tokens, channels),
            "Scale": np.ones(channels, np.float16),
            "B": np.zeros(channels, np.float16),
        },
        lambda v: normalised_rows(v["X"].astype(np.float64)),
        4 * batch * tokens * channels,
        domain="",
        attributes={"epsilon": 1e-5, "axis": -1},
        constant=("Scale", "B"),
    )


def skip_layer_norm(tokens: int, channels: int, batch: int = 2) -> Case:
    return Case(
        "SkipLayerNormalization",
        f"{batch}x{tokens}x{channels}",
        lambda rng: {
            "X": half(rng, batch, tokens, channels),
            "skip": half(rng, batch, tokens, channels),
            "gamma": np.ones(channels, np.float16),
            "beta": np.zeros(channels, np.float16),
            "bias": half(rng, channels),
        },
        lambda v: normalised_rows(v["X"].astype(np.float64) + v["skip"] + v["bias"]),
        8 * batch * tokens * channels,
        outputs=4,
        attributes={"epsilon": 1e-5},
        constant=("gamma", "beta", "bias"),
    )


def softmax_attention(q: Array, k: Array, v: Array, heads: int) -> Array:
    n, _, width = q.shape
    size = width // heads
    split = [x.astype(np.float64).reshape(n, -1, heads, size).transpose(0, 2, 1, 3) for x in (q[:, APART], k, v)]
    scores = split[0] @ split[1].transpose(0, 1, 3, 2) / math.sqrt(size)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result = weights / weights.sum(-1, keepdims=True) @ split[2]
    return np.asarray(result.transpose(0, 2, 1, 3).reshape(n, -1, width))


def attention(tokens: int, keys: int, heads: int, size: int, batch: int = 2) -> Case:
    width = heads * size
    return Case(
        "MultiHeadAttention",
        f"{batch}x{tokens}x{keys} {heads}x{size}",
        lambda rng: {
            "query": half(rng, batch, tokens, width),
            "key": half(rng, batch, keys, width),
            "value": half(rng, batch, keys, width),
        },
        lambda v: softmax_attention(v["query"], v["key"], v["value"], heads),
        2 * batch * width * (2 * tokens + 2 * keys),
        4 * batch * heads * tokens * keys * size,
        attributes={"num_heads": heads},
        unfused=(batch * heads, tokens, keys, size),
        rows=APART,
        problem=lambda: attention_problem(batch, tokens, keys, heads, size),
    )


def attention_problem(batch: int, tokens: int, keys: int, heads: int, size: int) -> Attention:
    """As the node's inputs lie."""
    queries, others = (AttentionTensor(None, rows * heads * size, heads * size, size) for rows in (tokens, keys))
    p = Attention(queries, others, others, scale=size**-0.5)
    p.batches, p.heads, p.queries, p.keys, p.size, p.value_size = batch, heads, tokens, keys, size, size
    return p


def bias_group_norm(side: int, channels: int, batch: int = 2) -> Case:
    return replace(
        group_norm(side, channels, batch),
        operator="BiasGroupNorm",
        inputs=lambda rng: {
            "X": half(rng, batch, side, side, channels),
            "gamma": np.ones(channels, np.float32),
            "beta": np.zeros(channels, np.float32),
            "bias": half(rng, channels),
        },
        reference=lambda v: normalised(v["X"].astype(np.float64) + v["bias"], 32, True),
        bytes=6 * batch * side * side * channels,  # the sum is an output too
        outputs=2,
        domain=OWN,
        constant=("gamma", "beta", "bias"),
    )


def bias_layer_norm(tokens: int, channels: int, batch: int = 2) -> Case:
    return replace(
        layer_norm(tokens, channels, batch),
        operator="BiasLayerNormalization",
        inputs=lambda rng: {
            "X": half(rng, batch, tokens, channels),
            "gamma": np.ones(channels, np.float16),
            "beta": np.zeros(channels, np.float16),
            "bias": half(rng, channels),
        },
        reference=lambda v: normalised_rows(v["X"].astype(np.float64) + v["bias"]),
        domain=OWN,
        attributes={"epsilon": 1e-5},
        constant=("gamma", "beta", "bias"),
    )


def interleaved(v: dict[str, Array]) -> Array:
    """Pixel (2i + a, 2j + b) is phase 2a + b of place (i + a, j + b)."""
    x, bias, (n, height, width, _) = v["X"].astype(np.float64), v["bias"], v["image"].shape
    apart = x.reshape(n, height + 1, width + 1, 4, -1)
    y = np.empty((n, 2 * height, 2 * width, apart.shape[-1]))
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        y[:, a::2, b::2] = apart[:, a : a + height, b : b + width, 2 * a + b]
    return np.asarray(y + bias)


def interleave_phases(side: int, channels: int, batch: int = 2) -> Case:
    """``side`` is that of the small image."""
    return Case(
        "InterleavePhases",
        f"{batch}x{side}x{side} to {2 * side}x{2 * side}x{channels}",
        lambda rng: {
            "X": half(rng, batch, side + 1, side + 1, 4 * channels),
            "bias": half(rng, channels),
            "image": half(rng, batch, side, side, 1),
        },
        interleaved,
        2 * batch * channels * (4 * (side + 1) ** 2 + 4 * side**2),
        domain=OWN,
        constant=("bias",),
    )


def turned(v: dict[str, Array], neighbours: bool) -> Array:
    x, half_head = v["X"][:, FIRST].astype(np.float64), v["cos"].shape[-1]
    heads = x.reshape(*x.shape[:2], -1, 2 * half_head)
    if "scale" in v:
        heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-5) * v["scale"]
    axis = -1 if neighbours else -2
    pairs = heads.reshape(*heads.shape[:3], *((half_head, 2) if neighbours else (2, half_head)))
    angles = v["cos"][:, FIRST].astype(np.float64) + 1j * v["sin"][:, FIRST]
    numbers = (pairs.take(0, axis) + 1j * pairs.take(1, axis)) * angles[:, :, None]
    return np.stack((numbers.real, numbers.imag), axis).reshape(x.shape)


def rotary_embedding(tokens: int, heads: int, size: int, norm: bool, neighbours: bool = True, batch: int = 1) -> Case:
    def inputs(rng: np.random.Generator) -> dict[str, Array]:
        angles = rng.uniform(-np.pi, np.pi, (1, tokens, size // 2))
        tables = {"cos": np.cos(angles).astype(np.float16), "sin": np.sin(angles).astype(np.float16)}
        scale = {"scale": half(rng, size)} if norm else {}
        return {"X": half(rng, batch, tokens, heads * size), **scale, **tables}

    return Case(
        "RMSNormRotaryEmbedding" if norm else "RotaryEmbedding",
        f"{batch}x{tokens} {heads}x{size}" + ("" if neighbours else " halves"),
        inputs,
        lambda v: turned(v, neighbours),
        4 * batch * tokens * heads * size + 2 * tokens * size,
        domain=OWN,
        attributes={"interleaved": int(neighbours), **({"epsilon": 1e-5} if norm else {})},
        constant=("cos", "sin", "scale") if norm else ("cos", "sin"),
        rows=FIRST,
    )


def modulated(v: dict[str, Array]) -> Array:
    """The first output of a modulated norm, of its first rows."""
    given = {name: value.astype(np.float64) for name, value in v.items()}
    x = given["X"][:, FIRST]

    def root(value: Array) -> Array:
        return np.asarray(value / np.sqrt((value**2).mean(-1, keepdims=True) + 1e-5))

    if "branch" in given:
        branch = given["branch"][:, FIRST]
        x = x + given["gate"] * (root(branch) * given["factor"] if "factor" in given else branch + given["bias"])
    if "weight" in given:
        return np.asarray(root(x) * given["weight"] * given["scale"])
    return np.asarray(root(x - x.mean(-1, keepdims=True)) * given["scale"] + given["shift"])


def modulated_norm(tokens: int, width: int, kind: str, gated: bool = True, batch: int = 1) -> Case:
    """``kind`` is Modulated, TwiceModulated, or RMS."""
    rows, image, weight = (batch, tokens, width), (batch, 1, width), (width,)
    shapes: dict[str, tuple[int, ...]] = {"X": rows}
    if gated:
        shapes |= {"branch": rows, "factor" if kind == "RMS" else "bias": weight, "gate": image}
    shapes |= {"weight": weight, "scale": image} if kind == "RMS" else {"scale": image, "shift": image}
    shapes |= {"scale2": image, "shift2": image} if kind == "TwiceModulated" else {}
    name = "ModulatedRMSNormalization" if kind == "RMS" else f"{kind}LayerNormalization"
    outputs = 1 + gated + (kind == "TwiceModulated")
    return Case(
        f"{'Gated' * gated}{name}",
        f"{batch}x{tokens}x{width}",
        lambda rng: {name: half(rng, *shape) for name, shape in shapes.items()},
        modulated,
        2 * batch * tokens * width * (1 + gated + outputs),
        outputs=outputs,
        all_outputs=True,
        domain=OWN,
        attributes={"epsilon": 1e-5, **({"branch_epsilon": 1e-5} if gated and kind == "RMS" else {})},
        constant=tuple(each for each in ("bias", "factor", "weight") if each in shapes),
        rows=FIRST,
    )


def gated_sum(tokens: int, width: int, batch: int = 1) -> Case:
    rows = (batch, tokens, width)
    shapes: dict[str, tuple[int, ...]] = {"X": rows, "branch": rows, "bias": (width,), "gate": (batch, 1, width)}

    def reference(v: dict[str, Array]) -> Array:
        x, branch = (v[name][:, FIRST].astype(np.float64) for name in ("X", "branch"))
        return np.asarray(x + v["gate"] * (branch + v["bias"]))

    return Case(
        "GatedSum",
        f"{batch}x{tokens}x{width}",
        lambda rng: {name: half(rng, *shape) for name, shape in shapes.items()},
        reference,
        6 * batch * tokens * width,
        domain=OWN,
        constant=("bias",),
        rows=FIRST,
    )


def split_gate(tokens: int, width: int, activation: str, batch: int = 1) -> Case:
    """``activation`` is Silu or FastGelu."""

    def reference(v: dict[str, Array]) -> Array:
        left, right = np.split(v["X"][:, FIRST].astype(np.float64), 2, -1)
        power = right if activation == "Silu" else 2 * np.sqrt(2 / np.pi) * (right + 0.044715 * right**3)
        return np.asarray(left * right / (1 + np.exp(-power)))

    return Case(
        f"Split{activation}",
        f"{batch}x{tokens}x{width}",
        lambda rng: {"X": half(rng, batch, tokens, 2 * width)},
        reference,
        6 * batch * tokens * width,
        domain=OWN,
        rows=FIRST,
    )


VAE = ((512, 128), (512, 256), (256, 256), (256, 512), (128, 512), (64, 512))
LEVELS = ((64, 320), (32, 640), (16, 1280), (8, 1280))
"""Side and channels of the UNet's levels; its up blocks also normalise two concatenated tensors."""
XL = ((64, 640), (32, 1280))
"""Those of SDXL's levels that have attention."""
TURNED = ((4608, 24), (4128, 30), (1536, 24))
"""Tokens and heads of Flux and Z-Image at 1024x1024, and of Flux at 512x512."""
MODULATED = ((4608, 3072), (4096, 3072), (512, 3072), (4096, 1536), (1024, 1536))
"""Tokens and width of Flux, in its second blocks and in its first, and of Stable Diffusion 3.5 medium."""
UPSAMPLED = ((8, 1280), (16, 1280), (32, 640))
"""Side and channels of what the UNet's up blocks make twice as large."""

CASES = [
    *(group_norm(side, c) for side, channels in (
        (64, (320, 640, 960)), (32, (320, 640, 960, 1280, 1920)), (16, (640, 1280, 1920, 2560)), (8, (1280, 2560)),
    ) for c in channels),
    *(group_norm(side, c, silu=False) for side, c in LEVELS),
    *(skip_group_norm(side, c) for side, c in LEVELS),
    *(group_norm(side, c) for side, c in ((128, 320), (128, 640), (64, 1280), (64, 1920))),
    *(group_norm(side, c, batch=16) for side, c in LEVELS),
    *(group_norm(side, c, batch=1) for side, c in VAE),
    *(bias_split_gelu(side * side, 4 * c) for side, c in (*LEVELS, *XL)),
    *(bias_split_gelu(side * side, 4 * c, batch=16) for side, c in LEVELS),
    *(bias_add(side * side, c) for side, c in LEVELS),
    *(norm(side * side, c) for norm in (layer_norm, skip_layer_norm) for side, c in (*LEVELS, *XL)),
    *(norm(side * side, c, batch=16) for norm in (layer_norm, skip_layer_norm) for side, c in LEVELS),
    *(attention(side * side, side * side, 8, c // 8) for side, c in LEVELS),
    *(attention(side * side, 77, 8, c // 8) for side, c in LEVELS),
    attention(4096, 4096, 8, 40, batch=16),
    *(attention(side * side, keys, c // 64, 64) for side, c in XL for keys in (side * side, 77)),
    attention(4096, 4096, 1, 512, batch=1),
    *(bias_group_norm(side, c, batch) for batch in (2, 16) for side, c in LEVELS),
    *(bias_group_norm(side, c, batch=1) for side, c in VAE),
    *(bias_layer_norm(side * side, c) for side, c in (*LEVELS, *XL)),
    *(bias_layer_norm(side * side, c, batch=16) for side, c in LEVELS),
    *(interleave_phases(side, c, batch) for batch in (2, 16) for side, c in UPSAMPLED),
    *(interleave_phases(side, c) for side, c in ((64, 640), (32, 1280))),
    *(interleave_phases(side, c, batch=1) for side, c in ((64, 512), (128, 512), (256, 256), (512, 256))),
    *(rotary_embedding(tokens, heads, 128, norm) for norm in (False, True) for tokens, heads in TURNED),
    *(rotary_embedding(512, 32, 128, norm, neighbours=False) for norm in (False, True)),
    *(modulated_norm(tokens, c, "Modulated", gated) for gated in (True, False) for tokens, c in MODULATED),
    *(modulated_norm(4096, 1536, "TwiceModulated", gated, batch=2) for gated in (True, False)),
    *(modulated_norm(4128, 3840, "RMS", gated) for gated in (True, False)),
    *(gated_sum(tokens, c) for tokens, c in MODULATED),
    split_gate(4128, 10240, "Silu"), split_gate(512, 9728, "Silu"), split_gate(512, 10240, "FastGelu"),
]  # fmt: skip


def build(case: Case, count: int, values: Sequence[dict[str, Array]]) -> bytes:
    """A model of ``count`` nodes, each with inputs and outputs of its own; weights are initializers."""

    def name(key: str, i: int) -> str:
        return key if key in case.constant else f"{key}_{i}"

    between = [f"M{place}" if case.all_outputs else "" for place in range(case.outputs - 2)]
    named = ["Y", *between, *(["S"] if case.outputs > 1 else [])]
    outputs = [[f"{output}_{i}" if output else "" for output in named] for i in range(count)]
    nodes = [
        helper.make_node(
            case.operator, [name(k, i) for k in values[i]], outputs[i], domain=case.domain, **case.attributes
        )
        for i in range(count)
    ]
    info = [
        helper.make_tensor_value_info(f"{key}_{i}", helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for i in range(count)
        for key, value in values[i].items()
        if key not in case.constant
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(np.float16))
    results = [helper.make_tensor_value_info(o, kind, None) for i in range(count) for o in outputs[i] if o]
    weights = [onnx_tensor(key, values[0][key]) for key in case.constant]
    graph = helper.make_graph(nodes, "nodes", info, results, weights)
    opsets = [helper.make_opsetid(*domain) for domain in (("", 18), ("com.microsoft", 1), (OWN, 1))]
    functions = []
    if case.domain == OWN:  # without the library ONNX Runtime runs the body
        from sdort.onnx_io.own_functions import own_function

        functions = [own_function(case.operator, frozenset(values[0]), 18)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def build_unfused(sizes: tuple[int, int, int, int], count: int) -> bytes:
    """Attention as it runs where nothing fuses it, without the transposes that it also needs there."""
    batch, tokens, keys, size = sizes
    half_type = helper.np_dtype_to_tensor_dtype(np.dtype(np.float16))
    nodes, info, results = [], [], []
    for i in range(count):
        nodes += [
            helper.make_node("MatMul", [f"q_{i}", f"k_{i}"], [f"scores_{i}"]),
            helper.make_node("Mul", [f"scores_{i}", "scale"], [f"scaled_{i}"]),
            helper.make_node("Softmax", [f"scaled_{i}"], [f"weights_{i}"], axis=-1),
            helper.make_node("MatMul", [f"weights_{i}", f"v_{i}"], [f"Y_{i}"]),
        ]
        shapes = {"q": (tokens, size), "k": (size, keys), "v": (keys, size)}
        info += [helper.make_tensor_value_info(f"{k}_{i}", half_type, (batch, *shape)) for k, shape in shapes.items()]
        results.append(helper.make_tensor_value_info(f"Y_{i}", half_type, None))
    scale = onnx_tensor("scale", np.array(1 / math.sqrt(size), np.float16))
    graph = helper.make_graph(nodes, "unfused", info, results, [scale])
    content: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    ).SerializeToString()
    return content


def unfused_microseconds(sizes: tuple[int, int, int, int], provider: str) -> float:
    batch, tokens, keys, size = sizes
    rng = np.random.default_rng(0)
    one = {"q": half(rng, batch, tokens, size), "k": half(rng, batch, size, keys), "v": half(rng, batch, keys, size)}
    medians = []
    for count in (1, 3):
        inputs = {f"{k}_{i}": value for i in range(count) for k, value in one.items()}
        runner = Runner(build_unfused(sizes, count), inputs, provider, None, True)
        medians.append(statistics.median(in_turns({"run": runner}, REPEAT, warmup=WARM_UP)["run"]))
    return (medians[1] - medians[0]) / 2 * 1e6


def onnx_tensor(name: str, value: Array) -> Any:
    return helper.make_tensor(
        name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape, value.tobytes(), raw=True
    )


class Runner:
    """A session with its inputs on the device; a call is one run."""

    def __init__(
        self, model: bytes, feeds: Mapping[str, Array], provider: str, library: Path | None, graph: bool
    ) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_DISABLE_ALL  # equal nodes stay apart
        if library:
            options.register_custom_ops_library(str(library))
        else:  # the body of an operator computes places, which ONNX Runtime does once, as it does in a whole graph
            options.graph_optimization_level = level.ORT_ENABLE_BASIC
        ep = {"cuda": "CUDAExecutionProvider", "rocm": "ROCMExecutionProvider", "cpu": "CPUExecutionProvider"}[provider]
        key = {"cuda": "enable_cuda_graph", "rocm": "enable_hip_graph"}.get(provider)
        settings = {key: "1" if graph else "0"} if key else {}
        if provider == "rocm":
            settings["tunable_op_enable"] = "1"
        self.session = ort.InferenceSession(model, options, providers=[(ep, settings)])
        if self.session.get_providers()[0] != ep:
            raise SystemExit(f"{ep} does not load here; see `sdort doctor` or the messages above")
        device = "cpu" if provider == "cpu" else "cuda"
        self.binding = self.session.io_binding()
        self.values = {k: ort.OrtValue.ortvalue_from_numpy(v, device, 0) for k, v in feeds.items()}
        for k, v in self.values.items():
            self.binding.bind_ortvalue_input(k, v)
        for output in self.session.get_outputs():
            self.binding.bind_output(output.name, device, 0)
        self.session.run_with_iobinding(self.binding)
        # Graphs want the same addresses every time: what the first run allocated is bound for the rest.
        self.results = dict(zip((o.name for o in self.session.get_outputs()), self.binding.get_outputs(), strict=True))
        for k, v in self.results.items():
            self.binding.bind_ortvalue_output(k, v)

    def __call__(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def output(self, name: str) -> Array:
        value: Array = self.results[name].numpy()
        return value


def measure(case: Case, provider: str, library: Path, variant: str | None = None) -> dict[str, Any]:
    """Microseconds a node for both sides and their errors; of the variant that tuning chooses, or of a named one."""
    rng = np.random.default_rng(0)
    first = case.inputs(rng)
    more = max(2, min(STEP, MOST_BYTES // case.bytes))
    few, many = 2, 2 + more
    values = [first] * many
    exact = case.reference(first)
    row: dict[str, Any] = {"operator": case.operator, "shape": case.label}
    if variant is not None:
        row["variant"] = variant
        choose(case, provider, library, variant)
    elif provider != "cpu":  # tuning measures with events, which a graph cannot capture
        os.environ["SDORT_OPS_TUNE"] = "1"
        Runner(build(case, 1, values), feeds(case, values, 1), provider, library, False)
        os.environ["SDORT_OPS_TUNE"] = "0"
    runners = {
        (side, count): Runner(build(case, count, values), feeds(case, values, count), provider, path, True)
        for side, path in (("ort", None), ("sdort", library))
        for count in (few, many)
    }
    times = in_turns(runners, REPEAT, warmup=WARM_UP)
    for side in ("ort", "sdort"):
        short, long = (statistics.median(times[side, count]) for count in (few, many))
        row[f"{side}_us"] = (long - short) / more * 1e6
        output = runners[side, many].output(f"Y_{many - 1}").astype(np.float64)
        row[f"{side}_error"] = float(np.abs(output[:, case.rows] - exact).max() / exact.std())
    row["ratio"] = row["ort_us"] / row["sdort_us"]
    row["gb_s"] = case.bytes / row["sdort_us"] / 1e3
    row["bytes"] = case.bytes
    if case.flops:
        row["tflop_s"] = case.flops / row["sdort_us"] / 1e6
    if case.unfused and variant is None:
        row["unfused_us"] = unfused_microseconds(case.unfused, provider)
    return row


PLACES = {"cuda": Place.CUDA, "rocm": Place.HIP}


def variants(case: Case, provider: str, library: Path) -> tuple[str, list[str]]:
    """How a tuning table's line of the case begins, and the variants that this GPU has for it."""
    if case.problem is None:
        raise ValueError(f"the variants of {case.operator} are not known here")
    return Kernels(library).variants(case.problem(), True, PLACES[provider])


def choose(case: Case, provider: str, library: Path, variant: str) -> None:
    """Have the sessions of this process run that variant: the tuning table becomes one of its line."""
    where, names = variants(case, provider, library)
    if variant not in names:
        raise ValueError(f"{case.label} has the variants {', '.join(names)}, not {variant}")
    Path(os.environ["SDORT_OPS_TUNING"]).write_text(f"{where}\t{variant}\t0\n", encoding="utf-8")


class Failed(Exception):
    """Why a process has no result, in a sentence."""


def isolated(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, in a process of its own, where CUDA's errors stay until the process ends.

    Raises:
        Failed: it raised, its process ended without a result, or it took longer.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(theirs, function, *arguments))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise Failed(f"no result in {seconds:.0f} seconds: the process was ended")
        result, reason = ours.recv()
    except EOFError:
        process.join()
        raise Failed(f"the process ended without a result (exit code {process.exitcode})") from None
    finally:
        process.kill()
        process.join()
    if reason is not None:
        raise Failed(reason)
    return result


def answer(pipe: Any, function: Callable[..., Any], *arguments: Any) -> None:
    try:
        pipe.send((function(*arguments), None))
    except (Exception, SystemExit) as error:
        pipe.send((None, str(error) or type(error).__name__))


def variants_of(index: int, provider: str, library: Path) -> list[str]:
    return variants(CASES[index], provider, library)[1]


def measure_case(index: int, provider: str, library: Path, variant: str | None) -> dict[str, Any]:
    return measure(CASES[index], provider, library, variant)


def feeds(case: Case, values: Sequence[dict[str, Array]], count: int) -> dict[str, Array]:
    return {f"{k}_{i}": v for i in range(count) for k, v in values[i].items() if k not in case.constant}


def copy_bandwidth(provider: str) -> float:
    """GB/s of reading and writing when the driver copies 512 MiB on the device."""
    cuda = provider == "cuda"
    driver = ctypes.CDLL("libcuda.so.1" if cuda else "libamdhip64.so.7")
    copy = driver.cuMemcpyDtoD_v2 if cuda else driver.hipMemcpyDtoD
    synchronize = driver.cuCtxSynchronize if cuda else driver.hipDeviceSynchronize
    size = 2**29
    blocks = [ort.OrtValue.ortvalue_from_shape_and_type([size], np.uint8, "cuda", 0) for _ in range(2)]
    target, source = (ctypes.c_uint64(block.data_ptr()) for block in blocks)

    def ten() -> None:
        for _ in range(10):
            copy(target, source, ctypes.c_size_t(size))

    seconds = in_turns({"copies": ten}, 10, warmup=2, wait=synchronize)["copies"]
    return 2 * size / (statistics.median(seconds) / 10) / 1e9


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def unmeasured(rows: Sequence[dict[str, Any]], library: Path) -> list[str]:
    """The library's operators with kernels for GPUs that no row is of."""
    describe = ctypes.CDLL(str(library)).sdort_ops_describe
    describe.restype = ctypes.c_char_p
    names = {operator["name"] for operator in json.loads(describe())["operators"] if operator["gpu"]}
    return sorted(names - {row["operator"] for row in rows})


def shape_of(row: Mapping[str, Any]) -> str:
    return f"{row['shape']} {row['variant']}" if "variant" in row else str(row["shape"])


def markdown(rows: Sequence[dict[str, Any]], copy: float | None, missing: Sequence[str] = ()) -> str:
    lines = [
        "| operator | shape | ORT µs | sdort µs | ratio | GB/s | of copy | error ORT, sdort |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = f"{row['gb_s'] / copy:.0%}" if copy else ""
        lines.append(
            f"| {row['operator']} | {shape_of(row)} | {row['ort_us']:.2f} | {row['sdort_us']:.2f} | {row['ratio']:.2f} "
            f"| {row['gb_s']:.0f} | {share} | {row['ort_error']:.1e}, {row['sdort_error']:.1e} |"
        )
    lines += [f"| {operator} | not measured | | | | | | |" for operator in missing]
    for operator in dict.fromkeys(row["operator"] for row in rows if "variant" not in row):
        ratios = [row["ratio"] for row in rows if row["operator"] == operator]
        lines.append(f"| **{operator}** | geometric mean of {len(ratios)} | | | **{geomean(ratios):.2f}** | | | |")
    return "\n".join(lines)


def main() -> int:
    parser = Arguments(__doc__, "--provider --json", providers="cuda rocm cpu")
    parser.add_argument("--library", type=Path, required=True, help="libsdort_ops.so (sdort ops build)")
    parser.add_argument("--operator", action="append", help="only this one; may be repeated")
    parser.add_argument("--shape", action="append", help='only this one, as "2x4096x77 8x40"; may be repeated')
    parser.add_argument("--tuning", type=Path, help="tuning table to keep (default: a temporary one)")
    parser.add_argument("--variants", action="store_true", help="attention's kernels one by one, on cuda or rocm")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of one measurement (default %(default)s)")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    if unknown := set(args.shape or ()) - {case.label for case in CASES}:
        parser.error(f"no case has the shape {', '.join(sorted(unknown))}")
    if args.variants and args.provider == "cpu":
        parser.error("--variants is of GPUs: on the CPU there is one kernel")
    if args.variants and args.tuning:
        parser.error("--variants tunes nothing: leave out --tuning")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SDORT_OPS_TUNING"] = str(args.tuning or Path(folder) / "tuning.tsv")
        os.environ["SDORT_OPS"] = "all"
        os.environ["SDORT_OPS_PROVIDER"] = args.provider
        rows, failures = run(args)
        tuning = Path(os.environ["SDORT_OPS_TUNING"])
        table = tuning.read_text(encoding="utf-8") if tuning.exists() else ""
    copy = None
    if args.provider != "cpu":
        try:
            copy = isolated(args.timeout, copy_bandwidth, args.provider)
        except Failed as error:
            failures.append(f"copy: {error}")
    print(f"copy: {copy:.0f} GB/s" if copy else "", table, sep="\n")
    text = markdown(rows, copy, [] if args.variants else unmeasured(rows, args.library))
    print(text, *(f"failed: {failure}" for failure in failures), sep="\n")
    if args.json:
        result = {
            "onnxruntime": ort.__version__,
            "provider": args.provider,
            "copy_gb_s": copy,
            "rows": rows,
            "failures": failures,
            "tuning": table,
        }
        args.json.write_text(json.dumps(result, indent=1))
    if args.markdown:
        args.markdown.write_text(text + "\n")
    return 1 if failures else 0


def run(args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows, each printed as it comes, and why others are missing."""
    rows: list[dict[str, Any]] = []
    failures: list[str] = []

    def attempt(label: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return isolated(args.timeout, function, *arguments)
        except Failed as error:
            failures.append(f"{label}: {error}")
            print(failures[-1], file=sys.stderr, flush=True)
            return None

    for index, case in enumerate(CASES):
        named = case.operator in (args.operator or [case.operator]) and case.label in (args.shape or [case.label])
        if not named or (args.variants and case.problem is None):
            continue
        label, where = f"{case.operator} {case.label}", (index, args.provider, args.library)
        names = (attempt(label, variants_of, *where) or []) if args.variants else [None]
        for name in names:
            row = attempt(f"{label} {name}" if name else label, measure_case, *where, name)
            if row is not None:
                rows.append(row)
                print(line(row), flush=True)
    return rows, failures


def line(row: Mapping[str, Any]) -> str:
    text = (
        f"{row['operator']:24} {shape_of(row):24} ORT {row['ort_us']:8.2f} us  sdort {row['sdort_us']:8.2f} us  "
        f"ratio {row['ratio']:5.2f}  {row['gb_s']:6.0f} GB/s  errors {row['ort_error']:.1e} {row['sdort_error']:.1e}"
    )
    text += f"  {row['tflop_s']:.0f} TFLOP/s" if "tflop_s" in row else ""
    return text + (f", unfused {row['unfused_us']:.1f} us" if "unfused_us" in row else "")


if __name__ == "__main__":
    raise SystemExit(main())
