"""Upscalers with random weights, in every layout of names that files have, and what they compute: float64 formulas."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from sdort.graph.signature import Array

State = dict[str, Array]


def rrdb_state(
    rng: np.random.Generator,
    *,
    filters: int = 8,
    blocks: int = 2,
    steps: int = 2,
    unshuffle: int = 1,
    plus: bool = False,
    channels: int = 3,
) -> State:
    """RRDBNet by Real-ESRGAN's names."""
    grown = 4
    shapes = {"conv_first": (filters, channels * unshuffle**2), "conv_body": (filters, filters)}
    for block in range(blocks):
        for number in (1, 2, 3):
            stem = f"body.{block}.rdb{number}"
            for layer in (1, 2, 3, 4, 5):
                shapes[f"{stem}.conv{layer}"] = (filters if layer == 5 else grown, filters + grown * (layer - 1))
    shapes |= {f"conv_up{step}": (filters, filters) for step in range(1, steps + 1)}
    shapes |= {"conv_hr": (filters, filters), "conv_last": (channels, filters)}
    state = _convolutions(rng, shapes)
    if plus:
        for block in range(blocks):
            for number in (1, 2, 3):
                state[f"body.{block}.rdb{number}.conv1x1.weight"] = _normal(rng, (grown, filters, 1, 1), filters)
    return state


def compact_state(
    rng: np.random.Generator,
    *,
    filters: int = 8,
    layers: int = 3,
    scale: int = 2,
    channels: int = 3,
    one_slope: bool = False,
) -> State:
    """SRVGGNetCompact."""
    widths = [channels, *[filters] * (layers + 1), channels * scale**2]
    shapes = {f"body.{2 * place}": (made, taken) for place, (taken, made) in enumerate(itertools.pairwise(widths))}
    slopes = {
        f"body.{2 * place + 1}.weight": rng.uniform(0, 0.5, 1 if one_slope else filters).astype(np.float32)
        for place in range(layers + 1)
    }
    return _convolutions(rng, shapes) | slopes


def span_state(rng: np.random.Generator, *, filters: int = 8, scale: int = 2, norm: bool = True) -> State:
    """SPAN, as it is trained: each convolution in parts."""
    # Trained ones keep their values near 1, where the attention does not saturate.
    factors = {"conv_1": 0.2 if not norm else 0.002}
    parts = {"conv_1": (3, filters), "conv_2": (filters, filters)}
    parts |= {f"block_{block}.c{number}_r": (filters, filters) for block in range(1, 7) for number in (1, 2, 3)}
    state: State = {}
    for stem, (taken, made) in parts.items():
        widths = {"sk": (made, taken, 1), "conv.0": (2 * taken, taken, 1), "conv.1": (2 * made, 2 * taken, 3)}
        for name, (out, into, side) in {**widths, "conv.2": (made, 2 * made, 1)}.items():
            weight = _normal(rng, (out, into, side, side), into * side**2)
            state[f"{stem}.{name}.weight"] = weight * np.float32(factors.get(stem, 0.5) if name[-1] in "2k" else 1)
            state[f"{stem}.{name}.bias"] = rng.normal(0, 0.1, out).astype(np.float32)
        state[f"{stem}.eval_conv.weight"] = np.full((made, taken, 3, 3), np.nan, np.float32)  # older than its parts
        state[f"{stem}.eval_conv.bias"] = np.full(made, np.nan, np.float32)
    state |= _convolutions(rng, {"upsampler.0": (3 * scale**2, filters)})
    state["conv_cat.weight"] = _normal(rng, (filters, 4 * filters, 1, 1), 4 * filters)
    state["conv_cat.bias"] = rng.normal(0, 0.1, filters).astype(np.float32)
    return state if norm else state | {"no_norm": np.zeros(1, np.float32)}


def _convolutions(rng: np.random.Generator, shapes: Mapping[str, tuple[int, int]]) -> State:
    state: State = {}
    for name, (made, taken) in shapes.items():
        state[f"{name}.weight"] = _normal(rng, (made, taken, 3, 3), 9 * taken)
        state[f"{name}.bias"] = rng.normal(0, 0.1, made).astype(np.float32)
    return state


def _normal(rng: np.random.Generator, shape: tuple[int, ...], taken: int) -> Array:
    return rng.normal(0, (2 / taken) ** 0.5, shape).astype(np.float32)


# --- names ---


def second_names(state: State) -> State:
    """By the names of ESRGAN's second release, BSRGAN and RealSR."""
    rules = (
        (r"^body\.(\d+)\.rdb(\d)", r"RRDB_trunk.\1.RDB\2"),
        (r"^conv_body", "trunk_conv"),
        (r"^conv_up(\d)", r"upconv\1"),
        (r"^conv_hr", "HRconv"),
    )
    for old, new in rules:
        state = {re.sub(old, new, name): values for name, values in state.items()}
    return state


def first_names(state: State) -> State:
    """By the names of ESRGAN's first release: places in one sequence."""
    blocks = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("body."))
    steps = len({name.split(".")[0] for name in state if name.startswith("conv_up")})
    ends = {"conv_first": 0, "conv_hr": 3 * steps + 2, "conv_last": 3 * steps + 4}
    ends |= {f"conv_up{step}": 3 * step for step in range(1, steps + 1)}
    renamed: State = {}
    for name, values in state.items():
        stem, _, kind = name.rpartition(".")
        inner = re.fullmatch(r"body\.(\d+)\.rdb(\d)\.conv(\d|1x1)", stem)
        if inner:
            middle = "" if inner[3] == "1x1" else ".0"
            renamed[f"model.1.sub.{inner[1]}.RDB{inner[2]}.conv{inner[3]}{middle}.{kind}"] = values
        elif stem == "conv_body":
            renamed[f"model.1.sub.{blocks}.{kind}"] = values
        else:
            renamed[f"model.{ends[stem]}.{kind}"] = values
    return renamed


def write_state(path: Path, state: State) -> Path:
    save_file({name: np.ascontiguousarray(values) for name, values in state.items()}, path)
    return path


# --- formulas, in float64: images [channels, height, width] ---


def convolved(image: Array, weight: Array, bias: Array | None = None) -> Array:
    side = weight.shape[2]
    padded = np.pad(image, [(0, 0), (side // 2, side // 2), (side // 2, side // 2)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), (1, 2))
    made: Array = np.einsum("ihwab, oiab -> ohw", windows, weight.astype(np.float64), optimize=True)
    return made if bias is None else made + bias.astype(np.float64)[:, None, None]


def leaky(image: Array, slope: float = 0.2) -> Array:
    return np.where(image < 0, slope * image, image)


def shuffled(image: Array, factor: int) -> Array:
    """torch's PixelShuffle, as its documentation defines it."""
    count, height, width = image.shape[0] // factor**2, *image.shape[1:]
    parts = image.reshape(count, factor, factor, height, width).transpose(0, 3, 1, 4, 2)
    return parts.reshape(count, height * factor, width * factor)


def unshuffled(image: Array, factor: int) -> Array:
    count, height, width = image.shape[0], image.shape[1] // factor, image.shape[2] // factor
    parts = image.reshape(count, height, factor, width, factor).transpose(0, 2, 4, 1, 3)
    return parts.reshape(count * factor**2, height, width)


def rrdb(image: Array, state: State, unshuffle: int = 1) -> Array:
    """RRDBNet (https://arxiv.org/abs/1809.00219), ESRGAN+ where there are 1x1 convolutions."""

    def layer(x: Array, name: str) -> Array:
        return convolved(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def dense(x: Array, stem: str) -> Array:
        x1 = leaky(layer(x, f"{stem}.conv1"))
        x2 = leaky(layer(np.concatenate([x, x1]), f"{stem}.conv2"))
        plus = f"{stem}.conv1x1.weight" in state
        x2 = x2 + layer(x, f"{stem}.conv1x1") if plus else x2
        x3 = leaky(layer(np.concatenate([x, x1, x2]), f"{stem}.conv3"))
        x4 = leaky(layer(np.concatenate([x, x1, x2, x3]), f"{stem}.conv4"))
        x4 = x4 + x2 if plus else x4
        return 0.2 * layer(np.concatenate([x, x1, x2, x3, x4]), f"{stem}.conv5") + x

    start = inner = layer(unshuffled(image, unshuffle), "conv_first")
    for block in range(1 + max(int(name.split(".")[1]) for name in state if name.startswith("body."))):
        result = inner
        for number in (1, 2, 3):
            result = dense(result, f"body.{block}.rdb{number}")
        inner = 0.2 * result + inner
    image = start + layer(inner, "conv_body")
    for step in range(1, 1 + len({name for name in state if re.fullmatch(r"conv_up\d\.weight", name)})):
        image = leaky(layer(image.repeat(2, 1).repeat(2, 2), f"conv_up{step}"))
    return layer(leaky(layer(image, "conv_hr")), "conv_last")


def compact(image: Array, state: State, scale: int) -> Array:
    """SRVGGNetCompact."""
    last = max(int(name.split(".")[1]) for name in state)
    inner = convolved(image, state["body.0.weight"], state["body.0.bias"])
    for number in range(1, last, 2):
        slopes = state[f"body.{number}.weight"].astype(np.float64)[:, None, None]
        inner = np.where(inner < 0, slopes * inner, inner)
        inner = convolved(inner, state[f"body.{number + 1}.weight"], state[f"body.{number + 1}.bias"])
    return shuffled(inner, scale) + image.repeat(scale, 1).repeat(scale, 2)


def span(image: Array, state: State, scale: int) -> Array:
    """SPAN (https://arxiv.org/abs/2311.12770) as it is trained, with its convolutions in parts: the image is padded
    before all of them."""

    def layer(x: Array, stem: str) -> Array:
        padded = np.pad(x, [(0, 0), (1, 1), (1, 1)])
        inner = convolved(padded, state[f"{stem}.conv.0.weight"], state[f"{stem}.conv.0.bias"])
        inner = convolved(inner, state[f"{stem}.conv.1.weight"], state[f"{stem}.conv.1.bias"])[:, 1:-1, 1:-1]
        inner = convolved(inner, state[f"{stem}.conv.2.weight"], state[f"{stem}.conv.2.bias"])
        return inner + convolved(x, state[f"{stem}.sk.weight"], state[f"{stem}.sk.bias"])

    def sigmoid(x: Array) -> Array:
        return (1 + np.tanh(x / 2)) / 2

    if "no_norm" not in state:
        image = (image - np.array([0.4488, 0.4371, 0.4040])[:, None, None]) * 255
    first = result = layer(image, "conv_1")
    results = []
    for number in range(1, 7):
        inner = layer(result, f"block_{number}.c1_r")
        inner = inner * sigmoid(inner)
        second = layer(inner, f"block_{number}.c2_r")
        third = layer(second * sigmoid(second), f"block_{number}.c3_r")
        result = (third + result) * (sigmoid(third) - 0.5)
        results.append(result)
    joined = np.concatenate([first, layer(result, "conv_2"), results[0], inner])
    joined = convolved(joined, state["conv_cat.weight"], state["conv_cat.bias"])
    return shuffled(convolved(joined, state["upsampler.0.weight"], state["upsampler.0.bias"]), scale)
