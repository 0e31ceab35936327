"""Options of an optimization, each declared once; ``scripts/option_keywords.py`` writes the keyword arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from sdort.options.declared_options import option, option_of
from sdort.options.integer_weights import INTEGERS
from sdort.pipelines.signing_options import SigningOptions
from sdort.providers import AUTO, PROVIDER_NAMES
from sdort.providers.runtime_options import ExecutionOptions

PLAIN, MEASURED = "plain", "auto"


@dataclass(frozen=True, kw_only=True)
class PlannedOptions:
    """Options that decide what is written, and so those of its plan."""

    provider: str = option(
        AUTO,
        section="Target",
        choices=(AUTO, *PROVIDER_NAMES),
        help="Execution provider that the result is for. auto: the one that works on this machine, as sdort run takes "
        "it.",
        doc="The execution provider to optimize for: ``rocm``, ``migraphx``, ``cuda`` or ``cpu``; ``auto`` is the one "
        "that runs here, as for :func:`sdort.run`.",
    )
    size: str | None = option(
        None,
        section="Target",
        form="size",
        metavar="WxH",
        unset="any; on dml the model's own",
        help="Fix all sizes for one image of this width and height, such as 768x512. The UNet then takes two latents: "
        "with the prompt and without.",
        doc="The one size of an image to optimize for, as ``WxH``; by default any, and on ``dml``, which plans its "
        "graphs for their sizes, the model's own.",
    )
    fp16: bool | Literal["plain", "auto"] = option(
        False,
        section="Target",
        choices=(PLAIN, MEASURED),
        metavar="[auto]",
        help="Convert to 16-bit floats. With auto, sdort runs the model first and leaves in fp32 what fp16 cannot "
        "hold.",
        doc='Convert to 16-bit floats; with ``"auto"`` run the model first, and leave in fp32 what fp16 cannot hold. '
        '``"plain"`` is the same as True.',
    )
    fp16_plan: Path | None = option(
        None,
        section="Target",
        form="existing file",
        metavar="FILE",
        needs="fp16",
        help="With --fp16: leave in fp32 what this file lists. --fp16 auto writes such a file: OUT/fp16-plan.json.",
        doc='With ``fp16=True``: leave in fp32 what this file says; ``"auto"`` wrote it as ``fp16-plan.json``.',
    )
    bf16: bool = option(
        False,
        section="Target",
        help="Prepare the model for bf16 (migraphx only). Other providers refuse and say why.",
        doc="Make an fp32 model that migraphx computes in bf16.",
    )
    io_fp16: bool = option(
        False,
        section="Target",
        needs="fp16",
        help="With --fp16: convert inputs and outputs too.",
        doc="With ``fp16``: inputs and outputs too.",
    )
    weights: Literal["int8", "int4"] | None = option(
        None,
        section="Target",
        choices=tuple(INTEGERS),
        unset="as the activations are",
        help="Store the weights of linear layers in integers of 8 or 4 bits. Activations stay 16- or 32-bit floats.",
        doc="Store the weights of linear layers in integers: ``int8`` or ``int4``.",
    )
    group: int | None = option(
        None,
        section="Target",
        within=(16, 256, "kernels take no other groups"),
        needs="weights",
        unset="32",
        help="With --weights: how many neighbours share a scale: a power of two. Larger groups take less "
        "space and are coarser.",
        doc="With ``weights``: how many neighbours of a row share a scale: a power of two.",
    )
    components: Collection[str] = option(
        (),
        section="Selection",
        flags=("--component",),
        metavar="C",
        help="Optimize only this component (repeatable).",
        doc="The components to optimize, by name; all of the pipeline if empty.",
    )
    any_graph: bool = option(
        False,
        section="Selection",
        help="Accept any model, not only diffusion components: one .onnx file, or all .onnx files of a folder. No "
        "config.json is compared with a model outside the components' folders. A missed fusion is still an error, "
        "unless you give --allow-misses.",
        doc="Take any model, diffusion component or not.",
    )
    disable: Collection[str] = option(
        (),
        section="Selection",
        metavar="FUSION",
        completes="fusions",
        help="Leave out this fusion (repeatable). sdort fusions lists them.",
        doc="Fusions to leave out, by name.",
    )
    overwrite: bool = option(
        False,
        section="Results",
        after="report",
        help="Replace OUT, if sdort wrote everything in it, and the file of --report.",
        doc="Replace ``out`` and ``report`` if they exist; ``out`` only if all in it is what sdort wrote.",
    )


@dataclass(frozen=True, kw_only=True)
class OptimizationOptions(SigningOptions, PlannedOptions):
    """All options of an optimization."""

    sdort_ops: bool | None = option(
        None,
        section="Target",
        negated=True,
        unset="where the library is built",
        help="Fuse into sdort's own operators too. Their kernels are in the library that sdort ops build makes.",
        doc="Also fuse into sdort's own operators; by default where the library of custom operators is built on this "
        "machine and has kernels for the provider's GPUs.",
    )
    check: bool = option_of(ExecutionOptions, "check", section="Selection", after="")
    expect: Mapping[str, int] = option(
        factory=dict,
        section="Expected result",
        form="expectations",
        metavar="NAME=N",
        help="Fail unless the result has N operators NAME, or COMPONENT:NAME (repeatable).",
        doc="Operator, or ``component:operator``, and how many of it the result must have.",
    )
    allow_misses: bool = option(
        False,
        section="Expected result",
        help="Write the result although a fusion is missed. A wrong --expect still fails.",
        doc="Write the result though something did not fuse; a wrong ``expect`` is an error all the same.",
    )
    explain: bool = option(
        False,
        section="Results",
        form="explained",
        metavar="[FUSION]",
        completes="fusions",
        help="Say which fusions were missed, and why. With the name of a fusion, or several names with commas: list "
        "every place that it left. With all: do this for every fusion.",
        doc="Report for every fusion each place that it left, and why.",
    )
    report: Path | None = option(
        None,
        section="Results",
        form="file",
        help="Write the full report (JSON) to this file.",
        doc="A file for the result as JSON.",
    )


# Written by scripts/option_keywords.py from what is declared above.


class PlanKeywords(TypedDict, total=False):
    """Options of :func:`sdort.plan_optimize`, all optional."""

    provider: str
    """The execution provider to optimize for: ``rocm``, ``migraphx``, ``cuda`` or ``cpu``; ``auto`` is the one that
    runs here, as for :func:`sdort.run`."""
    size: str | None
    """The one size of an image to optimize for, as ``WxH``; by default any, and on ``dml``, which plans its graphs for
    their sizes, the model's own."""
    fp16: bool | Literal["plain", "auto"]
    """Convert to 16-bit floats; with ``"auto"`` run the model first, and leave in fp32 what fp16 cannot hold.
    ``"plain"`` is the same as True."""
    fp16_plan: str | Path | None
    """With ``fp16=True``: leave in fp32 what this file says; ``"auto"`` wrote it as ``fp16-plan.json``."""
    bf16: bool
    """Make an fp32 model that migraphx computes in bf16."""
    io_fp16: bool
    """With ``fp16``: inputs and outputs too."""
    weights: Literal["int8", "int4"] | None
    """Store the weights of linear layers in integers: ``int8`` or ``int4``."""
    group: int | None
    """With ``weights``: how many neighbours of a row share a scale: a power of two."""
    components: Collection[str]
    """The components to optimize, by name; all of the pipeline if empty."""
    any_graph: bool
    """Take any model, diffusion component or not."""
    disable: Collection[str]
    """Fusions to leave out, by name."""
    overwrite: bool
    """Replace ``out`` and ``report`` if they exist; ``out`` only if all in it is what sdort wrote."""


class OptimizeKeywords(PlanKeywords, total=False):
    """Options of :func:`sdort.optimize`, all optional."""

    sign: str | Path | None
    """A private key in PEM, to sign ``out`` with: ``model.sig`` in it."""
    certificate: str | Path | None
    """With ``sign``: the key's certificate in PEM, and after it those that lead to a root."""
    sdort_ops: bool | None
    """Also fuse into sdort's own operators; by default where the library of custom operators is built on this machine
    and has kernels for the provider's GPUs."""
    check: bool
    """Compare the files with what sdort wrote, where its ``sdort.json`` lists them."""
    expect: Mapping[str, int] | None
    """Operator, or ``component:operator``, and how many of it the result must have."""
    allow_misses: bool
    """Write the result though something did not fuse; a wrong ``expect`` is an error all the same."""
    explain: bool
    """Report for every fusion each place that it left, and why."""
    report: str | Path | None
    """A file for the result as JSON."""
