"""Checks of outputs: finite, not constant, repeatable, and equal to a reference within a stated tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sdort.generation.images import Generated
from sdort.model.signature import Array
from sdort.providers.provider import Provider
from sdort.verification.image_comparison import compare_image, summarize_images
from sdort.verification.judgement import Judgement, judge_output
from sdort.verification.limits import GPU_ALLOWANCE, LAST_ALLOWANCE, LAST_TIMESTEPS, TOLERANCES, Tolerance

NO_REFERENCE = "no reference: only finite, not constant, repeatable"


@dataclass(frozen=True)
class Verdict:
    """``problem`` is None when the output may be trusted; ``checked`` says in words what was compared."""

    problem: str | None
    checked: str
    error: float | None = None
    mean_error: float | None = None
    """Largest and mean error of a component's outputs, relative to the standard deviation of the reference's."""
    psnr: float | None = None
    lowest_psnr: float | None = None
    """In dB, the median and the lowest of the images; infinite when they are equal."""
    few: bool = False
    """There is a problem, but so few images that chance may have made it."""


@dataclass(frozen=True)
class Precision:
    """The key of tolerances: the ``dtype`` that values are rounded to, and whether that happens on a GPU."""

    dtype: str
    """The dtype that values are rounded to."""
    on_gpu: bool = False
    """Whether a GPU's rounding is meant."""

    def coarser(self, other: Precision) -> Precision:
        """The precision whose tolerances hold for two outputs that are compared."""
        # "bfloat16" < "float16" < "float32"
        return Precision(min(self.dtype, other.dtype), self.on_gpu or other.on_gpu)

    def tolerance(self, component: str, timestep: float | None = None) -> Tolerance:
        """The tolerance of a component's outputs; of a UNet's also by the timestep of its inputs, of 1000."""
        factor = GPU_ALLOWANCE if self.on_gpu else 1.0
        if self.dtype == "float16" and timestep is not None and timestep < LAST_TIMESTEPS:
            factor *= LAST_ALLOWANCE
        return TOLERANCES[self.dtype, component].times(factor)


def precision(dtype: str, provider: Provider) -> Precision:
    """The precision of a model with weights of ``dtype`` on a provider.

    On NVIDIA GPUs, cuDNN and cuBLAS round fp32 operands to TF32, whose significand has the 11 bits of fp16's: so does a
    provider that has to be asked for exact products.
    """
    return Precision("float16" if provider.exact else dtype, provider.on_gpu)


def check_outputs(
    outputs: Mapping[str, Array],
    reference: Mapping[str, Array] | None,
    against: str,
    component: str,
    precision: Precision,
) -> Verdict:
    """Check a component's outputs; the tolerances are those of :mod:`sdort.verification.limits`.

    Args:
        outputs: by name, in the order of the model.
        reference: the outputs of the reference, None if there is none. Outputs are compared by name, or by their
            order where the two models share no name.
        against: what the reference is, in words.
        component: the component's name.
        precision: which tolerance holds.
    """
    limit = precision.tolerance(component)
    wanted = {name: expected for name, _, expected in pair_outputs(outputs, reference or {})}
    judged = {name: judge_output(value, wanted.get(name), limit, against) for name, value in outputs.items()}
    problem = next((_sentence(name, each, against) for name, each in judged.items() if each.problem), None)
    errors = [each.errors for each in judged.values() if each.errors]
    if not errors:
        return Verdict(problem, NO_REFERENCE if reference is None else against)
    worst, mean = (max(getattr(each, name) for each in errors) for name in ("largest_share", "mean_share"))
    return Verdict(problem, against, worst, mean)


def _sentence(name: str, judged: Judgement, against: str) -> str:
    return f"differs from {against} by its {judged.problem}" if judged.errors else f"{name} {judged.problem}"


def pair_outputs(outputs: Mapping[str, Array], reference: Mapping[str, Array]) -> Iterator[tuple[str, Array, Array]]:
    """By name, or by order where the two share no name. Torch gives outputs that an export may leave out."""
    common = [name for name in outputs if name in reference]
    if common:
        yield from ((name, outputs[name], reference[name]) for name in common)
    else:
        yield from ((name, value, expected) for (name, value), expected in zip(outputs.items(), reference.values()))  # noqa: B905


def check_images(
    images: Sequence[Generated], reference: Sequence[Generated] | None, against: str, precision: Precision
) -> Verdict:
    """Check a pipeline's images together, as ``sdort verify`` does; arguments as for :func:`check_outputs`."""
    for image in images:
        if image.problem:
            return Verdict(f"the image of seed {image.seed} is bad: {image.problem}", "finite, not constant")
    if reference is None:
        return Verdict(None, NO_REFERENCE)
    comparisons = []
    for image, expected in zip(images, reference, strict=True):
        if expected.problem:
            return Verdict(f"{against} itself gives a bad image: {expected.problem}", against)
        if image.pixels.shape != expected.pixels.shape:
            return Verdict(f"the image is {image.pixels.shape}, {against} {expected.pixels.shape}", against)
        comparisons.append(compare_image("", image, expected, precision.dtype))
    summary = summarize_images(comparisons)
    problem = f"is not like {against}: {summary.problem}" if summary.problem else None
    return Verdict(problem, against, psnr=summary.psnr, lowest_psnr=summary.lowest, few=summary.few)
