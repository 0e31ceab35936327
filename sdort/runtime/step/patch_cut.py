"""The graph of a UNet's step for one of several patches of the image, which takes what it needs of the other patches.

Displaced patch parallelism (Li, Cai, Cao, Zhang, Cai, Bai, Jia, Li and Han, "DistriFusion: Distributed Parallel
Inference for High-Resolution Diffusion Models", 2024, arXiv:2402.19481): the rows of an image are cut in equal parts,
and each device computes one. At three kinds of points a part needs something of the others. From one step to the next
this changes little, so that each part takes what the others gave in the step before.

==========  ==============================  =============================================================
kind        at                              a patch gives
==========  ==============================  =============================================================
rows        convolutions                    its first row and its last, which its neighbours take
sums        group norms, some at once       the mean of each group and of its squares, which all others take
keys        attention of the image's        its keys and values, which all others take
            tokens among themselves
==========  ==============================  =============================================================

The graph of a patch gives these beside its output. The whole graph gives them for every patch, for the steps that are
exact. All other operators on the latents' way have to be local to a row. A group norm stays the operator that it is: it
normalizes by the numbers that its patch has now, and has other weights: those with which, a step before, the result
would have been that of all patches' numbers. They are those of one sample, so that these graphs run on one sample at a
time. No names of nodes or weights are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, helper

from sdort.errors import BadModelError
from sdort.families.known_families import roles_of
from sdort.graph.domains import MICROSOFT, OWN_DOMAIN
from sdort.graph.topological_order import topological_order
from sdort.onnx_io.branches import outer_names
from sdort.runtime.step.step_split import Needed, Parts, constants_of, graph_inputs, tensor_types
from sdort.workload.steering_inputs import is_residual

_COUNTS = frozenset({"Shape", "Size"})
_CONVOLUTIONS = {"Conv": 2, "FusedConv": 2, "NhwcConv": 1, "NhwcFusedConv": 1}
"""Axis of the rows in what a convolution reads."""
_NORMS = frozenset({"InstanceNormalization", "GroupNormalization", "GroupNorm", "SkipGroupNorm", "BiasGroupNorm"})
_LOCAL = frozenset({
    "Add", "BiasAdd", "BiasGelu", "BiasLayerNormalization", "BiasSplitGelu", "Cast", "CastLike", "Clip", "Div",
    "Erf", "Exp", "FastGelu", "Gelu", "Identity", "InterleavePhases", "Max", "Min", "Mul", "Neg", "Pow",
    "QuickGelu", "Reciprocal", "Relu", "Reshape", "Resize", "Sigmoid", "SkipLayerNormalization", "Softplus",
    "Sqrt", "Squeeze", "Sub", "Swish", "Tanh", "Transpose", "Unsqueeze", "Where"
})  # fmt: skip
"""Operators that compute a row, a token or an element from the same one alone, or arrange them."""
_PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul", "MatMulNBits", "MatMulInteger"})
"""Products with a weight, of one token at a time."""
_LAST = frozenset({-1, 2, 3})
"""Axes of channels in tensors of tokens and of channels-last images, where a node says which."""
_OPSET = 18


@dataclass(frozen=True)
class Point:
    """A place in the graph at which a patch needs something of the others.

    Attributes:
        kind: ``rows``, ``sums`` or ``keys``.
        given: outputs of a patch's graph; of rows the first one and the last.
        taken: inputs of it: of rows those of the patch above and below, else for each of ``given`` one of each other
            patch; before these, of sums, one of the patch itself.
    """

    kind: str
    given: tuple[str, ...]
    taken: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PatchPoints:
    """Exchange of a cut graph: all that its patches give each other.

    Attributes:
        patches: how many there are.
    """

    patches: int
    points: tuple[Point, ...]

    @property
    def given(self) -> list[str]:
        """All that a patch gives."""
        return [name for point in self.points for name in point.given]

    @property
    def kept(self) -> list[str]:
        """The first ones of these, which it takes itself in the next step."""
        return [name for point in self.points if point.kind == "sums" for name in point.given]

    def sources(self, index: int) -> dict[str, tuple[int | None, str]]:
        """For each further input of a patch's graph the patch that gives it, None where there is none and it is zeros,
        and the name of what that gives; of sums a patch takes its own of the step before too.

        Args:
            index: of the patch, from the top.
        """
        others = [number for number in range(self.patches) if number != index]
        every = {"sums": [index, *others], "keys": others}
        found: dict[str, tuple[int | None, str]] = {}
        for point in self.points:
            if point.kind == "rows":
                ((above, below),), (first, last) = point.taken, point.given
                found[above] = (index - 1 if index else None, last)
                found[below] = (index + 1 if index + 1 < self.patches else None, first)
            else:
                for name, inputs in zip(point.given, point.taken, strict=True):
                    found.update(zip(inputs, ((number, name) for number in every[point.kind]), strict=True))
        return found


@dataclass(frozen=True)
class PatchCut:
    """The graphs of a step.

    Attributes:
        whole: all of it, which also gives what each patch would give (:func:`given_by`).
        patch: the same for the rows of one patch.
    """

    whole: onnx.ModelProto
    patch: onnx.ModelProto
    points: PatchPoints


def given_by(name: str, patch: int) -> str:
    """The output of the whole graph that is what a patch gives under a name."""
    return f"{name}@{patch}"


def cut_patches(model: onnx.ModelProto, patches: int, component: str) -> PatchCut:
    """Cut a graph, whose nodes are in topological order, into patches. The results share nothing with it.

    Args:
        patches: how many, 2 or more.

    Raises:
        BadModelError: as :func:`patch_rows`.
    """
    patch_rows(model, component)
    cutter = _Cutter(model, patches)
    output = model.graph.output[0].name
    points = PatchPoints(patches, tuple(cutter.points))
    captured = [given_by(name, number) for name in points.given for number in range(patches)]
    taken = [name for point in points.points for names in point.taken for name in names]
    parts = Parts(model, cutter.inputs, cutter.types, cutter.shapes)
    inputs = list(cutter.inputs)
    return PatchCut(
        parts.model("whole", Needed(cutter.whole, inputs, []), [output, *captured]),
        parts.model("patch", Needed(cutter.patch, inputs, taken), [output, *points.given]),
        points,
    )


def patch_rows(model: onnx.ModelProto, component: str) -> int:
    """The number of which the rows of a patch's latents have to be a multiple: twice for each halving of the image.

    Raises:
        BadModelError: the graph is none that can be cut: it has fixed sizes, or an operator that is neither local to a
            row nor one of those at which patches give each other something.
    """
    graph, inputs = model.graph, graph_inputs(model.graph)
    sample = roles_of(inputs).sample
    if sample not in inputs:
        raise _refusal("it has no latents among its inputs", component)
    if next((entry.version for entry in model.opset_import if not entry.domain), 0) < _OPSET:
        raise _refusal(f"its operators are of an opset below {_OPSET}", component, "Optimize it: sdort optimize.")
    batch, _, *sides = inputs[sample].type.tensor_type.shape.dim
    if sides[0].dim_value or batch.dim_value > 1:
        raise _refusal("it has fixed sizes", component, "Export it without --static.")
    known, halvings = {name: 0 for name in inputs if name == sample or is_residual(name)}, 0
    for node in graph.node:
        read = [name for name in (*node.input, *outer_names(node)) if name in known]
        if node.op_type in _COUNTS or not read:
            continue
        problem = _problem(graph, node, known)
        if problem:
            hint = "Optimize the pipeline where it is not (sdort optimize), or leave --patches out."
            raise _refusal(f"{node.op_type} {problem}", component, hint, node.name)
        halved = node.op_type in _CONVOLUTIONS and max(_attributes(node).get("strides", [1])) > 1
        level = max(known[name] for name in read) + halved - (node.op_type in ("Resize", "InterleavePhases"))
        known.update(dict.fromkeys(filter(None, node.output), level))
        halvings = max(halvings, level)
    return int(2**halvings)


def _refusal(why: str, component: str, hint: str = "Leave --patches out.", node: str = "") -> BadModelError:
    return BadModelError(f"its graph cannot be cut into --patches: {why}", component=component, hint=hint, node=node)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _problem(graph: onnx.GraphProto, node: onnx.NodeProto, known: Mapping[str, int]) -> str | None:
    """Why an operator that reads something of the latents is not one of a patch; None where it is."""
    own = node.domain in ("", "ai.onnx", MICROSOFT, OWN_DOMAIN)
    attributes = _attributes(node)
    if own and node.op_type in _CONVOLUTIONS:
        return _window_problem(graph, node, attributes)
    if own and node.op_type in _NORMS:
        return _norm_problem(graph, node)
    if own and node.op_type == "MultiHeadAttention":
        more = [name for name in node.input[4:] if name] or list(filter(None, node.output[1:]))
        return "has a mask or more than its output" if more or attributes.get("unidirectional") else None
    if own and node.op_type in _PRODUCTS:
        return None if known.keys().isdisjoint(node.input[1:2]) else "multiplies two tensors of the image"
    if own and node.op_type == "LayerNormalization":
        return None if attributes.get("axis", -1) in _LAST else "is over more than channels"
    if own and node.op_type == "Split":
        return None if attributes.get("axis", 0) in _LAST else "is not along channels"
    if own and node.op_type == "Concat":
        together = all(name in known for name in node.input)
        return None if together else "joins the image with something else"
    if own and node.op_type == "Pad":  # an image of odd size, at the edge; a patch's rows are even
        constant = constants_of(graph)
        return None if node.input[1] not in constant and attributes.get("mode") == b"edge" else "adds rows"
    return None if own and node.op_type in _LOCAL else "is no operator that patches know"


def _window_problem(graph: onnx.GraphProto, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> str | None:
    """Why a convolution is none that takes a row above and a row below, or none."""
    rows = _window(node)
    if rows is None:
        return "says no size of its window"
    kernel, stride, (before, after) = rows
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or max(attributes.get("dilations", [1])) > 1:
        return "has a window that is padded or spaced in another way"
    if (kernel, before, after) == (1, 0, 0) and stride == 1:
        return None
    if (kernel, before, after) == (3, 1, 1) and stride in (1, 2):
        return None
    readers = {reader.op_type for reader in graph.node if node.output[0] in reader.input}
    if (kernel, stride, before, after) == (2, 1, 1, 1) and readers == {"InterleavePhases"}:
        return None
    return f"has a window of {kernel} rows, padded by {before} and {after}, at every {stride}"


def _window(node: onnx.NodeProto) -> tuple[int, int, tuple[int, int]] | None:
    """Rows of a convolution's window, their stride, and the padding above and below."""
    attributes = {each.name: list(each.ints) for each in node.attribute if each.ints}
    kernel, pads = attributes.get("kernel_shape"), attributes.get("pads", [0] * 4)
    if kernel is None or len(kernel) != 2:
        return None
    return kernel[0], attributes.get("strides", [1, 1])[0], (pads[0], pads[2])


def _norm_problem(graph: onnx.GraphProto, node: onnx.NodeProto) -> str | None:
    """Why a group norm is none whose numbers can be those of all patches, or none."""
    constants = constants_of(graph)
    if node.op_type == "InstanceNormalization":
        maker = next((each for each in graph.node if node.input[0] in each.output), None)
        if maker is None or maker.op_type != "Reshape" or maker.input[1] not in constants:
            return "is over something else than the groups of an image"
    elif node.op_type != "GroupNormalization" and not _attributes(node).get("channels_last", 1):
        return "is over channels first"
    return None if node.input[_scale_of(node)] in constants else "has a scale that is no weight"


def _scale_of(node: onnx.NodeProto) -> int:
    """The place of a norm's scale among its inputs; its shift is the next."""
    return 2 if node.domain == OWN_DOMAIN and node.op_type == "GroupNorm" else 1


def _sorted(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nodes in topological order."""
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs = [{makers[name] for name in (*node.input, *outer_names(node)) if name in makers} for node in nodes]
    return [nodes[index] for index in topological_order(needs)[0]]


@dataclass(frozen=True)
class _Norm:
    """A group norm of the image.

    Attributes:
        name: what its tensors' names begin with.
        width: weights of its scale.
        last: whether the image has its channels last.
    """

    name: str
    node: onnx.NodeProto
    groups: int
    width: int
    last: bool

    @property
    def members(self) -> int:
        """Channels of a group whose numbers are apart at first."""
        return self.width // self.groups if self.last else 1

    @property
    def epsilon(self) -> float:
        return float(_attributes(self.node).get("epsilon", 1e-5))


class _Cutter:
    """The nodes of both graphs."""

    def __init__(self, model: onnx.ModelProto, patches: int) -> None:
        self.inputs = graph_inputs(model.graph)
        self.types, self.shapes = tensor_types(model, self.inputs, model.graph.node)
        self.patch: list[onnx.NodeProto] = []
        self.whole: list[onnx.NodeProto] = []
        self.points: list[Point] = []
        self._patches = patches
        self._graph = model.graph
        self._constants = constants_of(model.graph)
        self._norms: dict[tuple[int, int, int], list[_Norm]] = {}
        """By the number of groups, of channels of a group that are apart, and of weights."""
        self._numbered = 0
        self._made: dict[int, set[str]] = {}
        """Names of the constants that each list of nodes has already."""
        sample = roles_of(self.inputs).sample
        known = {name for name in self.inputs if name == sample or is_residual(name)}
        for node in model.graph.node:
            if not known.isdisjoint([*node.input, *outer_names(node)]) and node.op_type not in _COUNTS:
                self._add(node, known)
                known.update(filter(None, node.output))
            else:
                self.patch.append(node)
            self.whole.append(node)
        self._all_sums()
        # Given first, as one piece of what a patch keeps of itself; and weights of norms before the norms.
        self.points.sort(key=lambda point: point.kind != "sums")
        self.patch = _sorted(self.patch)

    def _add(self, node: onnx.NodeProto, known: set[str]) -> None:
        window = _window(node) if node.op_type in _CONVOLUTIONS else None
        if window and window[0] > 1:
            self._rows(node, _CONVOLUTIONS[node.op_type])
        elif node.op_type in _NORMS:
            self._sums(node)
        elif node.op_type == "MultiHeadAttention" and (len(node.input) == 1 or node.input[1] in known):
            self._keys(node)
        else:
            self.patch.append(node)

    def _rows(self, node: onnx.NodeProto, axis: int) -> None:
        """A convolution reads a row of each neighbour; zeros at the edge of the image are its padding."""
        x, name = node.input[0], self._name()
        first, last, above, below = (f"{name}.{each}" for each in ("first", "last", "above", "below"))
        self._point("rows", (first, last), ((above, below),), self.types[x])
        both = self._edges(self.patch, x, (first, last), axis)
        self.patch += [*both, helper.make_node("Concat", [above, x, below], [f"{name}.x"], axis=axis)]
        inner = self._copy(node, {0: f"{name}.x"})
        for each in inner.attribute:
            if each.name == "pads":
                each.ints[:] = [0, each.ints[1], 0, each.ints[3]]
        self.patch.append(inner)
        for number, part in enumerate(self._parts(x, axis, name)):
            self.whole += self._edges(self.whole, part, (given_by(first, number), given_by(last, number)), axis)

    def _edges(self, nodes: list[onnx.NodeProto], x: str, names: tuple[str, str], axis: int) -> list[onnx.NodeProto]:
        start, end, far = (self._ints(nodes, value) for value in (0, 1, 2**31))
        least, along = self._ints(nodes, -1), self._ints(nodes, axis)
        return [
            helper.make_node("Slice", [x, start, end, along], [names[0]]),
            helper.make_node("Slice", [x, least, far, along], [names[1]]),
        ]

    def _sums(self, node: onnx.NodeProto) -> None:
        """A group norm normalizes by the numbers of its patch, and has the weights that make these those of all."""
        name, scale = self._name(), _scale_of(node)
        last = node.op_type not in ("InstanceNormalization", "GroupNormalization")
        norm = _Norm(name, node, self._groups(node), self._width(node), last)
        self._norms.setdefault((norm.groups, norm.members, norm.width), []).append(norm)
        self._numbers(self.patch, self._joined(self.patch, node, name) if last else node.input[0], name, norm)
        weights = {place: f"{name}.weight.{place}" for place in (scale, scale + 1)}
        self.patch.append(self._copy(node, weights))
        if last:
            parts = self._parts(self._joined(self.whole, node, f"{name}.whole"), 1, name)
        elif node.op_type == "InstanceNormalization":
            parts = self._parts(self._before_groups(node), 2, name)
        else:
            parts = self._parts(node.input[0], 2, name)
        for number, part in enumerate(parts):
            self._numbers(self.whole, part, given_by(name, number), norm)

    def _width(self, node: onnx.NodeProto) -> int:
        """Weights of a norm, of channels or of groups."""
        return math.prod(self._constants[node.input[_scale_of(node)]].dims)

    def _groups(self, node: onnx.NodeProto) -> int:
        if node.op_type == "InstanceNormalization":
            return math.prod(self._constants[node.input[1]].dims)
        return int(_attributes(node)["num_groups" if node.op_type == "GroupNormalization" else "groups"])

    def _before_groups(self, node: onnx.NodeProto) -> str:
        maker = next(each for each in self._graph.node if node.input[0] in each.output)
        return str(maker.input[0])

    def _joined(self, nodes: list[onnx.NodeProto], node: onnx.NodeProto, name: str) -> str:
        """The tensor that a norm in channels last normalizes: joined, and summed up, as one sample broadcasts."""
        read = dict(enumerate(map(str, node.input)))
        x, added = read[0], {"SkipGroupNorm": (3, 4), "BiasGroupNorm": (3,)}.get(node.op_type, ())
        if node.domain == OWN_DOMAIN and node.op_type == "GroupNorm":
            added = (4, 5, 6)
            if read[1]:
                nodes.append(helper.make_node("Concat", [x, read[1]], [f"{name}.joined"], axis=-1))
                x = f"{name}.joined"
        for place in filter(read.get, added):
            nodes.append(helper.make_node("Add", [x, read[place]], [f"{name}.with.{place}"]))
            x = f"{name}.with.{place}"
        return x

    def _numbers(self, nodes: list[onnx.NodeProto], x: str, name: str, norm: _Norm) -> None:
        """The means and the means of squares, float32 [1, groups, members]: in channels last of each channel."""
        pixels = self._ints(nodes, 0, 1, 2) if norm.last else self._ints(nodes, 2)
        wide, shape = f"{name}.wide", self._ints(nodes, 1, norm.groups, norm.members)
        nodes.append(helper.make_node("Cast", [x], [wide], to=TensorProto.FLOAT))
        if not norm.last:
            nodes.append(helper.make_node("Reshape", [wide, self._ints(nodes, 1, norm.groups, -1)], [f"{name}.groups"]))
            wide = f"{name}.groups"
        nodes.append(helper.make_node("Mul", [wide, wide], [f"{name}.squares"]))
        for kind, read in (("mean", wide), ("square", f"{name}.squares")):
            nodes += [
                helper.make_node("ReduceMean", [read, pixels], [f"{name}.{kind}.pixels"], keepdims=1),
                helper.make_node("Reshape", [f"{name}.{kind}.pixels", shape], [f"{name}.{kind}"]),
            ]

    def _all_sums(self) -> None:
        """The numbers that norms give, and the weights that follow from those taken: of all norms of a size at once, as
        each operator on few numbers takes as long as one on many."""
        for index, norms in enumerate(self._norms.values()):
            own = f"sums.{index}"
            others = tuple(f"{own}.other.{number}" for number in range(self._patches - 1))
            self._point("sums", (own,), ((f"{own}.last", *others),), TensorProto.FLOAT)
            self._given(self.patch, own, norms, [norm.name for norm in norms])
            for number in range(self._patches):
                names = [given_by(norm.name, number) for norm in norms]
                self._given(self.whole, given_by(own, number), norms, names)
            self._weights(own, norms, [f"{own}.last", *others])

    def _given(self, nodes: list[onnx.NodeProto], own: str, norms: Sequence[_Norm], names: Sequence[str]) -> None:
        """The numbers of all groups, float32 [2, norms, groups]: means, then means of squares."""
        read = [f"{name}.{kind}" for kind in ("mean", "square") for name in names]
        shape = self._ints(nodes, 2, len(norms), norms[0].groups)
        nodes += [
            helper.make_node("Concat", read, [f"{own}.members"], axis=0),
            helper.make_node("ReduceMean", [f"{own}.members", self._ints(nodes, 2)], [f"{own}.flat"], keepdims=0),
            helper.make_node("Reshape", [f"{own}.flat", shape], [own]),
        ]

    def _weights(self, own: str, norms: Sequence[_Norm], taken: Sequence[str]) -> None:
        """The weights of norms with which to normalize by a patch's numbers m and s gives what all patches' M and S do:

        ``(x - m) / s * (g s / S) + (b + g (m - M) / S) = (x - M) / S * g + b``

        m, s, M and S are of the step before, and the norm's own m and s of now: so that what a patch has now counts.

        Args:
            taken: the numbers of this patch and of the others in the step before.
        """
        nodes, count, groups = self.patch, len(norms), norms[0].groups

        def made(part: str) -> str:
            return f"{own}.{part}"

        def put(op_type: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
            nodes.append(helper.make_node(op_type, inputs, list(map(made, outputs)), **attributes))
            return made(outputs[0])

        share, none = (self._float(nodes, value) for value in (1 / self._patches, 0.0))
        least = self._float(nodes, *(norm.epsilon for norm in norms))
        least = put("Reshape", [least, self._ints(nodes, count, 1, 1)], "least")
        together = put("Mul", [put("Sum", list(taken), "sum"), share], "together")
        each = put("Concat", [taken[0], together], "each", axis=0)  # own means and squares, then all patches'
        columns = put("Reshape", [each, self._ints(nodes, 2, 2, count, groups, 1)], "columns")
        put("Split", [columns], "means", "squares", axis=1, num_outputs=2)
        variance = put("Sub", [made("squares"), put("Mul", [made("means")] * 2, "products")], "variance")
        deviations = put("Sqrt", [put("Add", [put("Max", [variance, none], "positive"), least], "sum.least")], "roots")
        put("Split", [deviations], "here", "all", axis=0, num_outputs=2)
        put("Split", [made("means")], "mean.here", "mean.all", axis=0, num_outputs=2)
        ratio = put("Div", [made("here"), made("all")], "ratio")
        moved = put("Div", [put("Sub", [made("mean.here"), made("mean.all")], "difference"), made("all")], "moved")
        scales, shifts = (self._stacked(own, norms, place) for place in (0, 1))
        found = (
            put("Mul", [scales, ratio], "scaled"),
            put("Add", [shifts, put("Mul", [scales, moved], "offset")], "shifted"),
        )
        for place, values in enumerate(found):
            names = [f"{norm.name}.rows.{place}" for norm in norms]
            nodes.append(helper.make_node("Split", [values], names, axis=2, num_outputs=count))
            for norm, name in zip(norms, names, strict=True):
                number = _scale_of(norm.node) + place
                flat, kind = f"{name}.flat", self.types[norm.node.input[number]]
                nodes.append(helper.make_node("Reshape", [name, self._ints(nodes, -1)], [flat]))
                nodes.append(helper.make_node("Cast", [flat], [f"{norm.name}.weight.{number}"], to=kind))

    def _stacked(self, own: str, norms: Sequence[_Norm], place: int) -> str:
        """A weight of all norms, float32 [norms, groups, width / groups]."""
        nodes, rows = self.patch, []
        for norm in norms:
            name = f"{norm.name}.stacked.{place}"
            read = norm.node.input[_scale_of(norm.node) + place]
            shape = self._ints(nodes, 1, norm.groups, -1)
            nodes.append(helper.make_node("Cast", [read], [f"{name}.wide"], to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Reshape", [f"{name}.wide", shape], [name]))
            rows.append(name)
        nodes.append(helper.make_node("Concat", rows, [f"{own}.stacked.{place}"], axis=0))
        return f"{own}.stacked.{place}"

    def _keys(self, node: onnx.NodeProto) -> None:
        """Attention reads the keys and values of all patches, in any order: softmax does not mind."""
        name, packed = self._name(), len(node.input) == 1
        of_patch = self._unpacked(self.patch, node.input[0], name) if packed else list(node.input[:3])
        of_whole = self._unpacked(self.whole, node.input[0], f"{name}.whole") if packed else list(node.input[:3])
        kinds = [kind for kind, each in zip(("key", "value"), of_patch[1:], strict=False) if each]
        given = tuple(f"{name}.{kind}" for kind in kinds)
        taken = tuple(tuple(f"{each}.{number}" for number in range(self._patches - 1)) for each in given)
        self._point("keys", given, taken, self.types[node.input[0]])
        new = {0: of_patch[0]}
        for place, (each, own, others) in enumerate(zip(given, of_patch[1:], taken, strict=False), 1):
            self.patch.append(helper.make_node("Identity", [own], [each]))
            self.patch.append(helper.make_node("Concat", [own, *others], [f"{each}.all"], axis=1))
            new[place] = f"{each}.all"
            outputs = [given_by(each, number) for number in range(self._patches)]
            source = of_whole[place]
            self.whole.append(helper.make_node("Split", [source], outputs, axis=1, num_outputs=self._patches))
        self.patch.append(self._copy(node, new))

    def _unpacked(self, nodes: list[onnx.NodeProto], packed: str, name: str) -> list[str]:
        """The query [samples, tokens, width], and key and value packed, of all three packed."""
        third, merged = self._ints(nodes, 3), self._ints(nodes, 0, 0, -1)
        start, one, end = (self._ints(nodes, value) for value in (0, 1, 3))
        nodes += [
            helper.make_node("Slice", [packed, start, one, third], [f"{name}.query.part"]),
            helper.make_node("Reshape", [f"{name}.query.part", merged], [f"{name}.query"]),
            helper.make_node("Slice", [packed, one, end, third], [f"{name}.pair"]),
        ]
        return [f"{name}.query", f"{name}.pair"]

    def _name(self) -> str:
        self._numbered += 1
        return f"patch.{self._numbered}"

    def _point(self, kind: str, given: tuple[str, ...], taken: tuple[tuple[str, ...], ...], dtype: int) -> None:
        self.points.append(Point(kind, given, taken))
        captured = [given_by(name, number) for name in given for number in range(self._patches)]
        self.types.update(dict.fromkeys([*given, *captured, *(name for names in taken for name in names)], dtype))

    def _parts(self, x: str, axis: int, name: str) -> list[str]:
        """The rows of each patch, in the whole graph."""
        names = [f"{name}.part.{number}" for number in range(self._patches)]
        self.whole.append(helper.make_node("Split", [x], names, axis=axis, num_outputs=self._patches))
        return names

    def _copy(self, node: onnx.NodeProto, inputs: Mapping[int, str]) -> onnx.NodeProto:
        """A node with other inputs at these places."""
        made = onnx.NodeProto()
        made.CopyFrom(node)
        names = [*node.input, *[""] * (1 + max(inputs) - len(node.input))]
        made.input[:] = [inputs.get(place, name) for place, name in enumerate(names)]
        return made

    def _ints(self, nodes: list[onnx.NodeProto], *values: int) -> str:
        return self._constant(nodes, f"ints.{'.'.join(map(str, values))}", value_ints=list(values))

    def _float(self, nodes: list[onnx.NodeProto], *values: float) -> str:
        return self._constant(nodes, f"floats.{'.'.join(map(repr, values))}", value_floats=list(values))

    def _constant(self, nodes: list[onnx.NodeProto], name: str, **value: Any) -> str:
        made = self._made.setdefault(id(nodes), set())
        if name not in made:
            made.add(name)
            nodes.append(helper.make_node("Constant", [], [f"patch.{name}"], **value))
        return f"patch.{name}"
