"""How many operators a component must have, told by its diffusers or transformers config alone.

The graph cannot say what should have fused: a fusion that silently misses everything leaves a graph that looks
complete. So the counts come from the architecture (:mod:`sdort.optimizer.architecture`), the table below says which
operators of a target stand for them, and the optimized graph is held to that.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from sdort.optimizer.architecture import Config, architecture


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
ACTIVATIONS = {
    "quick_gelu": Form(("quick_gelu",), ("QuickGelu",)),
    "gelu": Form(("gelu",), ("Gelu", "BiasGelu", "FastGelu")),
}
ATTENTION = Form(("attention_self", "attention_cross"), ("MultiHeadAttention", "Attention"))
GPU = {
    "attention": ATTENTION,
    "group_norm": Form(("group_norm",), ("GroupNorm", "SkipGroupNorm")),
    "group_norm_silu": Form(("group_norm_silu",), ("GroupNorm", "SkipGroupNorm"), attributes=(("activation", 1),)),
    "conv": Form(("conv",), ("NhwcConv",)),
    "geglu": Form(("geglu",), ("BiasSplitGelu",)),
    **NORMS,
    **ACTIVATIONS,
}
STANDARD = {
    # Group normalization of ONNX is a function that ONNX Runtime inlines; this is the kernel it has.
    "group_norm": Form(("group_norm",), ("InstanceNormalization",)),
    "conv": Form(("conv",), ("Conv",)),
    "quick_gelu": ACTIVATIONS["quick_gelu"],
    **NORMS,
}
CPU = {
    **STANDARD,
    "attention": ATTENTION,
    "geglu": Form(("geglu", "gelu"), ("Gelu", "BiasGelu", "FastGelu")),
}
MIGRAPHX = {
    **STANDARD,
    # It has no causal attention and no Gelu: MIGraphX finds them itself in standard operators.
    "attention": Form(("attention_self", "attention_cross"), ("MultiHeadAttention", "Softmax")),
    "geglu": Form(("geglu", "gelu"), ("Erf", "BiasGelu", "FastGelu")),
}
RAISED = {
    "attention": Form(("attention_self", "attention_cross"), ("Attention",)),
    "group_norm": Form(("group_norm",), ("GroupNormalization",)),
    "conv": Form(("conv",), ("Conv",)),
    "layer_norm": Form(("layer_norm",), ("LayerNormalization",)),
    "gelu": Form(("geglu", "gelu"), ("Gelu",)),
}
FORMS: dict[str, dict[str, Form]] = {
    "raised": RAISED,
    "rocm": GPU,
    "cuda": GPU,
    "cpu": CPU,
    "migraphx": MIGRAPHX,
}
"""Per target, what the architecture's counts look like in the optimized graph; ``raised`` is before its fusions."""


def expected_operators(config: Config, component: str, target: str) -> list[Expectation]:
    """What the optimized graph of ``component`` must hold on ``target`` (rocm, cuda, cpu, migraphx).

    Raises:
        BadModelError: the config names a block or setting whose structure is not known.
    """
    counts = architecture(config, component)
    return [
        Expectation(name, form.operators, sum(counts[key] for key in form.keys), form.at_least, form.attributes)
        for name, form in FORMS[target].items()
    ]
