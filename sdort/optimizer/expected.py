"""How many operators a component must have, told by its diffusers or transformers config alone.

The graph cannot say what should have fused: a fusion that silently misses everything leaves a graph that looks
complete. So the counts come from the architecture (:mod:`sdort.optimizer.architecture`), a target's kernels say which
operators stand for them, and the optimized graph is held to that.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from sdort.model.domains import MICROSOFT
from sdort.optimizer.architecture import Config, architecture
from sdort.providers import load_target
from sdort.providers.target import Target


@dataclass(frozen=True)
class Expectation:
    """``count`` nodes of ``operators``, counted together; more are allowed when ``at_least``."""

    name: str
    operators: tuple[str, ...]
    count: int
    at_least: bool = False
    attributes: tuple[tuple[str, int], ...] = ()
    """Only nodes with these attribute values count."""

    def found(self, graph: gs.Graph) -> int:
        """The number of nodes of ``graph`` that count."""
        return sum(
            node.op in self.operators and all(node.attrs.get(key, 0) == value for key, value in self.attributes)
            for node in graph.nodes
        )

    def miss(self, graph: gs.Graph) -> str | None:
        """What is wrong with ``graph``, in words, or None."""
        return self.judge(self.found(graph))

    def judge(self, found: int) -> str | None:
        """What is wrong with ``found`` such nodes, in words, or None."""
        if found == self.count or (self.at_least and found > self.count):
            return None
        kind = "+".join(self.operators) + "".join(f" with {key}={value}" for key, value in self.attributes)
        bound = "at least " if self.at_least else ""
        return f"{self.name}: expected {bound}{self.count} {kind}, found {found}"


@dataclass(frozen=True)
class Form:
    """The operators that stand for the sum of some architecture ``keys`` on a target."""

    keys: tuple[str, ...]
    operators: tuple[str, ...]
    at_least: bool = False
    attributes: tuple[tuple[str, int], ...] = ()


NORMS = {
    "layer_norm": Form(("layer_norm",), ("LayerNormalization", "SkipLayerNormalization")),
    "skip_layer_norm": Form(("skip_layer_norm",), ("SkipLayerNormalization",), at_least=True),
}
RAISED = {
    "attention": Form(("attention_self", "attention_cross"), ("Attention",)),
    "group_norm": Form(("group_norm",), ("GroupNormalization",)),
    "conv": Form(("conv",), ("Conv",)),
    "layer_norm": Form(("layer_norm",), ("LayerNormalization",)),
    "gelu": Form(("geglu", "gelu"), ("Gelu",)),
}
"""What the architecture's counts look like before a target's fusions."""

RAISED_GRAPH = "raised"
"""The name that stands for the graph before a target's fusions."""


def fused_forms(target: Target) -> dict[str, Form]:
    """The architecture's counts in the graph that is optimized for a target, which follow from its kernels."""
    kernels = {name.removeprefix(f"{MICROSOFT}.") for name in target.conditions}
    attention = "Attention" if "Attention" in kernels else "Softmax"  # in standard operators, where it is not fused
    gelu = ("Gelu" if "Gelu" in kernels else "Erf", "BiasGelu", "FastGelu")
    forms = {"attention": Form(("attention_self", "attention_cross"), ("MultiHeadAttention", attention)), **NORMS}
    forms["quick_gelu"] = Form(("quick_gelu",), ("QuickGelu",))
    forms["conv"] = Form(("conv",), ("NhwcConv" if "NhwcConv" in kernels else "Conv",))
    if "GroupNorm" in kernels:
        norms = ("GroupNorm", "SkipGroupNorm")
        forms["group_norm"] = Form(("group_norm",), norms)
        forms["group_norm_silu"] = Form(("group_norm_silu",), norms, attributes=(("activation", 1),))
    else:  # group normalization of ONNX is a function that ONNX Runtime inlines; this is the kernel it has
        forms["group_norm"] = Form(("group_norm",), ("InstanceNormalization",))
    if "BiasSplitGelu" in kernels:
        forms["geglu"] = Form(("geglu",), ("BiasSplitGelu",))
        forms["gelu"] = Form(("gelu",), gelu)
    else:
        forms["geglu"] = Form(("geglu", "gelu"), gelu)
    return forms


def expected_operators(config: Config, component: str, target: str) -> list[Expectation]:
    """What the optimized graph of ``component`` must hold on ``target``, or before its fusions (:data:`RAISED_GRAPH`).

    Raises:
        BadModelError: the config names a block or setting whose structure is not known.
    """
    counts = architecture(config, component)
    return [
        Expectation(name, form.operators, sum(counts[key] for key in form.keys), form.at_least, form.attributes)
        for name, form in (RAISED if target == RAISED_GRAPH else fused_forms(load_target(target))).items()
    ]
