"""Products of an adapter's options, against a formula of its own in float64.

A kind of difference, single numbers beside it, DoRA in every spelling of its magnitudes, alpha, convolutions, and fused
q, k and v meet in one module.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.adapters.adapted_weight import adapted
from sdort.adapters.adapter_file import Adapter, read_adapter
from sdort.graph import pieces
from sdort.graph.signature import Array
from sdort.graph.weights import Inline

BLOCK = "down_blocks.0.attentions.0.transformer_blocks.0.attn1"
LINEAR = {f"{BLOCK}.to_{letter}.weight": (12, 8) for letter in "qkv"}
CONVOLUTION = {"down_blocks.0.resnets.0.conv1.weight": (12, 4, 3, 3)}
Parts = dict[str, Any]

KINDS = ("none", "lora", "loha", "lokr", "diff")
MAGNITUDES = (
    None, "dora_scale", "magnitude", "magnitude.weight", "lora_magnitude_vector", "lora_magnitude_vector.weight",
    "lora_magnitude_vector.default", "lora_magnitude_vector.default.weight",
)  # fmt: skip
ALPHAS: tuple[Any, ...] = (None, np.array(1.5, np.float32), np.array(3, np.int64))
RANK = 2


def product(first: Array, second: Array) -> Array:
    return np.asarray(first.astype(np.float64).reshape(len(first), -1) @ second.astype(np.float64).reshape(RANK, -1))


def difference(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> tuple[Parts, Array, bool]:
    """The tensors of a kind, the matrix that they make, and whether alpha divides it."""

    def normal(*size: int) -> Array:
        return (random.standard_normal(size) * 0.3).astype(np.float32)

    rows, inner = shape[0], shape[1:]
    if kind == "lora":
        up, down = normal(rows, RANK, *[1] * (len(shape) - 2)), normal(RANK, *inner)
        return {"lora_up.weight": up, "lora_down.weight": down}, product(up, down), True
    if kind == "loha":
        parts = {f"hada_w{n}_{side}": normal(*size) for n in (1, 2) for side, size in
                 (("a", (rows, RANK)), ("b", (RANK, int(np.prod(inner)))))}  # fmt: skip
        halves = [product(parts[f"hada_w{n}_a"], parts[f"hada_w{n}_b"]) for n in (1, 2)]
        return parts, halves[0] * halves[1], True
    if kind == "lokr":
        first, a, b = normal(4, 2), normal(rows // 4, RANK), normal(RANK, inner[0] // 2, *inner[1:])
        second = product(a, b)
        return {"lokr_w1": first, "lokr_w2_a": a, "lokr_w2_b": b}, np.kron(first.astype(np.float64), second), True
    if kind == "diff":
        whole = normal(*shape)
        return {"diff": whole}, whole.astype(np.float64).reshape(rows, -1), False
    return {}, np.zeros((rows, int(np.prod(inner)))), False


def residual(random: np.random.Generator, shape: tuple[int, ...]) -> tuple[Parts, Array]:
    """Single numbers as LyCORIS's extraction writes them, and the array that they stand for."""
    count = int(np.prod(shape)) // 5
    places = random.choice(int(np.prod(shape)), count)  # some twice: they add up, as in a sparse tensor of torch
    values = random.standard_normal(count).astype(np.float16)
    dense = np.zeros(shape)
    np.add.at(dense.reshape(-1), places, values)
    indices = np.stack(np.unravel_index(places, shape)).astype(np.int16)
    return {"bias_indices": indices, "bias_values": values, "bias_size": np.array(shape, np.int16)}, dense


def merged(weight: Array, delta: Array, magnitude: Array | None) -> Array:
    """https://arxiv.org/abs/2402.09353, equation 5, with the norms of what each output is made of."""
    changed = weight.astype(np.float64) + delta.reshape(weight.shape)
    if magnitude is None:
        return np.asarray(changed)
    flat = changed.reshape(len(changed), -1)
    return np.asarray(
        (magnitude.reshape(-1, 1) * flat / np.linalg.norm(flat, axis=1, keepdims=True)).reshape(weight.shape)
    )


def check(
    file: Path, tensors: Parts, shapes: dict[str, tuple[int, ...]], expected: dict[str, Array], base: Parts
) -> None:
    save_file(tensors, file)
    found: Adapter = read_adapter(file, {"unet": shapes})
    assert not found.unmatched
    assert found.deltas["unet"].keys() == expected.keys()
    for name, values in expected.items():
        result = adapted(Inline(base[name]), [(found.deltas["unet"][name], 1.0)]).load()
        np.testing.assert_allclose(result, values, atol=3e-6, rtol=0, err_msg=name)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("kind", KINDS)
def test_options_meet_in_one_module(tmp_path: Path, kind: str, magnitude: str | None) -> None:
    random = np.random.default_rng(KINDS.index(kind))
    targets = (("linear", False), ("linear", True), ("convolution", False))
    for (target, fused), single, alpha in itertools.product(targets, (False, True), ALPHAS):
        if kind == "none" and not single:
            continue
        shapes: dict[str, tuple[int, ...]] = dict(LINEAR if target == "linear" else CONVOLUTION)
        names = list(shapes)[: 3 if fused else 1]
        stem = re.sub("to_q$", "to_qkv" if fused else "to_q", names[0].removesuffix(".weight"))
        stem = "lora_unet_" + stem.replace(".", "_")
        shape = (len(names) * 12, *shapes[names[0]][1:])
        parts, matrix, ranked = difference(random, kind, shape)
        delta = matrix.reshape(shape)
        if single:
            more, dense = residual(random, shape)
            parts, delta = {**parts, **more}, delta + dense
        if alpha is not None:
            parts["alpha"] = alpha
            delta = delta * (float(alpha) / RANK if ranked else 1.0)
        norms = None
        if magnitude:
            norms = random.uniform(0.5, 2, (len(names) * 12, *[1] * (len(shape) - 1))).astype(np.float32)
            parts[magnitude] = norms if magnitude == "dora_scale" else norms.reshape(-1)
        base = {name: random.standard_normal(shapes[name]).astype(np.float32) for name in shapes}
        whole = merged(np.concatenate([base[name] for name in names]), delta, norms)
        expected = dict(zip(names, np.split(whole, len(names)), strict=True))
        check(
            tmp_path / "a.safetensors",
            {f"{stem}.{part}": value for part, value in parts.items()},
            shapes,
            expected,
            base,
        )


Adapters = list[tuple[Array, Array | None, float]]
"""Of each adapter: its matrix, magnitudes as its file has them, and the scale that it is asked for with."""


def summed(weight: Array, adapters: Adapters) -> Array:
    """Each adapter's change of the weight as it was, times its scale: DoRA's norms are of that one."""
    base = weight.astype(np.float64)
    total = base.copy()
    for delta, magnitude, scale in adapters:
        changed = base + delta.reshape(weight.shape)
        if magnitude is not None:
            axis = max(range(magnitude.ndim), key=lambda axis: magnitude.shape[axis])
            others = tuple(other for other in range(weight.ndim) if other != axis)
            changed = changed * magnitude / np.sqrt((changed**2).sum(axis=others, keepdims=True))
        total += scale * (changed - base)
    return total


@pytest.mark.parametrize("piece", [1, 40, 10_000])
@pytest.mark.parametrize("shape", [(8, 8), (12, 8), (8, 12), (8, 8, 3, 3), (12, 4, 3, 3)], ids=str)
@pytest.mark.parametrize("axes", [*itertools.product((None, 0, 1), repeat=2)], ids=str)
def test_adapters_beside_one_another(
    tmp_path: Path, axes: tuple[int | None, ...], shape: tuple[int, ...], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LyCORIS's magnitudes are of outputs or of inputs, also where these are as many; the order is of no effect."""
    monkeypatch.setattr(pieces, "PIECE", piece)
    random = np.random.default_rng(piece)
    name = "conv_in.weight"
    base = random.standard_normal(shape).astype(np.float32)
    adapters: Adapters = []
    given = []
    for number, (axis, scale) in enumerate(zip(axes, (0.5, 1.25), strict=True)):
        parts, delta, _ = difference(random, "lora", shape)
        magnitude = None
        if axis is not None:
            size = [shape[axis] if other == axis else 1 for other in range(len(shape))]
            magnitude = parts["dora_scale"] = random.uniform(0.5, 2, size).astype(np.float32)
        file = tmp_path / f"{number}.safetensors"
        save_file({f"lora_unet_conv_in.{part}": value for part, value in parts.items()}, file)
        adapters.append((delta, magnitude, scale))
        given.append((read_adapter(file, {"unet": {name: shape}}).deltas["unet"][name], scale))
    expected = summed(base, adapters)
    for order in (given, given[::-1]):
        np.testing.assert_allclose(adapted(Inline(base), order).load(), expected, atol=3e-6, rtol=0)


def test_a_bias_of_a_lora_is_scaled_as_its_weight(tmp_path: Path) -> None:
    """peft's ``lora_bias``: the bias of ``lora_B``, which lies in front of the factor ``alpha / rank``."""
    random = np.random.default_rng(3)
    parts, delta, _ = difference(random, "lora", (12, 8))
    stem = "base_model.model.conv_in."
    bias = random.standard_normal(12).astype(np.float32)
    tensors = {"lora_B.weight": parts["lora_up.weight"], "lora_A.weight": parts["lora_down.weight"]}
    tensors |= {"lora_B.bias": bias, "alpha": np.array(5, np.float32)}
    save_file({stem + part: value for part, value in tensors.items()}, tmp_path / "a.safetensors")
    shapes = {"conv_in.weight": (12, 8), "conv_in.bias": (12,)}
    found = read_adapter(tmp_path / "a.safetensors", {"unet": shapes}).deltas["unet"]
    np.testing.assert_allclose(found["conv_in.weight"].array(), delta * 5 / RANK, atol=3e-6)
    np.testing.assert_allclose(found["conv_in.bias"].array(), bias * 5 / RANK, atol=3e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bias_size": np.array([12, 9], np.int16)}, "do not belong together"),
        ({"bias_size": np.array([12], np.int16)}, "do not belong together"),
        ({"bias_size": np.array([0, 8], np.int16)}, "do not belong together"),
        ({"bias_indices": np.zeros((1, 3), np.int16)}, "do not belong together"),
        ({"bias_indices": np.zeros((2, 3), np.float32)}, "its bias_indices are float32"),
        ({"bias_values": np.zeros(3, np.int16)}, "are int16"),
        ({"bias_size": None}, "a part of the change is missing"),
    ],
)
def test_single_numbers_that_fit_nothing_are_told(tmp_path: Path, change: Parts, reason: str) -> None:
    random = np.random.default_rng(0)
    parts, _, _ = difference(random, "lora", (12, 8))
    parts |= {"bias_indices": np.zeros((2, 3), np.int16), "bias_values": np.zeros(3, np.float32)}
    parts |= {"bias_size": np.array([12, 8], np.int16), **change}
    good, _, _ = difference(random, "lora", (12, 8))
    stem = "lora_unet_" + BLOCK.replace(".", "_")
    tensors = {f"{stem}_to_q.{part}": value for part, value in parts.items() if value is not None}
    save_file({**tensors, **{f"{stem}_to_k.{part}": value for part, value in good.items()}}, tmp_path / "a.safetensors")
    found = read_adapter(tmp_path / "a.safetensors", {"unet": LINEAR})
    assert {entry.key for entry in found.unmatched} == tensors.keys()
    assert all(reason in entry.reason for entry in found.unmatched)


def test_places_outside_of_a_weight_are_refused(tmp_path: Path) -> None:
    from sdort.errors import BadModelError

    for places in ([[12], [0]], [[0], [-1]]):
        tensors = {"bias_indices": np.array(places, np.int16), "bias_values": np.ones(1, np.float32)}
        tensors["bias_size"] = np.array([12, 8], np.int16)
        stem = "lora_unet_" + BLOCK.replace(".", "_") + "_to_q"
        save_file({f"{stem}.{part}": value for part, value in tensors.items()}, tmp_path / "a.safetensors")
        found = read_adapter(tmp_path / "a.safetensors", {"unet": LINEAR})
        with pytest.raises(BadModelError, match="places outside of its weight"):
            next(iter(found.deltas["unet"].values())).array(np.zeros((12, 8), np.float32))
