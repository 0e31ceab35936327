"""Expected operator counts of a component, derived from its diffusers or transformers config alone.

The graph cannot say what should have fused: a fusion that silently misses everything leaves a graph that looks
complete. So the counts come from the architecture (:mod:`sdort.optimizer.expected`), a target's kernels say which
operators stand for them, and the optimized graph is held to that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_graphsurgeon as gs

from sdort.checkpoints.config_schemas import component_schema
from sdort.checkpoints.configs import read_component_config
from sdort.console import detail
from sdort.errors import BadModelError, UsageError, did_you_mean
from sdort.families import part_counts
from sdort.families.component_names import (
    CLIP_SKIP,
    CONTROLNET,
    DECODER,
    ENCODER,
    IMAGE_ENCODER,
    IMAGE_TOKENS,
    SAFETY_CHECKER,
    T2I_ADAPTER,
)
from sdort.families.family import Config
from sdort.families.known_families import TEXT_ENCODERS, find_denoiser
from sdort.families.text_models import text_counts
from sdort.graph.domains import MICROSOFT
from sdort.graph.model import Model
from sdort.lowering.component_report import ComponentReport
from sdort.passes.expand import STEP_NAME as EXPAND
from sdort.providers import load_target
from sdort.providers.target import Target


def architecture(config: Config, component: str) -> Counter[str]:
    """Count the architecture's parts; a key that is absent counts 0.

    Keys: ``attention_self``, ``attention_cross``, ``attention_causal`` (of the self attentions), ``group_norm``,
    ``group_norm_silu`` (of them, those followed by SiLU), ``conv``, ``layer_norm``, ``skip_layer_norm`` (of them,
    those whose input is a residual sum), ``rms_norm``, ``rotary``, ``geglu``, ``transformer``, ``gelu``,
    ``gated_gelu`` (of them, those by a tangent whose product with another projection follows), ``swiglu``,
    ``quick_gelu``, ``modulation`` (norms times a scale of each image; of one norm there may be two), ``gated_sum``
    (sums with a branch times a gate of each image).

    Args:
        config: the component's ``config.json``; both halves of a VAE share one.
        component: one of those that sdort exports.

    Raises:
        BadModelError: the config names a block or setting whose structure is not known, or lacks one.
    """
    builders: dict[str, Callable[[Config], Counter[str]]] = {
        **dict.fromkeys(TEXT_ENCODERS, text_counts),
        ENCODER: part_counts.vae_encoder,
        DECODER: part_counts.vae_decoder,
        CONTROLNET: part_counts.controlnet,
        T2I_ADAPTER: part_counts.t2i_adapter,
        IMAGE_ENCODER: part_counts.image_encoder,
        SAFETY_CHECKER: part_counts.safety_checker,
    }
    if denoiser := find_denoiser(component, config.get("_class_name")):
        builders[component] = denoiser.counts
    if component not in builders:
        raise BadModelError(f"no expected operators are known for a {component!r}", component=component)
    try:
        return builders[component](config)
    except KeyError as error:
        raise BadModelError(f"its config has no {error.args[0]!r}", component=component) from error
    except (IndexError, TypeError, ValueError) as error:
        raise BadModelError(f"its config contradicts itself: {error}", component=component) from error


@dataclass(frozen=True)
class Expectation:
    """``count`` nodes of ``operators``, counted together; more are allowed when ``at_least``.

    An operator that stands there twice counts twice.
    """

    name: str
    operators: tuple[str, ...]
    count: int
    at_least: bool = False
    attributes: tuple[tuple[str, int], ...] = ()
    """Only nodes with these attribute values count."""

    def count_in(self, graph: gs.Graph) -> int:
        """The number of nodes of ``graph`` that count."""
        return sum(
            self.operators.count(node.op)
            for node in graph.nodes
            if all(node.attrs.get(key, 0) == value for key, value in self.attributes)
        )

    def miss(self, graph: gs.Graph) -> str | None:
        """The difference between ``graph`` and the expectation, in words; None if there is none."""
        return self.difference(self.count_in(graph))

    def difference(self, count: int) -> str | None:
        """The difference between ``count`` such nodes and the expectation, in words; None if there is none."""
        if count == self.count or (self.at_least and count > self.count):
            return None
        kind = "+".join(dict.fromkeys(self.operators)) + "".join(
            f" with {key}={value}" for key, value in self.attributes
        )
        bound = "at least " if self.at_least else ""
        return f"{self.name}: expected {bound}{self.count} {kind}, found {count}"


@dataclass(frozen=True)
class ExpectedForm:
    """The operators that stand for the sum of some architecture ``keys`` on a target."""

    keys: tuple[str, ...]
    operators: tuple[str, ...]
    at_least: bool = False
    attributes: tuple[tuple[str, int], ...] = ()


_GATED = ("GatedModulatedLayerNormalization", "GatedTwiceModulatedLayerNormalization")
_MODULATED = ("ModulatedLayerNormalization", "TwiceModulatedLayerNormalization", *_GATED)
_RMS = ("ModulatedRMSNormalization", "GatedModulatedRMSNormalization")
NORMS = {
    "layer_norm": ExpectedForm(
        ("layer_norm",), ("LayerNormalization", "SkipLayerNormalization", "BiasLayerNormalization", *_MODULATED)
    ),
    "skip_layer_norm": ExpectedForm(("skip_layer_norm",), ("SkipLayerNormalization",), at_least=True),
    "rms_norm": ExpectedForm(
        ("rms_norm",),
        # The last one has a norm of the branch, too.
        ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormRotaryEmbedding", *_RMS, _RMS[1]),
    ),
    "rotary": ExpectedForm(("rotary",), ("RotaryEmbedding", "RMSNormRotaryEmbedding"), at_least=True),
}
RAISED = {
    "attention": ExpectedForm(("attention_self", "attention_cross"), ("Attention",)),
    "group_norm": ExpectedForm(("group_norm",), ("GroupNormalization",)),
    "conv": ExpectedForm(("conv",), ("Conv",)),
    "layer_norm": ExpectedForm(("layer_norm",), ("LayerNormalization",)),
    "rms_norm": ExpectedForm(("rms_norm",), ("RMSNormalization",)),
    "rotary": ExpectedForm(("rotary",), ("RotaryEmbedding",), at_least=True),
    "gelu": ExpectedForm(("geglu", "gelu"), ("Gelu",)),
}
"""The architecture's counts in the graph before a target's fusions."""

OWN = {
    "modulation": ExpectedForm(
        ("modulation",), (*_MODULATED, *(name for name in _MODULATED if "Twice" in name), *_RMS)
    ),
    "gated_sum": ExpectedForm(("gated_sum",), ("GatedSum", *_GATED, _RMS[1])),
    "swiglu": ExpectedForm(("swiglu",), ("SplitSilu",)),
    "gated_gelu": ExpectedForm(("gated_gelu",), ("SplitFastGelu",)),
}
"""The architecture's counts of what is one of sdort's own operators, where those are used."""
OWN_GRAPH = "own"
"""The name that stands for a graph with sdort's own operators."""
RAISED_GRAPH = "raised"
"""The name that stands for the graph before a target's fusions."""
STAGES = {RAISED_GRAPH: RAISED, OWN_GRAPH: OWN}


def fused_forms(target: Target) -> dict[str, ExpectedForm]:
    """The architecture's counts in the graph that is optimized for a target, which follow from its kernels."""
    kernels = {name.removeprefix(f"{MICROSOFT}.") for name in target.conditions}
    attention = "Attention" if "Attention" in kernels else "Softmax"  # in standard operators, where it is not fused
    gelu = ("Gelu" if "Gelu" in kernels else "Erf", "BiasGelu", "FastGelu", "SplitFastGelu")
    forms = {
        "attention": ExpectedForm(("attention_self", "attention_cross"), ("MultiHeadAttention", attention)),
        **NORMS,
    }
    forms["quick_gelu"] = ExpectedForm(("quick_gelu",), ("QuickGelu",))
    if "NhwcConv" in kernels:
        forms["conv"] = ExpectedForm(("conv",), ("NhwcConv",))
    else:  # an upsampler's may be four, one for each phase
        forms["conv"] = ExpectedForm(("conv",), ("Conv",), at_least=True)
    if "GroupNorm" in kernels:
        norms = ("GroupNorm", "SkipGroupNorm", "BiasGroupNorm")
        forms["group_norm"] = ExpectedForm(("group_norm",), norms)
        forms["group_norm_silu"] = ExpectedForm(("group_norm_silu",), norms, attributes=(("activation", 1),))
    else:  # group normalization of ONNX is a function that ONNX Runtime inlines; this is the kernel it has
        forms["group_norm"] = ExpectedForm(("group_norm",), ("InstanceNormalization",))
    if "BiasSplitGelu" in kernels:
        forms["geglu"] = ExpectedForm(("geglu",), ("BiasSplitGelu",))
        forms["gelu"] = ExpectedForm(("gelu",), gelu)
    else:
        forms["geglu"] = ExpectedForm(("geglu", "gelu"), gelu)
    return forms


def expected_operators(
    config: Config, component: str, target: str, clip_skips: int = 0, images: int = 0
) -> list[Expectation]:
    """The operators that ``component`` must hold, optimized for ``target`` or before that (:data:`RAISED_GRAPH`).

    Those of sdort's own domain are :data:`OWN_GRAPH`'s.

    Args:
        clip_skips: outputs of a text encoder for clip skip, each with a norm of its own.
        images: IP-Adapters of a UNet, each with an attention beside those to the text.

    Raises:
        BadModelError: the config names a block or setting whose structure is not known.
    """
    counts = architecture(config, component)
    counts["layer_norm"] += clip_skips
    counts["attention_cross"] *= 1 + images
    return [
        Expectation(name, form.operators, sum(counts[key] for key in form.keys), form.at_least, form.attributes)
        for name, form in (STAGES.get(target) or fused_forms(load_target(target))).items()
    ]


def config_misses(
    model: Model, config: Path, provider: str, report: ComponentReport, own: bool = False
) -> list[str] | None:
    """The operators that a component lacks of those that its architecture must have, in words.

    The raised graph is held to its architecture on every target, the fused one where the target declined nothing.

    Args:
        config: the component's ``config.json``.
        report: of the component.
        own: whether sdort's own operators are used.

    Returns:
        What is missing; None where there is no config, or sdort does not know its architecture.

    Raises:
        BadModelError: the config is broken.
    """
    if not config.is_file() or not component_schema(model.component):
        return None
    settings = read_component_config(config, model.component)
    clip_skips = sum(output.name.startswith(f"{CLIP_SKIP}.") for output in model.graph.outputs)
    images = sum(source.name.startswith(f"{IMAGE_TOKENS}.") for source in model.graph.inputs)
    try:
        raised = expected_operators(settings, model.component, RAISED_GRAPH, clip_skips, images)
        fused = expected_operators(settings, model.component, provider, clip_skips, images)
        owned = expected_operators(settings, model.component, OWN_GRAPH, clip_skips, images) if own else []
    except BadModelError as error:
        detail(f"{model.component}: no counts can be derived from {config}: {error}")
        return None
    counts = report.operators_raised
    misses = [e.difference(sum(counts.get(op, 0) for op in e.operators)) for e in raised]
    fuses_all = f"{MICROSOFT}.GroupNorm" in load_target(provider).conditions
    if fuses_all and not any(o.declined for o in report.fusions.values() if o.name != EXPAND):
        misses += [e.miss(model.graph) for e in fused]
    misses += [e.miss(model.graph) for e in owned]
    return [miss for miss in misses if miss]


def check_expected(expected: Iterable[str], components: Collection[str]) -> None:
    """Check the names of counts that are asked for.

    Args:
        expected: operator, or ``component:operator``.
        components: those that are optimized.

    Raises:
        UsageError: a component is named that is not there.
    """
    for name in expected:
        component = name.rpartition(":")[0]
        if component and component not in components:
            hint = f"{did_you_mean(component, components)}What is optimized: {', '.join(components)}."
            raise UsageError(f"--expect {name}: there is no component {component!r}", hint=hint)


def wrong_counts(expected: Mapping[str, int], components: Mapping[str, ComponentReport]) -> list[str]:
    """The differences between counts that were asked for and those of the optimized components, in words.

    Args:
        expected: operator, or ``component:operator``, and its count; :func:`check_expected` knows the components. An
            operator is named with its domain (``sdort.GroupNorm``), or without it for those of all domains together.
    """
    wrong = []
    for name, count in expected.items():
        component, _, operator = name.rpartition(":")
        numbers: Counter[str] = Counter()
        for each in (c.operators for n, c in components.items() if component in ("", n)):
            for full_name, number in each.items():
                for known_as in {full_name, full_name.rpartition(".")[2]}:
                    numbers[known_as] += number
        if numbers[operator] != count:
            close = "" if operator in numbers else did_you_mean(operator, numbers).strip()
            wrong.append(f"--expect {name}={count}: found {numbers[operator]}{f'. {close}' if close else ''}")
    return wrong
