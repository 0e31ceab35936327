"""SRVGGNetCompact: Real-ESRGAN's small networks (realesr-general, realesr-animevideo) and those trained like them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sdort.errors import BadModelError
from sdort.graph.weights import Weight
from sdort.upscaling.network import IMAGE, Network, shuffled

NAME = "Compact"


def recognise(weights: Mapping[str, Weight]) -> bool:
    first, slopes = weights.get("body.0.weight"), weights.get("body.1.weight")
    return (
        first is not None
        and slopes is not None
        and len(first.shape) == 4
        and len(slopes.shape) == 1
        and all(re.fullmatch(r"body\.\d+\.(weight|bias)", name) for name in weights)
    )


def build(weights: Mapping[str, Weight]) -> tuple[Network, str, int, int]:
    """The network, as :func:`sdort.upscaling.rrdb.build`: convolutions and PRelu in turn, shuffled to a larger image,
    to which the input is added, enlarged by nearest neighbours."""
    last = max(int(name.split(".")[1]) for name in weights)
    taken = weights["body.0.weight"].shape[1]
    network = Network(weights, taken)
    image = network.convolution(IMAGE, "body.0")
    for number in range(1, last, 2):
        image = network.prelu(image, f"body.{number}.weight")
        image = network.convolution(image, f"body.{number + 1}")
    found = shuffled(network.channels[image], taken)
    if found is None or found[1] != taken:
        raise BadModelError(
            f"the upscaler's last convolution has {network.channels[image]} filters, which make no larger image",
            hint="It is damaged, or of another architecture.",
        )
    image = network.add(network.pixel_shuffle(image, found[0]), network.nearest(IMAGE, found[0]))
    return network, image, found[0], 1
