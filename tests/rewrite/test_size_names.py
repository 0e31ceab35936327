"""Names of sizes against Python's own arithmetic on them; the seed of a case is in its name."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import product

import onnx
import pytest
from support.small_graphs import evaluate, parse

from sdort.graph.symbolic import Dim, Shape, atoms, is_known, is_natural, symbol
from sdort.onnx_io.load import from_proto
from sdort.rewrite.editor import Editor
from sdort.rewrite.size_names import HIGHEST_POWER, LONGEST_NAME, read_names, size_at

B, H, W = (symbol(name) for name in "bhw")
PARTS = ["b", "h", "w"]


def written(rng: random.Random, depth: int) -> str:
    """Random arithmetic of sizes as an exporter could write it."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice([*PARTS, *PARTS, str(rng.randint(0, 9))])
    left, right = written(rng, depth - 1), written(rng, depth - 1)
    divisor = rng.choice(["2", "3", "4", "8", f"({rng.choice(PARTS)} + 1)"])
    return rng.choice(
        [
            f"{left} + {right}",
            f"({left}) - ({right})",
            f"({left})*({right})",
            f"(({left}))//{divisor}",
            f"floor(({left})/{divisor})",
            f"ceiling(({left})/{divisor})",
            f"-({left})",
            f"({left})**2",
            f"({left})*{divisor}/{divisor}",
        ]
    )


def worth(name: str, sizes: dict[str, int]) -> Fraction:
    """The name's value by Python, with ``/`` exact."""
    exact = {part: Fraction(size) for part, size in sizes.items()}
    return Fraction(eval(name, {"floor": math.floor, "ceiling": math.ceil, "__builtins__": {}}, exact))


def with_parts(name: str) -> Dim:
    """What the name says where its parts are sizes of inputs themselves."""
    return read_names([name, *PARTS])[name]


@pytest.mark.parametrize("seed", range(400))
def test_a_name_means_what_python_computes(seed: int) -> None:
    rng = random.Random(seed)
    name = written(rng, 3)
    dim = with_parts(name)
    if dim == symbol(str(dim)[1:-1]):
        return  # a name of its own
    for _ in range(10):
        sizes = {part: rng.randint(1, 30) for part in PARTS}
        assert evaluate(dim, sizes) == math.floor(worth(name, sizes)), name


def test_most_of_these_names_are_read() -> None:
    names = [written(random.Random(seed), 3) for seed in range(400)]
    read = [name for name in names if with_parts(name) != symbol(str(with_parts(name))[1:-1])]
    assert len(read) > 250


READ: list[tuple[str, Dim]] = [
    ("b", B),
    ("2*h", 2 * H),
    ("(h*w)", H * W),
    ("h//8", H // 8),
    ("(h//8)", H // 8),
    ("h + 1", H + 1),
    ("-1 + h", H - 1),
    ("4*(((2*h - 1)//4)) + 4", 4 * ((H + 1) // 2)),
    ("floor(h/2 + 1/2)", (H + 1) // 2),
    ("ceiling(h/8)", (H + 7) // 8),
    ("h / 2", H // 2),
    ("(b*h*w)/b", H * W),
    ("((b*h*w)//b)", H * W),
    ("(h**2 - w**2)//(h + w)", H - W),
    ("h*w - h - w + 1", (H - 1) * (W - 1)),
]


@pytest.mark.parametrize(("name", "size"), READ, ids=[name for name, _ in READ])
def test_names_that_are_read(name: str, size: Dim) -> None:
    assert with_parts(name) == size


NAMES = [
    "sequence-length",
    "hidden-1",
    "batch size",
    "input_ids::batch",
    "Max(1, h)",
    "h % 2",
    "h // w",
    "h//0",
    "h/(b - b)",
    "0x2*h",
    "2e1*h",
    "0.5*h",
    "lambda",
    "None",
    "h if w else b",
    "h, w",
    "höhe + 1",
    "h\x00",
    "h[0]",
    "(h",
    "12",
    "-h",
    "h - h",
    "h**h",
    f"h**{HIGHEST_POWER + 1}",
    "(b + h + w + 1)**8",
    "9**8**8*h",
    "99999999999*h",
    "(" * LONGEST_NAME + "h" + ")" * LONGEST_NAME,
    "h" + " + h" * LONGEST_NAME,
    "-" * (LONGEST_NAME - 1) + "h*w//b",
]


@pytest.mark.parametrize("name", NAMES, ids=[name[:20].replace("\x00", "0") for name in NAMES])
def test_what_is_no_arithmetic_is_a_name(name: str) -> None:
    found = read_names([name, *PARTS])
    size = found[name]
    ((monomial, factor),) = size.terms.items()  # type: ignore[union-attr]
    assert (len(monomial), factor) == (1, 1)
    assert isinstance(monomial[0], str)
    assert monomial[0] not in PARTS
    assert is_natural(size - 1)
    assert {part: found[part] for part in PARTS} == {"b": B, "h": H, "w": W}


def test_a_name_is_the_same_whatever_its_spaces() -> None:
    first, second, third = read_names(["Max(1,h)", "Max(1, h)", "Max(2, h)"]).values()
    assert first == second != third


EVIDENCE: list[tuple[list[str], bool]] = [
    (["h"], True),
    (["2*h"], True),
    (["h//8"], True),
    (["h*w"], True),
    (["2*h - 1"], True),
    (["floor(h/2)"], True),
    (["h - w"], True),
    (["h + 1"], False),
    (["(h + 7)//8"], True),
    (["(h + 8)//8"], False),
    (["h + w"], False),
    (["h*w + 1"], False),
    (["ceiling(h/8) + 1"], False),
    (["h + 1", "h"], True),
    (["h + w", "h*w"], True),
]


@pytest.mark.parametrize(("names", "positive"), EVIDENCE, ids=[", ".join(names) for names, _ in EVIDENCE])
def test_a_part_is_at_least_one_where_a_size_needs_it(names: list[str], positive: bool) -> None:
    found = read_names(names)
    assert ("h" in {atom for size in found.values() for atom in atoms(size)}) == positive


def test_what_may_be_0_rounds_as_0_does() -> None:
    """``(h - 1)//2`` rounds down and a Div towards 0, which is the same only where h is not 0."""
    text = """
        g (float[n] x) => (float[n] y, int64[1] quotient) <int64[1] one = {1}, int64[1] two = {2}> {
            y = Relu (x)
            s = Shape (x)
            h = Sub (s, one)
            less = Sub (h, one)
            quotient = Div (less, two)
        }"""
    proto = parse(text)
    size = proto.graph.input[0].type.tensor_type.shape.dim[0]
    for name, known in (("h + 1", False), ("h + 2", True), ("2*h + 1", False)):
        size.dim_param = name
        editor = Editor(from_proto(proto, None, "test"))
        assert (editor.dims(editor.graph.outputs[1]) is not None) == known, name


@pytest.mark.parametrize("seed", range(200))
def test_nothing_natural_is_ever_negative(seed: int) -> None:
    """Whatever sizes the inputs allow: each of them is at least 1, their parts at least 0."""
    rng = random.Random(seed)
    names = [written(rng, 2) for _ in range(2)]
    found = read_names(names)
    difference = found[names[0]] - found[names[1]]
    if not is_natural(difference):
        return
    for _ in range(30):
        sizes = {part: rng.randint(0, 3) for part in PARTS}
        values = [worth(name, sizes) for name in names]
        if all(value >= 1 for value in values):
            assert math.floor(values[0]) >= math.floor(values[1]), (names, sizes)


def shapes_of(*inputs: tuple[str, list[str]]) -> dict[str, Shape | None]:
    """The shapes of a graph's inputs, declared by their dims' names."""
    proto = parse("g (float[1] x) => (float[1] y) { y = Relu (x) }")
    del proto.graph.input[:]
    for name, dims in inputs:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    editor = Editor(from_proto(proto, None, "test"))
    return {tensor.name: editor.shape(tensor) for tensor in editor.graph.inputs}


def test_inputs_share_the_sizes_that_their_names_share() -> None:
    found = shapes_of(("x", ["b", "c", "8*h", "8*w"]), ("mask", ["b", "(h*w)"]))
    assert found == {"x": (B, symbol("c"), 8 * H, 8 * W), "mask": (B, H * W)}


def test_two_sizes_without_a_name_need_not_be_equal() -> None:
    found = shapes_of(("x", ["?", "-1"]), ("z", ["?", "-1"]))
    sizes = [*(found["x"] or ()), *(found["z"] or ())]
    assert len(set(sizes)) == 4
    assert not any(map(is_known, sizes))


FORMULAS = [
    "a", "2*a + b", "a - b", "a*b", "(a + b)//3", "(a*b)/b", "floor(a/2 + 1/2)", "ceiling(a/4)", "ceil(a/4)", "a**3",
    "-a + 2*b", "(a + 1)**2//(b + 1)", "a/3*3", "(a/2)/3", "a//2//3", "((a/4) - (b/3))*12",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_at_numbers_is_what_python_computes(name: str) -> None:
    functions = {"floor": math.floor, "ceiling": math.ceil, "ceil": math.ceil, "__builtins__": {}}
    for a, b in product((1, 2, 5, 7, 12), (1, 3, 4)):
        exact = eval(name, functions, {"a": Fraction(a), "b": Fraction(b)})
        assert size_at(name, {"a": a, "b": b, "more": 9}) == math.floor(exact), (name, a, b)


@pytest.mark.parametrize(
    ("name", "sizes", "size"),
    [
        ("a + b", {"a": 2}, None), ("batch size", {"batch size": 3}, 3), ("batch size", {"batch": 3}, None),
        ("sequence-length", {"sequence-length": 5}, 5), ("Max(1, h)", {"h": 5}, None), (" a ", {"a": 3}, 3),
        ("a/(a - a)", {"a": 3}, None), ("a//0", {"a": 3}, None), ("7", {}, 7), ("a/b", {"a": 7, "b": 2}, 3),
        ("0*a", {"a": 5}, 0), (f"a**{HIGHEST_POWER}", {"a": 2}, 2**HIGHEST_POWER),
        (f"a**{HIGHEST_POWER + 1}", {"a": 2}, None), ("a**0", {"a": 2}, None),
        ("2*a", {"2*a": 6}, 6), ("floor(a/2)", {"a": 7}, 3), ("floor(a/2)", {"b": 7}, None), ("floor", {"floor": 2}, 2),
    ],
    ids=repr,
)  # fmt: skip
def test_sizes_of_names_where_their_parts_are_known(name: str, sizes: dict[str, int], size: int | None) -> None:
    assert size_at(name, sizes) == size
