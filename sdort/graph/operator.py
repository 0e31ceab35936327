"""An operator as one file of :mod:`sdort.operators` states it, and a node as such a file sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import onnx

from sdort.graph.fact import NOTHING, Fact
from sdort.graph.symbolic import Shape

Sizes = Sequence[tuple[int, ...]]
"""Dims of each tensor of a node that ran."""


class Category(Enum):
    """The kind of an operator's computation."""

    ATTENTION = "attention"
    NORMALIZATION = "normalization"
    CONVOLUTION = "convolution"
    PRODUCT = "matrix product"
    ACTIVATION = "activation"
    SUM = "sum"


class Required:
    """Stands for the default of an attribute that every node has to set."""


REQUIRED = Required()


@dataclass(frozen=True)
class AttributeReference:
    """Stands for an attribute's value in the function that a model carries: the call's own attribute."""

    type: str


@dataclass(frozen=True)
class Call:
    """A node as its operator's file sees it.

    Attributes:
        inputs: the facts of the inputs that are given, by parameter name, in order.
        outputs: the names of the outputs that are asked for, in order.
        attributes: by name, those that the node sets and the defaults of the others; None where there is none.
        stored: the type, of ``TensorProto``, in which kernels store intermediate results.
    """

    inputs: Mapping[str, Fact]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    stored: int = onnx.TensorProto.FLOAT

    def has(self, *names: str) -> bool:
        """Whether any of these inputs or outputs is there."""
        return any(name in self.inputs or name in self.outputs for name in names)

    def fact(self, name: str) -> Fact:
        """The fact of an input; of one that is left out, nothing."""
        return self.inputs.get(name, NOTHING)

    def shape(self, name: str) -> Shape | None:
        return self.fact(name).shape

    def dtype(self, name: str) -> np.dtype[Any] | None:
        return self.fact(name).dtype

    def text(self, *names: str, **more: Any) -> str:
        """Attributes as ONNX text, ``<groups = 4, epsilon = 1e-05>``: these of the call and ``more``, but for None."""
        values = {name: self.attributes[name] for name in names} | more
        settings = [_setting(name, value) for name, value in values.items() if value is not None]
        return f"<{', '.join(settings)}>" if settings else ""

    @property
    def signature(self) -> str:
        """``(inputs) => (outputs)`` of its function as ONNX text: of the parameters, those that are there."""
        return f"({', '.join(self.inputs)}) => ({', '.join(self.outputs)})"


def _setting(name: str, value: Any) -> str:
    if isinstance(value, AttributeReference):
        return f"{name}: {value.type} = @{name}"
    if isinstance(value, (bytes, str)):
        return f'{name} = "{value.decode() if isinstance(value, bytes) else value}"'
    if isinstance(value, float):
        return f"{name} = {value!r}" if "e" in repr(value) or "." in repr(value) else f"{name} = {value}.0"
    return f"{name} = {value if isinstance(value, int) else list(value)}"


Condition = Callable[[Call], "str | None"]
"""Says why a kernel cannot take a node; None if it can."""
Body = Callable[[Call], "str | None"]
"""The text of a function body in ONNX's text syntax; None for a form of the operator that it does not know."""


@dataclass(frozen=True)
class Example:
    """Sizes and attributes of one call, for tests.

    Attributes:
        inputs: the dims of each input of floats that is given.
        attributes: what the node sets.
        outputs: the outputs that are asked for; all where empty.
        integers: the values of each input that is of int64, in lists.
        bytes: the dims of each input that is of uint8.
    """

    inputs: Mapping[str, tuple[int, ...]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    integers: Mapping[str, Any] = field(default_factory=dict)
    bytes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Operator:
    """All that sdort knows of an operator that is not ONNX's own. Tables elsewhere are made of it.

    Attributes:
        domain: ``com.microsoft`` or ``sdort``.
        inputs: parameter names in the order of the schema.
        outputs: likewise.
        attributes: by name the default: :data:`REQUIRED` where every node sets it, None where it is left out.
        infer: from a call to the facts of its outputs, in their order.
        definition: what it computes, in standard operators or others that have a file, at opset 18. Norms, softmaxes
            and activations are in float32, as kernels have them; what kernels store in between is cast to
            ``call.stored``.
        on_cpu: the body that stands for a node on ONNX Runtime's CPU provider; None where the provider runs it.
        stores_intermediates: whether GPU kernels store ``definition``'s intermediate results of such a call; else they
            round nothing but the outputs.
        float32_inputs: inputs that are float32 in an fp16 model too.
        additive: whether it adds its inputs up: what is small there is lost beside what it is added to.
        factors: weights whose relative error is the output's.
        operations: arithmetic operations: a number for each element of the first output, or what computes them from
            the dims of inputs and outputs (None where dims do not tell). Bytes are those of inputs and outputs.
        kernels: execution providers of ONNX Runtime that have kernels, and the forms that these take.
        outdone: by execution provider the forms that its kernels take, but slower than another form of the same
            operator, which fusions make instead.
        unserved: where sdort's library has a kernel, operators that the kernel stands in for in a session (the operator
            itself, and what ONNX Runtime fuses into it), and their inputs and outputs that it does not know.
        channels_axis: where the second input is a weight, the axis of it that the channels in are.
        heads: of attentions, the text that makes ``q4``, ``k4`` and ``v4`` [batch, rows, heads, size] of the inputs.
        examples: calls that ``definition`` knows.
        trials: calls of sizes at which kernels go the ways that they go in models, by which a provider's kernel is
            tried before it is believed (:mod:`sdort.runtime.trial`); where empty, the examples.
    """

    name: str
    domain: str
    category: Category
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    infer: Callable[[Call], Sequence[Fact]]
    definition: Body
    on_cpu: Body
    stores_intermediates: Callable[[Call], bool]
    float32_inputs: tuple[str, ...]
    additive: bool
    factors: tuple[str, ...]
    operations: int | Callable[[Sizes, Sizes], int | None]
    kernels: Mapping[str, Condition]
    unserved: Mapping[str, tuple[str, ...]]
    outdone: Mapping[str, Condition] | None = None
    channels_axis: Callable[[Call], int] | None = None
    heads: Body | None = None
    examples: tuple[Example, ...]
    trials: tuple[Example, ...] = ()

    @property
    def qualified_name(self) -> str:
        """``com.microsoft.GroupNorm``."""
        return f"{self.domain}.{self.name}"

    def call(
        self,
        inputs: Iterable[Fact | None],
        outputs: Iterable[bool],
        attributes: Mapping[str, Any],
        stored: int = onnx.TensorProto.FLOAT,
    ) -> Call:
        """A call with these inputs, None for those that are left out, outputs and attributes."""
        defaults = {name: value for name, value in self.attributes.items() if value is not REQUIRED}
        return _named(self.inputs, self.outputs, inputs, outputs, {**defaults, **attributes}, stored)

    def call_of(self, node: onnx.NodeProto, stored: int = onnx.TensorProto.FLOAT) -> Call:
        """The call that a node is, of whose inputs nothing but their presence is known."""
        return self.call(*_parts(node), stored)

    def fits(self, node: onnx.NodeProto) -> bool:
        """Whether a node has no more inputs and outputs than the operator."""
        return len(node.input) <= len(self.inputs) and len(node.output) <= len(self.outputs)

    def input_positions(self, names: Iterable[str]) -> tuple[int, ...]:
        """Positions of these inputs."""
        return tuple(map(self.inputs.index, names))


def standard_call(
    name: str,
    opset: int,
    inputs: Iterable[Fact | None],
    outputs: Iterable[bool],
    attributes: Mapping[str, Any],
    stored: int = onnx.TensorProto.FLOAT,
) -> Call:
    """A call of one of ONNX's operators, whose parameters are called as in its schema; defaults are not filled in."""
    schema = onnx.defs.get_schema(name, opset)
    input_names, output_names = (
        [parameter.name for parameter in parameters] for parameters in (schema.inputs, schema.outputs)
    )
    return _named(input_names, output_names, inputs, outputs, attributes, stored)


def standard_call_of(node: onnx.NodeProto, opset: int, stored: int = onnx.TensorProto.FLOAT) -> Call:
    """The call that a node of one of ONNX's operators is, of whose inputs nothing but their presence is known."""
    return standard_call(node.op_type, opset, *_parts(node), stored)


def _parts(node: onnx.NodeProto) -> tuple[list[Fact | None], list[bool], dict[str, Any]]:
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return [NOTHING if name else None for name in node.input], [bool(name) for name in node.output], attributes


def _named(
    input_names: Iterable[str],
    output_names: Iterable[str],
    inputs: Iterable[Fact | None],
    outputs: Iterable[bool],
    attributes: Mapping[str, Any],
    stored: int,
) -> Call:
    facts = {name: fact for name, fact in zip(input_names, inputs, strict=False) if fact is not None}
    asked = tuple(name for name, there in zip(output_names, outputs, strict=False) if there)
    return Call(facts, asked, attributes, stored)


# --- what many files state ---


def any_form(call: Call) -> str | None:
    """The kernel takes every form of its operator."""
    return None


def runs_itself(call: Call) -> str | None:
    """ONNX Runtime's CPU provider has a kernel for every form."""
    return None


def outputs_only(call: Call) -> bool:
    """GPU kernels compute in float32 and round their outputs alone."""
    return False


def same(call: Call) -> list[Fact]:
    """The first output has the first input's dtype and shape."""
    first = next(iter(call.inputs.values()))
    return [Fact(first.dtype, first.shape)]
