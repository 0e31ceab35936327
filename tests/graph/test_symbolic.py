"""The algebra of dims against plain integers: whatever is built, both ways of computing it agree."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from support.small_graphs import evaluate

from sdort.graph.symbolic import (
    Dim,
    Equalities,
    Expr,
    divide,
    is_known,
    is_natural,
    name_unknown,
    numbers,
    product,
    symbol,
    unknown,
)

NAMES = ("batch", "height", "width")
B, H, W = (symbol(name) for name in NAMES)
Value = Callable[[dict[str, int]], int]


def expression(rng: random.Random, depth: int) -> tuple[Dim, Value]:
    """A random dim, and a function that computes it from the sizes without the algebra."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.4:
            number = rng.randint(-4, 9)
            return number, lambda sizes: number
        name = rng.choice(NAMES)
        return symbol(name), lambda sizes: sizes[name]
    left, value = expression(rng, depth - 1)
    kind = rng.choice("+-*//")
    if kind == "/":
        divisor = rng.randint(1, 6)
        return left // divisor, lambda sizes: value(sizes) // divisor
    right, other = expression(rng, depth - 1)
    if kind == "+":
        return left + right, lambda sizes: value(sizes) + other(sizes)
    if kind == "-":
        return left - right, lambda sizes: value(sizes) - other(sizes)
    return left * right, lambda sizes: value(sizes) * other(sizes)


def random_sizes(rng: random.Random) -> dict[str, int]:
    return {name: rng.randint(1, 40) for name in NAMES}


@pytest.mark.parametrize("seed", range(200))
def test_arithmetic_is_that_of_integers(seed: int) -> None:
    rng = random.Random(seed)
    dim, value = expression(rng, 4)
    for _ in range(20):
        sizes = random_sizes(rng)
        assert evaluate(dim, sizes) == value(sizes)


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 6, 12])
def test_division_is_that_of_integers(divisor: int) -> None:
    """Every way that factors, rest and divisor can share a part, or not: each takes a branch of its own."""
    sizes = [{"batch": 1, "height": h, "width": w} for h, w in ((1, 1), (5, 7), (8, 3), (13, 40))]
    for a, b, c in itertools.product((-6, -3, -1, 0, 2, 6, 9), (-4, 0, 1, 4), (-3, 0, 5)):
        once = (a * H + b * W + c) // divisor
        twice = (once + a * W + c) // 4
        for each in sizes:
            number = (a * each["height"] + b * each["width"] + c) // divisor
            assert evaluate(once, each) == number, (a, b, c)
            assert evaluate(twice, each) == (number + a * each["width"] + c) // 4, (a, b, c)


@pytest.mark.parametrize("seed", range(100))
def test_equal_dims_have_equal_hashes_and_text(seed: int) -> None:
    rng = random.Random(seed)
    (a, _), (b, _), (c, _) = (expression(rng, 2) for _ in range(3))
    for left, right in ((a + b, b + a), (a * b, b * a), (a * (b + c), a * b + a * c), (a - b, -(b - a)), (a - a, 0)):
        assert left == right
        assert hash(left) == hash(right)
        assert str(left) == str(right)


SPELLINGS: list[tuple[Dim, Dim]] = [
    ((2 * H) // 2, H),
    ((2 * H + 1) // 2, H),
    ((H - 1) // 2 + 1, (H + 1) // 2),
    (((H + 1) // 2 + 1) // 2, (H + 3) // 4),
    ((H // 2) // 3, H // 6),
    (((H // 2) * 4) // 4, H // 2),
    ((B * H * W * 8) // 4, 2 * B * H * W),
    ((H * W) * B, B * (W * H)),
    (product([B, 3, H, 2, W]), 6 * B * H * W),
    (H - 2 * (H - H) - H + 7, 7),
    ((2 * H - 1) // 4 + 1, (H + 1) // 2),
    ((6 * H + 7) // 4, (3 * H + 3) // 2),
    ((6 * H + 4 * W + 3) // 10, (3 * H + 2 * W + 1) // 5),
    ((3 * H) // 2, H + H // 2),
    (-(-H // 8), (H + 7) // 8),
    ((5 - 3 * H) // 2, 2 - H - H // 2),
    ((H + W) * (H - W), H * H - W * W),
]


@pytest.mark.parametrize(("left", "right"), SPELLINGS)
def test_two_spellings_of_one_size_are_equal(left: Dim, right: Dim) -> None:
    assert left == right


@pytest.mark.parametrize(
    ("left", "right"), [(H, W), (H // 2, H), (H * W, H + W), (2 * (H // 2), H), (unknown(), unknown())]
)
def test_different_sizes_are_not_equal(left: Dim, right: Dim) -> None:
    assert left != right


def test_numbers_stay_numbers() -> None:
    assert all(isinstance(d, int) for d in (H - H, 0 * H, (H + 4) - H, (H - H + 9) // 2))
    assert numbers([1, 2, 3]) == [1, 2, 3]
    assert numbers([]) == []
    assert numbers([1, H]) is None


@pytest.mark.parametrize("seed", range(200))
def test_divide_is_exact(seed: int) -> None:
    rng = random.Random(seed)
    part = product(rng.choices([B, H, W, 2, 3, (H + 1) // 2, H + W, 2 * H - 3, B * H - W + 1], k=rng.randint(1, 3)))
    rest, _ = expression(rng, 2)
    assert divide(part * rest, part) == rest
    other, _ = expression(rng, 3)
    quotient = divide(other, part)
    if quotient is not None:
        assert quotient * part == other


@pytest.mark.parametrize(
    ("total", "part"), [(H, W), (H * W + 1, H), (3 * H, 2), (H, H * W), (7, 2), (7, 0), (H * W, H + W), (4, H)]
)
def test_divide_refuses_what_does_not_come_out_even(total: Dim, part: Dim) -> None:
    assert divide(total, part) is None


def test_divide_by_a_sum() -> None:
    assert divide(H + W, H + W) == 1
    assert divide(H * H - W * W, H + W) == H - W
    assert divide(B * H * H + B * H * W + 2 * H + 2 * W, H + W) == B * H + 2
    assert divide(H * H + 2 * H + 1, H + 1) == H + 1
    assert divide(0, H + W) == 0


@pytest.mark.parametrize("seed", range(100))
def test_division_by_sums_is_exact_or_refused(seed: int) -> None:
    """Sums with any leading coefficient, and names that sort before and after divisions."""
    rng = random.Random(seed)
    atoms = [H, W, H // 2, (W + 1) // 3, symbol("two words"), symbol("~"), 1]

    def poly() -> Dim:
        return sum((rng.randint(-3, 3) * product(rng.choices(atoms, k=2)) for _ in range(4)), start=2 * H)

    part, whole, rest = poly(), poly(), poly()
    if part != 0:
        assert divide(part * whole, part) == whole
        quotient = divide(part * whole + rest, part)
        assert quotient is None or quotient * part == part * whole + rest


def test_different_sizes_are_spelled_differently() -> None:
    """Names are a model's own; what a name spells is no sum."""
    sizes: list[Dim] = [H + 1, symbol("height + 1"), symbol("'height + 1'"), H // 2, symbol("((height)//2)"), 2 * H]
    assert len({str(size) for size in [*sizes, symbol("2*height")]}) == len(sizes) + 1


LESSONS: list[tuple[list[tuple[Dim, Dim]], Callable[[dict[str, int]], dict[str, int]]]] = [
    ([(2 * ((H + 1) // 2), H)], lambda s: {**s, "height": 2 * s["height"]}),
    ([(symbol("number_of_tokens"), H * W)], lambda s: {**s, "number_of_tokens": s["height"] * s["width"]}),
    ([(3 * symbol("third"), B)], lambda s: {**s, "batch": 3 * s["batch"], "third": s["batch"]}),
    ([(symbol("sequence"), 77), (symbol("tokens"), symbol("sequence"))], lambda s: {**s, "sequence": 77, "tokens": 77}),
    ([(2 * ((H + 1) // 4) + 2, (H + 1) // 2 + 1)], lambda s: {**s, "height": 4 * s["height"] + 1}),
    ([(8 * (H // 8), H), (8 * (W // 8), W)], lambda s: {**s, "height": 8 * s["height"], "width": 8 * s["width"]}),
]


@pytest.mark.parametrize(("lessons", "satisfy"), LESSONS)
@pytest.mark.parametrize("seed", range(20))
def test_what_was_learnt_keeps_the_value(
    lessons: list[tuple[Dim, Dim]], satisfy: Callable[[dict[str, int]], dict[str, int]], seed: int
) -> None:
    rng = random.Random(seed)
    equal = Equalities()
    for a, b in lessons:
        equal.learn(a, b)
        assert equal.apply(a) == equal.apply(b)
    dim, _ = expression(rng, 2)
    dim = dim * lessons[0][0] + 5 * lessons[-1][0]
    for _ in range(10):
        sizes = satisfy(random_sizes(rng))
        assert evaluate(equal.apply(dim), sizes) == evaluate(dim, sizes)


def test_a_known_size_is_never_written_as_an_unknown_one() -> None:
    equal = Equalities()
    equal.learn(symbol("a_very_long_name"), unknown())
    assert is_known(equal.apply(symbol("a_very_long_name")))


def test_a_fraction_of_what_was_learnt_is_left() -> None:
    equal, half = Equalities(), (H + 1) // 2
    equal.learn(2 * half, H)
    assert equal.apply(4 * half) == 2 * H
    assert equal.apply(3 * half) == 3 * half


def test_what_cannot_be_solved_is_left() -> None:
    equal = Equalities()
    equal.learn(H + W, B)
    equal.learn(H * W, B + 1)
    assert equal.apply(H + W) == H + W
    assert equal.apply(H * W) == H * W


NATURAL: list[Dim] = [
    0,
    5,
    H,
    unknown(),
    unknown() * H,
    H - 1,
    H * W - 1,
    (H - 1) // 2,
    3 * (H // 2),
    H + (W // 8) - 1,
    H * ((W + 1) // 2),
]
NOT_NATURAL: list[Dim] = [
    -1,
    -H,
    H - 2,
    W - H,
    (H // 8) - 1,
    (H - 9) // 2,
    H * ((W - 9) // 2),
    H - (W // 8),
    ((H - 9) // 2) * ((W - 9) // 2),
    unknown() - 1,
    H * unknown() - 1,
]


@pytest.mark.parametrize("dim", NATURAL)
def test_sizes_are_natural(dim: Dim) -> None:
    assert is_natural(dim)


@pytest.mark.parametrize("dim", NOT_NATURAL)
def test_what_may_be_negative_is_not_natural(dim: Dim) -> None:
    assert not is_natural(dim)


@pytest.mark.parametrize("seed", range(100))
def test_what_is_natural_is_never_negative(seed: int) -> None:
    rng = random.Random(seed)
    dims = [expression(rng, 3)[0] for _ in range(20)]
    natural = [dim for dim in dims if is_natural(dim)]
    assert natural
    for dim in natural:
        for sizes in (dict.fromkeys(NAMES, 1), random_sizes(rng)):
            assert evaluate(dim, sizes) >= 0


def test_known_sees_through_divisions() -> None:
    assert is_known((H + 1) // 2)
    hidden = unknown()
    assert not is_known(hidden)
    assert not is_known((hidden + 1) // 2 + H)
    assert isinstance(hidden, Expr)


def test_a_size_that_nothing_is_known_of_keeps_its_name_where_it_stands_alone() -> None:
    n, one, other = symbol("n"), unknown(), unknown()
    named: dict[Any, Expr] = {}
    first = name_unknown(one, "a.0", named)
    assert first == symbol("?a.0")
    assert name_unknown(one, "b.1", named) == first  # whoever looks again finds the same size
    assert name_unknown(other, "c.2", named) == symbol("?c.2")
    assert len(named) == 2
    # What only holds it has another size than it, and no name that would stand for it elsewhere.
    for dim in (one * 2, one * n, one + 1, one + n, one * one):
        before = dict(named)
        assert name_unknown(dim, "d.3", named) == symbol("?d.3")
        assert named == before
    for known in (3, n, n * 2 + 1, first):
        assert name_unknown(known, "e.4", named) == known
