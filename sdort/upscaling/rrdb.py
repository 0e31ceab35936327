"""RRDBNet: ESRGAN, Real-ESRGAN, BSRGAN, RealSR and ESRGAN+ (https://arxiv.org/abs/1809.00219)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sdort.errors import BadModelError
from sdort.graph.weights import Weight
from sdort.upscaling.network import IMAGE, Network, square_root

NAME = "ESRGAN"
_SLOPE, _RESIDUAL = 0.2, 0.2
"""Of the LeakyRelu, and the share of a block's result that is added to its input."""
_NEW = (
    (r"RRDB_trunk\.(\d+)\.RDB(\d)\.conv(\d|1x1)\.", r"body.\1.rdb\2.conv\3."),
    (r"trunk_conv\.", "conv_body."),
    (r"upconv(\d)\.", r"conv_up\1."),
    (r"HRconv\.", "conv_hr."),
)
"""Names of ESRGAN's second release, BSRGAN's and RealSR's -> Real-ESRGAN's, which are the ones used here."""


def recognise(weights: Mapping[str, Weight]) -> bool:
    names = _renamed(weights)
    return "conv_first.weight" in names and "body.0.rdb1.conv1.weight" in names and "conv_last.weight" in names


def build(weights: Mapping[str, Weight]) -> tuple[Network, str, int, int]:
    """The network.

    Returns:
        It, the name of its last image, how many times larger that is than the input, and the number of pixels that the
        input's sides have to be a multiple of.

    Raises:
        BadModelError: a tensor is missing or has another shape.
    """
    weights = _renamed(weights)
    first, last = (weights[name].shape for name in ("conv_first.weight", "conv_last.weight"))
    if len(first) != 4 or len(last) != 4:
        raise BadModelError("the upscaler's first or last tensor is no convolution")
    taken, made = first[1], last[0]
    unshuffle = square_root(taken // made) if made and taken % made == 0 else None
    factor = unshuffle or 1
    network = Network(weights, taken // factor**2)
    image = start = network.of_unshuffled(IMAGE, "conv_first", factor)
    for number in range(_count(weights, r"body\.(\d+)\.")):
        image = _block(network, image, f"body.{number}")
    image = network.add(start, network.convolution(image, "conv_body"))
    steps = _count(weights, r"conv_up(\d)\.", first=1)
    for number in range(1, steps + 1):
        image = network.convolution(network.nearest(image, 2), f"conv_up{number}")
        image = network.leaky_relu(image, _SLOPE)
    image = network.leaky_relu(network.convolution(image, "conv_hr"), _SLOPE)
    image = network.convolution(image, "conv_last")
    if 2**steps % factor:
        raise BadModelError("the upscaler makes images smaller", hint="Choose one that makes them larger.")
    return network, image, 2**steps // factor, factor


def _block(network: Network, image: str, name: str) -> str:
    """Three dense blocks, and a residual around them."""
    result = image
    for number in (1, 2, 3):
        result = _dense(network, result, f"{name}.rdb{number}")
    return network.add(network.scaled(result, _RESIDUAL), image)


def _dense(network: Network, image: str, name: str) -> str:
    """Five convolutions, each of all that was before it. ESRGAN+ adds a 1x1 convolution of the input to the second
    one's result, and this sum to the fourth's (https://arxiv.org/abs/2001.08073)."""
    images = [image]
    for number in (1, 2, 3, 4):
        joined = images[0] if number == 1 else network.concat(images)
        made = network.leaky_relu(network.convolution(joined, f"{name}.conv{number}"), _SLOPE)
        if f"{name}.conv1x1.weight" in network.weights and number in (2, 4):
            made = network.add(made, network.convolution(image, f"{name}.conv1x1") if number == 2 else images[2])
        images.append(made)
    last = network.convolution(network.concat(images), f"{name}.conv5", scale=_RESIDUAL)
    return network.add(last, image)


def _count(weights: Mapping[str, Weight], pattern: str, first: int = 0) -> int:
    numbers = {int(found[1]) for name in weights if (found := re.match(pattern, name))}
    if numbers != set(range(first, first + len(numbers))) or len(numbers) > 1000:
        raise BadModelError("blocks of the upscaler are missing", hint="It is damaged, or of another architecture.")
    return len(numbers)


def _renamed(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """The weights by Real-ESRGAN's names."""
    if any(name.startswith("model.1.sub.") for name in weights):
        return _from_old(weights)
    for old, new in _NEW:
        weights = {re.sub(rf"^{old}", new, name): weight for name, weight in weights.items()}
    return dict(weights)


def _from_old(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """ESRGAN's first release counts the layers of one sequence: the first convolution, the blocks, upsampling with its
    convolution and activation three by three, a convolution, its activation, the last one."""
    layers = sorted({int(found[1]) for name in weights if (found := re.match(r"model\.(\d+)\.(?!sub)", name))})
    blocks = {int(found[1]) for name in weights if (found := re.match(r"model\.1\.sub\.(\d+)\.", name))}
    named = {f"model.1.sub.{max(blocks)}.": "conv_body."}
    named |= {f"model.{layer}.": f"conv_up{place}." for place, layer in enumerate(layers[1:-2], 1)}
    ends = [f"model.{layer}." for layer in (*layers[:1], *layers[-2:])]
    named |= dict(zip(ends, ("conv_first.", "conv_hr.", "conv_last."), strict=False))
    result = {}
    for name, weight in weights.items():
        inner = re.fullmatch(r"model\.1\.sub\.(\d+)\.RDB(\d)\.conv(\d|1x1)\.(?:0\.)?(weight|bias)", name)
        stem = next((stem for stem in named if name.startswith(stem)), None)
        if inner:
            result[f"body.{inner[1]}.rdb{inner[2]}.conv{inner[3]}.{inner[4]}"] = weight
        else:
            result[f"{named[stem]}{name.removeprefix(stem)}" if stem else name] = weight
    return result
