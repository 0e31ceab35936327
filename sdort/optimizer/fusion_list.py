"""Descriptions of the fusions: :func:`sdort.list_fusions`, which ``sdort fusions`` calls."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from sdort.console import document
from sdort.errors import UsageError, did_you_mean
from sdort.graph.domains import MICROSOFT, OWN_DOMAIN
from sdort.graph.fact import Fact
from sdort.graph.operator import Call
from sdort.operators import find_operator
from sdort.optimizer.summary import OWN_VALUE
from sdort.options.option_types import typed
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.providers.target import Target
from sdort.rewrite.fusion import Fusion, load_fusions
from sdort.rewrite.pattern import Capture, Pattern

_OWN = "where the library is built or --sdort-ops asks for them"

STAGES = {
    "restore": "operators of ONNX Runtime that another tool put in become standard ones again",
    "raise": "decomposed operators become standard ones, whatever the exporter",
    "fuse": "standard operators become the provider's",
    "fuse_nhwc": "group normalizations take in what is around them, channels-last",
    "extend": f"sdort's own operators take in more, {_OWN}",
    "lower": "what the provider does not run becomes something that it does",
}
"""The stages in order, and what each does."""
DISABLED_STEPS = {
    "nhwc": "the channels-last region: convolutions and group normalizations stay channels-first",
    "separate_qkv": "on cuda, whose kernels copy packed inputs apart: attention's query, key and value stay products "
    "of their own; else packed_qkv and packed_kv apply there too",
    "conv_bias": "biases that move into what reads a convolution: the provider adds each by a kernel of its own",
    "group_norm": "the provider's GroupNorm kernels: group normalizations stay in standard operators",
}
"""Beside the fusions, what ``--disable`` takes, and what that leaves out."""
ON, OFF = "on", "off"


@dataclass(frozen=True)
class FusionDescription:
    """One fusion, in words and as ONNX text."""

    name: str
    """Name for ``--disable`` and ``--explain``."""
    description: str
    """Its purpose; the first paragraph is a summary."""
    stage: str
    """When it runs: ``restore``, ``raise``, ``fuse``, ``fuse_nhwc``, ``extend`` or ``lower``."""
    anchor: str
    """The operator that makes a place a candidate."""
    must_fuse: bool
    """Whether a candidate that is left is an error, unless it is declined."""
    replaces: list[str]
    """Operators of its largest form before, each once."""
    makes: list[str]
    """Operators of that form after, each once; those of other domains as ``domain.name``."""
    before: list[str]
    """Patterns, as ONNX text, the largest form first."""
    after: list[str]
    """Replacement of each form."""
    refusals: list[str]
    """Reasons for which it leaves a place that matches; what depends on the graph is ``...``."""
    providers: dict[str, str]
    """Provider -> ``on`` or ``off``, and after a colon the condition or the reason."""

    @property
    def summary(self) -> str:
        """The first sentence or paragraph of the description."""
        return self.description.partition("\n\n")[0]

    def is_on(self, provider: str) -> bool:
        """Whether it is applied to models for a provider, with sdort's own operators if it makes these."""
        return self.providers[provider].startswith(ON)


@document("fusions", 1)
@dataclass(frozen=True)
class FusionList:
    """The fusions that ``sdort optimize`` applies, in the order in which they run."""

    fusions: list[FusionDescription]
    """The fusions, in the order in which they run."""
    steps: dict[str, str]
    """Beside them, what ``--disable`` takes, and what that leaves out."""


@typed
def list_fusions(names: Sequence[str] = ()) -> FusionList:
    """Describe fusions.

    Args:
        names: of fusions; all of them if empty.

    Raises:
        UsageError: a name is no fusion.

    Example:
        >>> [fusion.makes for fusion in sdort.list_fusions(["gelu_erf"]).fusions]
        [['Gelu']]
    """
    known = load_fusions()
    for name in names:
        if name not in known:
            step = (
                f"It is a step, which --disable leaves out: {DISABLED_STEPS[name]}." if name in DISABLED_STEPS else ""
            )
            hint = step or f"{did_you_mean(name, known)}To list them:\n    sdort fusions"
            raise UsageError(f"there is no fusion {name!r}", hint=hint)
    stages = list(STAGES)
    chosen = [known[name] for name in names] or sorted(known.values(), key=lambda fusion: stages.index(fusion.stage))
    return FusionList([_describe(fusion) for fusion in chosen], DISABLED_STEPS)


def _describe(fusion: Fusion) -> FusionDescription:
    variants = sorted(fusion.variants, key=lambda variant: -len(variant[0].nodes))
    before, after = variants[0]
    return FusionDescription(
        name=fusion.name,
        description=inspect.cleandoc(fusion.module.__doc__ or ""),
        stage=fusion.stage,
        anchor=fusion.anchor,
        must_fuse=fusion.must_fuse,
        replaces=_operators(before),
        makes=_operators(after),
        before=[variant.text.strip() for variant, _ in variants],
        after=[variant.text.strip() for _, variant in variants],
        refusals=list(dict.fromkeys(_refusals(fusion.module))),
        providers={name: _state(fusion, load_target(name)) for name in PROVIDER_NAMES},
    )


def _operators(pattern: Pattern) -> list[str]:
    return list(dict.fromkeys(f"{node.domain}.{node.op}".lstrip(".") for node in pattern.nodes))


# --- where it is applied ---


def _state(fusion: Fusion, target: Target) -> str:
    """``on`` or ``off`` for a target, and the condition or the reason."""
    if not fusion.is_for(target.name):
        return f"{OFF}: only for {' and '.join(fusion.providers)}, where it was measured to be faster"
    if fusion.stage in ("restore", "raise"):
        return ON
    if fusion.stage == "lower" and (state := _lowering_state(fusion, target)).startswith(OFF):
        return state
    if fusion.stage == "fuse_nhwc" and not target.channels_last:
        return f"{OFF}: {target.name} computes convolutions channels-first"
    target = target.preferring() if fusion.stage == "fuse" else target
    refusals = [_refusal(fusion, after, target, _LARGE) for _, after in fusion.variants]
    if None not in refusals:
        return f"{OFF}: {refusals[0]}"
    if fusion.stage == "lower":
        return state
    small = [_refusal(fusion, after, target, _SMALL) for _, after in fusion.variants]
    forms = dict.fromkeys(reason.partition(OWN_VALUE)[0] for reason in small if reason and reason not in refusals)
    conditions = [_OWN] * (fusion.stage == "extend") + list(forms)
    return f"{ON}: {'; '.join(conditions)}" if conditions else ON


_SMALL, _LARGE = 8, 2560
"""Sizes for which kernels are asked: the large one is taken by those that are compiled for a few."""


def _refusal(fusion: Fusion, after: Pattern, target: Target, size: int) -> str | None:
    """A target's reason to have no kernel for an After, where all its sizes are ``size``; None if it has."""
    example = fusion.module.EXAMPLE
    rank = 4 if fusion.stage in ("fuse_nhwc", "extend") else 3
    for node in (node for node in after.nodes if node.domain):
        operator = find_operator(node.domain, node.op)
        condition = target.conditions.get(f"{node.domain}.{node.op}")
        if operator is None or condition is None:
            name = node.op if node.domain == MICROSOFT else f"{node.domain}.{node.op}"
            return f"{target.name} has no kernel for {name}"
        given = {key: example.get(v.name) if isinstance(v, Capture) else v for key, v in node.attrs.items()}
        inputs = {}
        for parameter, name in zip(operator.inputs, node.inputs, strict=False):
            stated = after.types.get(name)
            dims = [size] * rank if stated is None or stated.dims is None else stated.dims
            if name:
                inputs[parameter] = Fact(np.dtype(np.float32), tuple(size if isinstance(d, str) else d for d in dims))
        attributes = {**operator.attributes, **{key: value for key, value in given.items() if value is not None}}
        asked = tuple(name for name, made in zip(operator.outputs, node.outputs, strict=False) if made in after.read)
        if (reason := condition(Call(inputs, asked, attributes))) is not None:
            return reason
    return None


def _lowering_state(fusion: Fusion, target: Target) -> str:
    domain, _, name = fusion.anchor.rpartition(".")
    if domain in (MICROSOFT, OWN_DOMAIN):
        has = fusion.anchor in target.conditions
        return f"{ON}: where its kernel does not take the form" if has else f"{OFF}: no {name} is made for it"
    if name in target.missing or (target.only and name not in target.only):
        return f"{ON}: it has no kernel for {name}"
    if name in target.forms:
        return f"{ON}: where its kernel does not take the form"
    return f"{OFF}: it runs {name}"


# --- where a place that matches is left ---


def _refusals(module: ModuleType, functions: Iterable[str] = ("check",)) -> list[str]:
    """The reasons in a file's check, and in those of other fusions' that it calls."""
    tree = ast.parse(inspect.getsource(module))
    own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sdort.fusions.")
        for alias in node.names
    }
    reasons: list[str] = []
    for function in (own[name] for name in functions if name in own):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in imported:
                path, original = imported[name]
                reasons += _refusals(importlib.import_module(path), [original])
            elif call.args and (name in ("refuse", "decline", "Refusal") or name in own):
                reasons += [_text(call.args[0])]
    return [reason for reason in reasons if reason]


def _text(node: ast.expr) -> str:
    """A text in the source, with ``...`` for what is computed; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "..." for part in node.values)
    return ""
