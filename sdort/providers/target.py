"""What an execution provider runs, as data.

A target lists the ``com.microsoft`` operators it has kernels for, each with the input forms that the kernel takes, and
the standard operators that it lacks. Fusing asks it before it builds a node, so a target never receives an operator
that it cannot run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sdort.operators.microsoft import OWN_DOMAIN

if TYPE_CHECKING:  # the runtime reads a target's other half and needs no graphs
    import onnx_graphsurgeon as gs

    from sdort.model.symbolic import Shape
    from sdort.rewrite.editor import Editor

Condition = Callable[["NodeView"], "str | None"]
"""Says why a kernel cannot take a node; None if it can."""


@dataclass(frozen=True)
class NodeView:
    """A node and what is known of its inputs."""

    node: gs.Node
    editor: Editor

    def shape(self, index: int) -> Shape | None:
        """The shape of an input; None if it is absent or unknown."""
        return self.editor.shape(self.node.inputs[index]) if self.has(index) else None

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index].name)


def any_form(view: NodeView) -> str | None:
    """The kernel takes every form of its operator."""
    return None


@dataclass(frozen=True)
class Target:
    """One execution provider.

    Attributes:
        name: what ``--provider`` calls it.
        execution_provider: what ONNX Runtime calls it.
        opset: the default domain's opset of the graphs made for it.
        ir_version: the ONNX IR version of the graphs made for it.
        channels_last: whether convolutions run in channels-last.
        kernels: com.microsoft operators and the forms they take.
        own: operators of sdort's own domain and the forms in which the provider can run their function bodies.
        missing: standard operators that it does not have.
        only: where not empty, the only standard operators that it has.
        forms: standard operators that it has in some forms only, and those.
        spelled: standard operators and their inputs that may not be left out, and are empty tensors instead.
    """

    name: str
    execution_provider: str
    opset: int
    ir_version: int
    channels_last: bool
    kernels: Mapping[str, Condition]
    own: Mapping[str, Condition] = field(default_factory=dict)
    missing: frozenset[str] = frozenset({"Attention", "GroupNormalization", "Gelu"})
    only: frozenset[str] = field(default_factory=frozenset)
    forms: Mapping[str, Condition] = field(default_factory=dict)
    spelled: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def without(self, *operators: str) -> Target:
        """The same target, as if it had no kernels for these com.microsoft operators."""
        return replace(self, kernels={name: each for name, each in self.kernels.items() if name not in operators})

    def unsupported(self, node: gs.Node, editor: Editor | None = None) -> str | None:
        """Why this target does not run a node; None if it does.

        Args:
            editor: the graph's facts; without them only the operator's name is looked at.
        """
        if node.domain in ("com.microsoft", OWN_DOMAIN):
            own = node.domain == OWN_DOMAIN
            condition = (self.own if own else self.kernels).get(node.op)
            if condition is None:
                return f"{self.name} has no kernel for {f'{OWN_DOMAIN}.' if own else ''}{node.op}"
            return condition(NodeView(node, editor)) if editor is not None else None
        if node.domain:
            return f"{self.name} has no kernels of domain {node.domain}"
        if node.op in self.missing or (self.only and node.op not in self.only):
            return f"{self.name} has no kernel for {node.op}"
        form = self.forms.get(node.op)
        return form(NodeView(node, editor)) if form is not None and editor is not None else None
