"""How far a pipeline may be from what it was made from: every limit, and why it is what it is.

Imports nothing heavy: the command line shows :data:`REASONS` in its help.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """Largest and mean absolute error allowed, both relative to the standard deviation of the reference's output."""

    largest: float
    mean: float

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
    ("float32", "unet"): Tolerance(1e-4, 1e-5),
    ("float32", "vae_encoder"): Tolerance(1e-4, 1e-5),
    ("float32", "vae_decoder"): Tolerance(1e-4, 1e-5),
    ("float32", "text_encoder"): Tolerance(1e-4, 1e-5),
    ("float32", "text_encoder_2"): Tolerance(1e-4, 1e-5),
    # torch with every weight and activation in fp16 against torch in fp32, random weights of unit gain: largest 1.2e-2,
    # mean 2.0e-3 on UNets, 1.2e-2 and 1.5e-3 on VAEs, 1.4e-2 and 1.3e-3 on text encoders (CLIP-L, OpenCLIP-H at full
    # size). Twice that is allowed: nothing that is only rounded in fp16 needs more, a forgotten scale, mask or bias
    # costs tens of times as much.
    ("float16", "unet"): Tolerance(2.5e-2, 4e-3),
    ("float16", "vae_encoder"): Tolerance(2.5e-2, 3e-3),
    ("float16", "vae_decoder"): Tolerance(2.5e-2, 3e-3),
    ("float16", "text_encoder"): Tolerance(3e-2, 3e-3),
    ("float16", "text_encoder_2"): Tolerance(3e-2, 3e-3),
    # bf16 has 8 bits where fp16 has 11, and MIGraphX rounds every result to it. The demo model so emulated: largest
    # 1.6e-1, mean 3.4e-2 on its UNet (at the last timestep), 1.7e-1 and 1.4e-2 on its VAE, 1.7e-1 and 6.6e-3 on its
    # text encoder; MIGraphX 2.14 itself, on its target ref: 2.4e-1 and 4.7e-2 on that UNet, 1.8e-1 and 1.8e-2 on that
    # text encoder.
    ("bfloat16", "unet"): Tolerance(3e-1, 6e-2),
    ("bfloat16", "vae_encoder"): Tolerance(3e-1, 3e-2),
    ("bfloat16", "vae_decoder"): Tolerance(3e-1, 3e-2),
    ("bfloat16", "text_encoder"): Tolerance(3e-1, 3e-2),
    ("bfloat16", "text_encoder_2"): Tolerance(3e-1, 3e-2),
}
"""By the optimized model's precision and its component."""

GPU_ALLOWANCE = 3.0
"""How much more than :data:`TOLERANCES` allow, which are the CPU's, a component may err on a GPU, whose
kernels also round partial sums. Measured on an H100 with ONNX Runtime 1.31.1, VAE decoders of 128 to 512 pixels against
the CPU: 2.3e-2 at most and 1.3e-3 in the mean in TF32, 6.1e-2 and 3.4e-3 in fp16; one that was wrong, 2.5 and 0.36."""

PSNR = {
    # What the same noise must give in fp32: no pixel is visibly different.
    "float32": 40.0,
    # Rounding errors of 11 bits grow over the steps. Right pipelines measured 58 to 62 dB over 8 steps, one whose
    # decoder was wrong 32 dB.
    "float16": 35.0,
    # Right pipelines measured 28 to 53 dB over 8 steps: edges move.
    "bfloat16": 20.0,
}
"""Lowest peak signal-to-noise ratio in dB of an image against the reference's, by the dtype of the weights."""

SSIM = {"float32": 0.995, "float16": 0.95, "bfloat16": 0.9}
"""Lowest structural similarity of an image; its reason is in :data:`REASONS`."""

PIXEL: dict[str, int | None] = {"float32": 32, "float16": None, "bfloat16": None}
"""Largest difference of an 8-bit value; its reason is in :data:`REASONS`."""


@dataclass(frozen=True)
class Reason:
    """A limit in words, for the help and the reports."""

    measure: str
    float32: str
    float16: str
    bfloat16: str
    why: str


def _range(dtype: str, field: str) -> str:
    values = sorted({getattr(limit, field) for (kind, _), limit in TOLERANCES.items() if kind == dtype})
    return " to ".join(f"{value:.1e}" for value in dict.fromkeys((values[0], values[-1])))


REASONS = (
    Reason(
        "largest error / spread",
        _range("float32", "largest"),
        _range("float16", "largest"),
        _range("bfloat16", "largest"),
        "finds a wrong corner. fp32: ten times what other orders of the same sums cost; fp16: twice what torch in fp16 "
        "costs; bf16: twice what rounding every result to 8 bits costs; on a GPU "
        f"{GPU_ALLOWANCE:g} times as much, since its kernels round partial sums too.",
    ),
    Reason(
        "mean error / spread",
        _range("float32", "mean"),
        _range("float16", "mean"),
        _range("bfloat16", "mean"),
        "finds a small error everywhere; same reasons. A forgotten scale, mask or bias costs tens of times as much.",
    ),
    Reason(
        "1 - cosine",
        f"{1 - TOLERANCES['float32', 'unet'].cosine:.1e}",
        " to ".join(f"{1 - TOLERANCES['float16', name].cosine:.1e}" for name in ("vae_decoder", "unet")),
        " to ".join(f"{1 - TOLERANCES['bfloat16', name].cosine:.1e}" for name in ("vae_decoder", "unet")),
        "finds a turned output whatever its spread: r^2 / 2 for an error of r, three times the allowed mean.",
    ),
    Reason(
        "PSNR, dB",
        f"{PSNR['float32']:g}",
        f"{PSNR['float16']:g}",
        f"{PSNR['bfloat16']:g}",
        "40 dB is below what eyes see. Rounding grows over the steps: right fp16 pipelines have 58 to 62 dB after 8 "
        "steps, one with a wrong decoder had 32. bf16 moves edges: right pipelines have 28 to 53; whether they draw "
        "what was asked for, the semantic score tells.",
    ),
    Reason(
        "SSIM",
        f"{SSIM['float32']:g}",
        f"{SSIM['float16']:g}",
        f"{SSIM['bfloat16']:g}",
        "finds lost structure where PSNR sees little. Pictures blurred by half a pixel have 0.97 to 0.99, by a pixel "
        "0.79 to 0.94, moved by a pixel 0.64 to 0.89. Right fp16 pipelines have 0.9999, bf16 ones 0.963.",
    ),
    Reason(
        "largest pixel difference",
        str(PIXEL["float32"]),
        "shown only",
        "shown only",
        "fp32: one pixel may not stand out where all others agree. In fp16 an edge that moves by a tenth of a pixel "
        "changes single values by more than any useful limit.",
    ),
)
"""Every limit of ``sdort verify``, in the order in which they are shown."""
