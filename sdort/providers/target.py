"""Abilities of an execution provider, as data.

Which operators a provider has kernels for, and which input forms these take, the operators' files say
(:mod:`sdort.operators`); a provider's file adds what they do not, and the standard operators that it lacks. Fusing asks
a target before it builds a node, so a target never receives an operator that it cannot run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sdort.graph.domains import MICROSOFT, OWN_DOMAIN
from sdort.operators import load_operators

if TYPE_CHECKING:  # the runtime reads a target's other half and needs no graphs
    import onnx_graphsurgeon as gs

    from sdort.graph.operator import Condition
    from sdort.rewrite.editor import Editor


@dataclass(frozen=True)
class Target:
    """One execution provider.

    Attributes:
        name: what ``--provider`` calls it.
        execution_provider: what ONNX Runtime calls it.
        opset: the default domain's opset of the graphs made for it.
        ir_version: the ONNX IR version of the graphs made for it.
        channels_last: whether convolutions run in channels-last.
        kernels: operators beside those whose files name this provider, as ``com.microsoft.GroupNorm``, and the forms
            that its kernels take (of sdort's own domain, in which it can run the function bodies).
        left_out: operators that count as if it had no kernels for them.
        doubted: operators that it has kernels for which computed something else where they were tried, and what: they
            too count as if it had none, until a trial on the machine itself shows that they are right.
        missing: standard operators that it does not have.
        only: where not empty, the only standard operators that it has.
        forms: standard operators that it has in some forms only, and those.
        fixed_sizes: whether it plans a graph for the sizes that the graph has, so that these are to be fixed.
        explicit_inputs: standard operators and their inputs that may not be left out: empty tensors take their place.
        coarse_sines: whether its Sin and Cos are less exact than fp32, so that they are written out.
    """

    name: str
    execution_provider: str
    opset: int
    ir_version: int
    channels_last: bool
    kernels: Mapping[str, Condition] = field(default_factory=dict)
    left_out: frozenset[str] = field(default_factory=frozenset)
    doubted: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset({"Attention", "GroupNormalization", "Gelu", "RotaryEmbedding"})
    only: frozenset[str] = field(default_factory=frozenset)
    forms: Mapping[str, Condition] = field(default_factory=dict)
    fixed_sizes: bool = False
    explicit_inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    coarse_sines: bool = False

    @cached_property
    def conditions(self) -> Mapping[str, Condition]:
        """All operators, standard ones apart, that it has kernels for, and the forms that these take."""
        stated = {operator.qualified_name: operator.kernels.get(self.name) for operator in load_operators().values()}
        every = {**{name: form for name, form in stated.items() if form is not None}, **self.kernels}
        return {name: form for name, form in every.items() if name not in self.left_out and name not in self.doubted}

    def preferring(self) -> Target:
        """The same target as fusions are to see it: forms that another form outdoes count as forms it does not take."""

        def strict(taken: Condition, outdone: Condition) -> Condition:
            return lambda call: taken(call) or outdone(call)

        stated = {
            operator.qualified_name: (operator.outdone or {}).get(self.name) for operator in load_operators().values()
        }
        kernels = {
            name: strict(self.conditions[name], outdone)
            for name, outdone in stated.items()
            if outdone is not None and name in self.conditions
        }
        return replace(self, kernels={**self.kernels, **kernels})

    def without(self, *operators: str) -> Target:
        """The same target, as if it had no kernels for these operators, ``com.microsoft.GroupNorm``."""
        return replace(self, left_out=self.left_out | {*operators})

    def judged(self, verdicts: Mapping[str, str | None]) -> Target:
        """The same target after its kernels were tried.

        Args:
            verdicts: operators, ``com.microsoft.MultiHeadAttention``, and what is wrong with each; None where it is
                right.
        """
        wrong = {name: reason for name, reason in verdicts.items() if reason is not None}
        kept = {name: reason for name, reason in self.doubted.items() if name not in verdicts}
        return replace(self, doubted={**kept, **wrong})

    def unsupported(self, node: gs.Node, editor: Editor | None = None) -> str | None:
        """The reason why this target does not run a node; None if it does.

        Args:
            editor: the graph's facts; without them only the operator's name is looked at.
        """
        if node.domain in (MICROSOFT, OWN_DOMAIN):
            name = node.op if node.domain == MICROSOFT else f"{node.domain}.{node.op}"
            qualified = f"{node.domain}.{node.op}"
            condition = self.conditions.get(qualified)
            if condition is None:
                if qualified in self.doubted:
                    return f"{name} of {self.name} is not used: {self.doubted[qualified]}"
                if qualified not in self.left_out:
                    return f"{self.name} has no kernel for {name}"
                own = node.domain == OWN_DOMAIN
                return f"{name} is {'one of the operators that are not used' if own else 'left out, as --disable asks'}"
            return condition(editor.facts.call(node)) if editor is not None else None
        if node.domain:
            return f"{self.name} has no kernels of domain {node.domain}"
        if node.op in self.missing or (self.only and node.op not in self.only):
            return f"{self.name} has no kernel for {node.op}"
        form = self.forms.get(node.op)
        return form(editor.facts.call(node)) if form is not None and editor is not None else None

    def only_wide(self, node: gs.Node, editor: Editor) -> bool:
        """Whether this target runs a node of another domain than ONNX's in fp32, and would not in fp16."""
        import numpy as np  # --help needs it not

        condition = self.conditions.get(f"{node.domain}.{node.op}")
        if condition is None:
            return False
        call = editor.facts.call(node)
        single, half = np.dtype(np.float32), np.dtype(np.float16)
        halves = {
            name: replace(fact, dtype=half) if fact.dtype == single else fact for name, fact in call.inputs.items()
        }
        return condition(call) is None and condition(replace(call, inputs=halves)) is not None
