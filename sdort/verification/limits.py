"""Limits of the difference of a pipeline from what it was made from, each with its reason.

Imports nothing heavy: the command line shows :data:`REASONS` in its help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sdort.families.component_names import CONTROLS, DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.families.known_families import DENOISERS, TEXT_ENCODERS


@dataclass(frozen=True)
class Tolerance:
    """Largest and mean absolute error allowed, both relative to the standard deviation of the reference's output."""

    __json__: ClassVar = ("largest", "mean", "cosine")

    largest: float = field(metadata={"json": "largest_share"})
    """Largest error over the standard deviation of the reference's output."""
    mean: float = field(metadata={"json": "mean_share"})
    """Mean error over the same."""

    @property
    def cosine(self) -> float:
        """The lowest cosine similarity allowed.

        An error whose root mean square is a share r of the values turns them by an angle of r, whose cosine is
        1 - r^2 / 2. A rounding error's root mean square is 1.3 to 2 times its mean; 3 times is allowed.
        """
        return 1 - (3 * self.mean) ** 2 / 2

    def times(self, factor: float) -> Tolerance:
        return Tolerance(factor * self.largest, factor * self.mean)


# Both columns are needed: the largest error finds a wrong corner, the mean a small error everywhere.
TOLERANCES: dict[tuple[str, str], Tolerance] = {
    # The same sums in another order: measured at most 6e-6 and 1e-6 on graphs of some hundred layers.
    **{("float32", name): Tolerance(1e-4, 1e-5) for name in (*DENOISERS, *CONTROLS)},
    ("float32", ENCODER): Tolerance(1e-4, 1e-5),
    ("float32", DECODER): Tolerance(1e-4, 1e-5),
    **{("float32", name): Tolerance(1e-4, 1e-5) for name in TEXT_ENCODERS},
    ("float32", IMAGE_ENCODER): Tolerance(1e-4, 1e-5),
    ("float32", SAFETY_CHECKER): Tolerance(1e-4, 1e-5),
    # torch with every weight and activation in fp16 against torch in fp32, random weights of unit gain: largest 1.2e-2,
    # mean 2.0e-3 on UNets, 1.2e-2 and 1.5e-3 on VAEs, 1.4e-2 and 1.3e-3 on text encoders (CLIP-L, OpenCLIP-H at full
    # size). Twice that is allowed: nothing that is only rounded in fp16 needs more, a forgotten scale, mask or bias
    # costs tens of times as much.
    **{("float16", name): Tolerance(2.5e-2, 4e-3) for name in (*DENOISERS, *CONTROLS)},
    ("float16", ENCODER): Tolerance(2.5e-2, 3e-3),
    ("float16", DECODER): Tolerance(2.5e-2, 3e-3),
    **{("float16", name): Tolerance(3e-2, 3e-3) for name in TEXT_ENCODERS},
    ("float16", IMAGE_ENCODER): Tolerance(3e-2, 3e-3),
    ("float16", SAFETY_CHECKER): Tolerance(3e-2, 3e-3),
    # bf16 has 8 bits where fp16 has 11, and MIGraphX rounds every result to it. The demo model so emulated: largest
    # 1.6e-1, mean 3.4e-2 on its UNet (at the last timestep), 1.7e-1 and 1.4e-2 on its VAE, 1.7e-1 and 6.6e-3 on its
    # text encoder; MIGraphX 2.14 itself, on its target ref: 2.4e-1 and 4.7e-2 on that UNet, 1.8e-1 and 1.8e-2 on that
    # text encoder.
    **{("bfloat16", name): Tolerance(3e-1, 6e-2) for name in (*DENOISERS, *CONTROLS)},
    ("bfloat16", ENCODER): Tolerance(3e-1, 3e-2),
    ("bfloat16", DECODER): Tolerance(3e-1, 3e-2),
    **{("bfloat16", name): Tolerance(3e-1, 3e-2) for name in TEXT_ENCODERS},
    ("bfloat16", IMAGE_ENCODER): Tolerance(3e-1, 3e-2),
    ("bfloat16", SAFETY_CHECKER): Tolerance(3e-1, 3e-2),
    # Weights of linear layers rounded to 8 or 4 bits, in groups of 32, activations in fp16: the demo model, and narrow
    # random ones, whose layers average less. In 8 bits at most 7.8e-2 and 1.1e-2, in 4 bits 9.9e-1 and 1.4e-1. Twice
    # that is allowed. The other components keep their weights.
    **{("int8", name): Tolerance(1.6e-1, 2e-2) for name in (*DENOISERS, *CONTROLS, *TEXT_ENCODERS)},
    **{("int4", name): Tolerance(2.0, 2.8e-1) for name in (*DENOISERS, *CONTROLS, *TEXT_ENCODERS)},
}
"""By the optimized model's precision and its component."""

COARSEST_FIRST = ("int4", "bfloat16", "int8", "float16", "float32")
"""Precisions; of two outputs that are compared the limits of the first one hold."""

LAST_TIMESTEPS, LAST_ALLOWANCE = 10, 2.5
"""Factor on fp16's tolerances of UNets below such a timestep of 1000, where hardly any noise is left to predict.

torch with the demo's UNet in fp16 against fp32, prompts that it knows, mean error: 6e-4 at timestep 200, 1.2e-3 at 51,
2.1e-3 at 11 and 3.4e-3 to 5.2e-3 at 1, the largest there 3.0e-2. Twice that is 2.5 times the tolerances of random
inputs. bf16's were measured at the last timestep."""

GPU_ALLOWANCE = 3.0
"""Factor on :data:`TOLERANCES`, which are the CPU's, for components on a GPU, whose kernels also round partial sums.
Measured on an H100 with ONNX Runtime 1.31.1, VAE decoders of 128 to 512 pixels against the
CPU: 2.3e-2 at most and 1.3e-3 in the mean in TF32, 6.1e-2 and 3.4e-3 in fp16; one that was wrong, 2.5 and 0.36."""

# Images are judged together. Where a prompt leaves open what to show, guidance over the steps makes another image of
# another rounding: of the demo model's images of bench's prompt, whose words it does not know, some are as far from
# their references as images of other seeds are, and which ones, chance decides (cuDNN's choice of algorithms, say).
# Measured on the CPU, 64 seeds of that prompt, guidance 7.5, against fp32: a GPU's fp16 emulated with and without
# fusions, TF32 emulated, fp16 for the CPU, weights off by 2^-11.
#
#     right pipelines           median 58 to 63 dB, lowest 14 to 31 dB, below 40 dB 8.1 % (20 steps), 11.5 % (8 steps),
#                               below 20 dB 0.6 % (20 steps), 0 (8 steps)
#     the same, 64 images of prompts that it knows: median 70 to 73 dB, lowest 57 dB
#     guidance off by 10 %      median 26 dB, below 40 dB 91 %, below 20 dB 31 %
#     guidance off by 5 %       median 32 dB, below 40 dB 69 %
#     one attention's scale 1.4 times what it should be: median 18 to 31 dB, below 40 dB 72 to 88 %
#
# So the lowest of eight images is below 35 dB in four of ten right pipelines, and below 40 dB in half of them; their
# median is so in 2e-4 of them (five of eight), in 8e-4 at 8 steps, but in nearly all with guidance off by 10 %, in 81 %
# with 5 %, in 20 % with 2 %. What changes all images alike and little is the components' to find, whose errors do not
# grow over steps: a decoder's last weights off by 3 % (median 41 dB) are 6 times its fp16 tolerance, a bias left out in
# a UNet (49 dB) 12 times, its last weights off by 2 % (40 dB) 4 times. Neither finds a UNet whose timestep is off by
# one (43 dB), nor a decoder that is fed latents scaled by 1.05 (48 dB).
PSNR = {
    # No pixel is visibly different. Weights off by 2^-22 change images of that prompt little: lowest 70 dB.
    "float32": 40.0,
    "float16": 40.0,
    # Edges move, and many become other images. Emulated on 32 seeds of that prompt: median 34 dB, lowest 14, below
    # 18 dB 6 % (8 steps), 9 % (20 steps), so that the median is in 3e-4.
    "bfloat16": 18.0,
    # The demo model, 8 images of prompts that it knows: 48.7 to 64.9 dB in 8 bits, 36.9 to 46.0 in 4.
    "int8": 40.0,
    "int4": 28.0,
}
"""Lowest median of the images' peak signal-to-noise ratios in dB, by the dtype of the weights."""

OTHER = {"float32": 40.0, "float16": 20.0, "bfloat16": 10.0, "int8": 20.0, "int4": 14.0}
"""PSNR in dB below which an image shows something else than its reference: the demo's images of different seeds are 1
to 23 dB apart, 9 in the median. In fp32 no image of a right pipeline is below the median's limit."""

OTHERS = {"float32": 0.0, "float16": 0.25, "bfloat16": 0.25, "int8": 0.25, "int4": 0.25}
"""The part of the images, rounded up, that may be so; more of eight are in 1e-5 of right pipelines. In fp32 chance
makes none, so that one is enough to tell."""

SSIM = {"float32": 0.995, "float16": 0.95, "bfloat16": 0.8, "int8": 0.95, "int4": 0.9}
"""Lowest median of the images' structural similarities; its reason is in :data:`REASONS`."""

PIXEL: dict[str, int | None] = {"float32": 32, "float16": None, "bfloat16": None, "int8": None, "int4": None}
"""Largest median of the images' largest differences of an 8-bit value; its reason is in :data:`REASONS`."""

ENOUGH = 8
"""Images whose medians tell a wrong pipeline from a right one in fp16 and bf16; in fp32 one image does. Fewer that are
out of their limits may be so by chance: one of the demo's is in 8 to 11 % of right pipelines, the medians of four in
0.2 to 0.6 %."""


@dataclass(frozen=True)
class Reason:
    """A limit in words, for the help and the reports."""

    measure: str
    """The measure."""
    limits: Mapping[str, str]
    """Its limit in each precision."""
    why: str
    """Why the limit is there."""


PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "int4": "int4"}
"""The precisions in the order in which their limits are shown, and their short names."""


def _ranges(measure: Callable[[Tolerance], float]) -> dict[str, str]:
    """The lowest and the highest limit of all components, in each precision."""
    ranges = {}
    for dtype in PRECISIONS:
        values = sorted({measure(limit) for (kind, _), limit in TOLERANCES.items() if kind == dtype})
        ranges[dtype] = " to ".join(f"{value:.1e}" for value in dict.fromkeys((values[0], values[-1])))
    return ranges


def _texts(limits: Mapping[str, float | None]) -> dict[str, str]:
    return {dtype: "shown only" if limits[dtype] is None else f"{limits[dtype]:g}" for dtype in PRECISIONS}


REASONS = (
    Reason(
        "largest error / std",
        _ranges(lambda limit: limit.largest),
        "finds a wrong corner. fp32: ten times what other orders of the same sums cost; fp16: twice what torch in fp16 "
        f"costs, at timesteps below {LAST_TIMESTEPS} {LAST_ALLOWANCE:g} times as much, as hardly any noise is left to "
        "predict; bf16, int8 and int4: twice what it costs the demo model; on a GPU "
        f"{GPU_ALLOWANCE:g} times as much, since its kernels round partial sums too.",
    ),
    Reason(
        "mean error / std",
        _ranges(lambda limit: limit.mean),
        "finds a small error everywhere; same reasons. A forgotten scale, mask or bias costs tens of times as much.",
    ),
    Reason(
        "1 - cosine",
        _ranges(lambda limit: 1 - limit.cosine),
        "finds a turned output whatever its standard deviation: r^2 / 2 for an error of r, three "
        "times the allowed mean.",
    ),
    Reason(
        "PSNR, dB, median",
        _texts(PSNR),
        "40 dB is below what eyes see. Of all images, since single ones of right pipelines become other images where "
        "a prompt leaves open what to show: of the demo model's of a prompt that it does not know, one in twelve is "
        "below 40 dB after 20 steps, the median is 58 to 63; guidance off by 5 % gives 32, by 10 % 26. In bf16 many "
        "become other images, one in eleven is below 18 dB, the median is 34: whether they show what was asked for, "
        "the semantic score tells.",
    ),
    Reason(
        "PSNR, dB, upper 3/4",
        {**_texts(OTHER), "float32": f"{OTHER['float32']:g} (of all)"},
        "finds a pipeline that is wrong for some images alone: images of different seeds are 1 to 23 dB apart. A "
        "quarter of the images, rounded up, may be below, where one in 160 of a right fp16 pipeline is; in fp32, where "
        "none is, none may.",
    ),
    Reason(
        "SSIM, median",
        _texts(SSIM),
        "finds lost structure where PSNR sees little. Images blurred by half a pixel have 0.97 to 0.99, by a pixel "
        "0.79 to 0.94, moved by a pixel 0.64 to 0.89. Right fp16 pipelines have 0.9997; bf16 ones 0.96 to 0.99, but "
        "one image in eleven less than 0.8.",
    ),
    Reason(
        "largest pixel, median",
        _texts(PIXEL),
        "fp32: one pixel may not stand out where all others agree. In fp16 an edge that moves by a tenth of a pixel "
        "changes single values by more than any useful limit.",
    ),
)
"""Every limit of ``sdort verify``, in the order in which they are shown."""
