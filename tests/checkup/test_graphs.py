"""The models that are measured, and what they should take: counts against published numbers and measured times.

scripts/checkup_graphs.py writes the graphs, which takes a minute of tracing.
"""

from __future__ import annotations

import math

import kernel_counts
import numpy as np
import pytest

from sdort.checkup.graphs import COMPONENTS, DEMO, MODELS, TRUE_SIZE, UNET, Load, Noise, loads, template_of
from sdort.checkup.prediction import FITS, counted, expected_ms, predicted, roofline_ms, shares_of
from sdort.checkup.rates import DEVICES, H200, Device, published_rates
from sdort.checkup.work import Work, kind_of, totals
from sdort.families.component_names import DECODER

STEP, DECODE = Load(TRUE_SIZE, UNET, 2, 512, 512), Load(TRUE_SIZE, DECODER, 1, 512, 512)


def test_the_graphs_are_of_the_released_sizes() -> None:
    """The published numbers of parameters: 859,520,964 of the UNet (diffusers' model card), 49,490,199 of the decoder
    with its first convolution; graphs say nothing of the machine that traced them."""
    numbers = {}
    for component in COMPONENTS:
        template = template_of(TRUE_SIZE, component)
        shapes = [template.parameters[name] for name in template.used]
        numbers[component] = sum(math.prod(shape) for shape in shapes)
    assert numbers == {UNET: 859_520_964, DECODER: 49_490_199}
    for model in MODELS:
        for component in COMPONENTS:
            proto = template_of(model, component).proto
            assert not any(word in proto.SerializeToString() for word in (b"/home/", b"/root", b"/work", b"/tmp"))


def test_noise_is_finite_in_fp16_and_of_its_shape() -> None:
    values = Noise("a", (3, 5, 7, 7)).load()
    assert values.shape == (3, 5, 7, 7)
    assert values.dtype == np.dtype(np.float32)
    assert 0 < np.abs(values).max() <= 5e-3
    assert Noise("a", (64,)).load().mean() == pytest.approx(1, abs=1e-2)  # the factors of norms


def test_what_is_predicted_is_near_what_was_measured() -> None:
    """5.29 and 4.80 ms on the H200 (docs/measurements.md), in a graph of the device."""
    for load, measured in ((STEP, 5.285), (DECODE, 4.799)):
        work = totals(counted(load, "cuda", half=True, own=True), H200)
        assert expected_ms(work, H200) == pytest.approx(measured, rel=0.15)
        assert 0.2 < roofline_ms(work) / measured < 1


def test_a_card_without_rates_is_compared_with_its_own() -> None:
    slow = Device("a card", "cuda", H200.bandwidth / 10, H200.peak / 10)
    found = counted(Load(DEMO, UNET, 2, 64, 64), "cuda", half=True, own=True)
    assert roofline_ms(totals(found, slow)) == pytest.approx(10 * roofline_ms(totals(found, H200)))


def test_a_convolutions_work_is_that_of_its_formula() -> None:
    work = Work("convolutions", 2 * 64 * 64 * 320 * 4 * 9, 1e6)
    device = Device("", "", 1e9, 1e12)
    assert work.roofline(device) == pytest.approx(1000)  # its bytes take a millisecond, its sums 94 microseconds
    assert Work("sums", 1e15, 1e6).roofline(device) == pytest.approx(1000)  # no matrix instruction does them
    assert kind_of("NhwcConv", [(1, 8, 8, 4), (8, 1, 1, 4)]) == "products"
    assert kind_of("Conv", [(1, 4, 8, 8), (8, 4, 3, 3)]) == "convolutions"
    assert sum(predicted({"sums": (100.0, 2)}, between=0).values()) == pytest.approx(
        100 * FITS["sums"].factor + 2 * FITS["sums"].launch
    )


def test_the_rates_are_those_of_the_kernel_counts() -> None:
    known = {gpu.name: (gpu.bandwidth * 1e9, gpu.peak * 1e12, gpu.architecture) for gpu in kernel_counts.GPUS}
    amd = {each.name: (each.bandwidth, each.peak, each.architecture) for each in DEVICES if each.provider == "rocm"}
    assert amd.keys() == known.keys()
    for name, rates in amd.items():
        assert rates[:2] == pytest.approx(known[name][:2], rel=1e-6)
        assert rates[2] == known[name][2]
        assert 0 < shares_of(rates[2])["attention"] <= 1
    assert shares_of("") == shares_of("gfx9999") == {}


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", None),  # has another rate
        ("Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("Radeon RX 7900 XT", None),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI300A", None),
        ("an unknown card", None),
    ],
)
def test_rates_are_of_the_very_card(card: str, name: str | None) -> None:
    found = published_rates(card)
    assert (found and found.name) == name


def test_a_processor_gets_less_unless_all_is_asked_for() -> None:
    assert loads(True, False) == loads(False, True)
    small = [load for load in loads(False, False) if load.model == TRUE_SIZE]
    assert [(load.samples, load.width) for load in small] == [(1, 256), (1, 256)]
