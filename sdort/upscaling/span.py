"""SPAN: a network of six blocks with attention that has no parameters (https://arxiv.org/abs/2311.12770)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sdort.errors import BadModelError
from sdort.graph.signature import Array
from sdort.graph.weights import Inline, Weight
from sdort.upscaling.network import IMAGE, Network, shuffled

NAME = "SPAN"
_MEAN, _RANGE = (0.4488, 0.4371, 0.4040), 255.0
"""The colours that the input is centred around, and its range: constants of the architecture."""
_BLOCKS = 6


def recognise(weights: Mapping[str, Weight]) -> bool:
    return {"conv_1.sk.weight", "block_1.c1_r.sk.weight", "conv_cat.weight", "upsampler.0.weight"} <= set(weights)


def build(weights: Mapping[str, Weight]) -> tuple[Network, str, int, int]:
    """The network, as :func:`sdort.upscaling.rrdb.build`."""
    merged = _merged(weights)
    taken = weights["conv_1.sk.weight"].shape[1]
    network = Network(merged, taken)
    image = IMAGE if "no_norm" in weights else _normalized(network, taken)
    results = [first := network.convolution(image, "conv_1")]
    inner = first
    for number in range(1, _BLOCKS + 1):
        result, inner = _block(network, results[-1], f"block_{number}")
        results.append(result)
    last = network.convolution(results[-1], "conv_2")
    image = network.convolution(network.concat([first, last, results[1], inner]), "conv_cat")
    image = network.convolution(image, "upsampler.0")
    found = shuffled(network.channels[image], taken)
    if found is None:
        raise BadModelError("the upscaler's last convolution makes no larger image", hint="It is damaged.")
    return network, network.pixel_shuffle(image, found[0]), found[0], 1


def _normalized(network: Network, channels: int) -> str:
    if channels != len(_MEAN):
        raise BadModelError(f"the upscaler is a SPAN of {channels} channels with the means of 3")
    mean = network.constant(np.array(_MEAN, np.float32).reshape(1, 3, 1, 1), "mean")
    return network.scaled(network.op("Sub", [IMAGE, mean], channels), _RANGE)


def _block(network: Network, image: str, name: str) -> tuple[str, str]:
    """A block's result, and that of its first convolution behind the activation, which the reference computes in
    place."""
    first = _silu(network, network.convolution(image, f"{name}.c1_r"))
    second = network.convolution(first, f"{name}.c2_r")
    third = network.convolution(_silu(network, second), f"{name}.c3_r")
    count = network.channels[third]
    attention = network.op("Sub", [network.op("Sigmoid", [third], count), network.number(0.5)], count)
    return network.op("Mul", [network.add(third, image), attention], count), first


def _silu(network: Network, image: str) -> str:
    count = network.channels[image]
    return network.op("Mul", [image, network.op("Sigmoid", [image], count)], count)


def _merged(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """The weights with each of the network's convolutions merged into one: it is trained as a 1x1, a 3x3 and a 1x1
    convolution in a row, beside a 1x1 one. What the file has as the merged one may be older than its parts."""
    stems = [name.removesuffix(".sk.weight") for name in weights if name.endswith(".sk.weight")]
    merged = {
        name: weight
        for name, weight in weights.items()
        if name != "no_norm" and not any(name.startswith(f"{stem}.") for stem in stems)
    }
    for stem in stems:
        kernel, bias = _one_convolution(weights, stem)
        merged[f"{stem}.weight"], merged[f"{stem}.bias"] = Inline(kernel), Inline(bias)
    return merged


def _one_convolution(weights: Mapping[str, Weight], stem: str) -> tuple[Array, Array]:
    """Filters [out, in, 3, 3] and biases [out] of the merged convolution, computed in float64."""

    def values(name: str) -> Array:
        weight = weights.get(f"{stem}.{name}")
        if weight is None:
            raise BadModelError(f"the upscaler has no tensor {stem}.{name!r}", hint="It is damaged.")
        return weight.load().astype(np.float64)

    first, second, third, beside = (values(f"{name}.weight") for name in ("conv.0", "conv.1", "conv.2", "sk"))
    try:
        inner = np.einsum("om, mnhw, ni -> oihw", third[:, :, 0, 0], second, first[:, :, 0, 0])
        inner[:, :, 1, 1] += beside[:, :, 0, 0]
        biases = np.einsum("mnhw, n -> m", second, values("conv.0.bias")) + values("conv.1.bias")
        bias = third[:, :, 0, 0] @ biases + values("conv.2.bias") + values("sk.bias")
    except (ValueError, IndexError) as error:
        raise BadModelError(f"the parts of the upscaler's {stem} do not fit together", hint="It is damaged.") from error
    return inner.astype(np.float32), bias.astype(np.float32)
