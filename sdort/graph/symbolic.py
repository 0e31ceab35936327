"""Dimensions as polynomials over named sizes.

With a dynamic batch, height and width a shape is arithmetic: an attention layer's sequence is ``height*width``,
a downsampler leaves ``(height + 1)//2``. A :data:`Dim` is an ``int`` where the value is known and an
:class:`Expr`, a polynomial with integer coefficients in normal form, where it is not, so that two dims are
equal exactly when ``==`` says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import TypeAlias

Atom: TypeAlias = "str | tuple[Expr, int]"
"""A named size, or ``(numerator, divisor)`` for a floor division that does not come out even."""
Monomial: TypeAlias = "tuple[Atom, ...]"

_made = 0
_NAMELESS = "?#"


def _spell(atom: Atom) -> str:
    """Different atoms are spelled differently, whatever a model calls its sizes."""
    if isinstance(atom, str):
        return atom if atom.isidentifier() else repr(atom)
    return f"(({atom[0]})//{atom[1]})"


def _rank(monomial: Monomial) -> tuple[int, list[str]]:
    """Sorts monomials: the highest degree first, then by their atoms."""
    return -len(monomial), [_spell(atom) for atom in monomial]


class Expr:
    """A polynomial in normal form; never a plain number (arithmetic returns an ``int`` for those)."""

    __slots__ = ("_hash", "_text", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms
        self._text = ""
        self._hash = hash(frozenset(terms.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.terms == other.terms

    def __add__(self, other: Dim) -> Dim:
        terms = dict(self.terms)
        for monomial, factor in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return _normal(terms)

    __radd__ = __add__

    def __mul__(self, other: Dim) -> Dim:
        terms: dict[Monomial, int] = {}
        for (left, f), (right, g) in itertools.product(self.terms.items(), _terms(other).items()):
            monomial = tuple(sorted(left + right, key=_spell))
            terms[monomial] = terms.get(monomial, 0) + f * g
        return _normal(terms)

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __floordiv__(self, divisor: int) -> Dim:
        """Floor division by a positive number: ``(k*a + r)//k == a + r//k``, ``(g*a + r)//(g*k) == (a + r//g)//k``."""
        factors = {monomial: factor for monomial, factor in self.terms.items() if monomial}
        if all(factor < 0 for factor in factors.values()):
            return -((-self + (divisor - 1)) // divisor)
        whole: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, factor in self.terms.items():
            split = factor > 0 or not monomial or factor % divisor == 0  # -h stays: it is no shorter as 7*h - 8*h
            whole[monomial], rest[monomial] = divmod(factor, divisor) if split else (0, factor)
        numerator = _normal(rest)
        if isinstance(numerator, int):  # only a constant below the divisor is left: it adds nothing
            return _normal(whole)
        shared = math.gcd(divisor, *(factor for monomial, factor in rest.items() if monomial))
        if shared > 1:
            return _normal({m: f // shared for m, f in rest.items()}) // (divisor // shared) + _normal(whole)
        inner = _single_division(numerator)
        if inner is not None:  # (n//d + c)//k == (n + c*d)//(d*k)
            (deeper, by), constant = inner
            return (deeper + constant * by) // (by * divisor) + _normal(whole)
        return Expr({((numerator, divisor),): 1}) + _normal(whole)

    def __str__(self) -> str:
        def show(monomial: Monomial, factor: int) -> str:
            names = [_spell(atom) for atom in monomial]
            return "*".join(([str(factor)] if factor != 1 or not names else []) + names)

        if not self._text:
            terms = sorted(self.terms.items(), key=lambda term: _rank(term[0]))
            self._text = " + ".join(show(*term) for term in terms)
        return self._text

    __repr__ = __str__


def _single_division(numerator: Expr) -> tuple[tuple[Expr, int], int] | None:
    """((n, d), c) if the numerator is ``n//d + c``."""
    terms = dict(numerator.terms)
    constant = terms.pop((), 0)
    if len(terms) == 1:
        ((monomial, factor),) = terms.items()
        if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], tuple):
            return monomial[0], constant
    return None


Dim: TypeAlias = int | Expr
Shape = tuple[Dim, ...]


def _terms(value: Dim) -> dict[Monomial, int]:
    return value.terms if isinstance(value, Expr) else ({(): value} if value else {})


def _normal(terms: dict[Monomial, int]) -> Dim:
    terms = {monomial: factor for monomial, factor in terms.items() if factor}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Expr(terms)


def symbol(name: str) -> Expr:
    """A named size."""
    return Expr({(name,): 1})


def unknown() -> Expr:
    """A size about which nothing is known: equal to itself only."""
    global _made
    _made += 1
    return symbol(f"{_NAMELESS}{_made}")


def unknowns_made() -> int:
    """Number of sizes that :func:`unknown` has made so far."""
    return _made


def name_unknown(dim: Dim, name: str, named: dict[Atom, Expr]) -> Dim:
    """A size that :func:`unknown` made gets a name of its own, so that whoever looks again finds the same size.

    Args:
        dim: any dim; only one with a nameless size in it changes.
        name: what to call it.
        named: the nameless sizes that have a name already; takes this one.
    """
    if not isinstance(dim, Expr) or not any(_nameless(atom) for atom in atoms(dim)):
        return dim
    ((monomial, factor), *rest) = dim.terms.items()
    alone = not rest and factor == 1 and len(monomial) == 1
    return named.setdefault(monomial[0], symbol(f"?{name}")) if alone else symbol(f"?{name}")


def _nameless(atom: Atom) -> bool:
    return isinstance(atom, str) and atom.startswith(_NAMELESS)


def atoms(dim: Dim) -> Iterator[Atom]:
    """All that a dim is made of, sizes inside of divisions too."""
    for monomial in dim.terms if isinstance(dim, Expr) else ():
        for atom in monomial:
            yield atom
            if not isinstance(atom, str):
                yield from atoms(atom[0])


def is_known(dim: Dim) -> bool:
    """Whether the dim is free of unknown sizes."""
    if isinstance(dim, int):
        return True
    atoms = (atom for monomial in dim.terms for atom in monomial)
    return all(not a.startswith("?") if isinstance(a, str) else is_known(a[0]) for a in atoms)


def symbols(dim: Dim) -> set[str]:
    """The named sizes in a dim."""
    return {atom for atom in atoms(dim) if isinstance(atom, str)}


def is_natural(dim: Dim) -> bool:
    """Whether the dim is certainly not negative; named sizes are at least 1, unknown ones at least 0."""
    bound = _least(dim)
    return bound is not None and bound >= 0


def _least(dim: Dim) -> int | None:
    """A lower bound of the dim, if there is a simple one."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms.items():
        if factor < 0 and monomial:
            return None
        for atom in monomial:
            bound = int(not atom.startswith("?")) if isinstance(atom, str) else _least(atom[0])
            if bound is None:
                return None
            factor *= bound if isinstance(atom, str) else bound // atom[1]
        total += factor
    return total


def preference(dim: Dim) -> tuple[bool, int]:
    """Sorts expressions of one size, the most useful first: known ones, then short ones."""
    return not is_known(dim), len(str(dim))


def numbers(dims: Iterable[Dim]) -> list[int] | None:
    """The dims as plain numbers; None if one of them is not."""
    known = list(dims)
    plain = [d for d in known if isinstance(d, int)]
    return plain if len(plain) == len(known) else None


def product(dims: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def divide(total: Dim, part: Dim) -> Dim | None:
    """``total / part`` where that is a polynomial with whole coefficients, else None."""
    if part == 0:
        return None
    divisor, factor = _leading(part)
    quotient: Dim = 0
    while total != 0:  # long division: each round takes the leading term away
        monomial, coefficient = _leading(total)
        left = _without(monomial, divisor)
        if left is None or coefficient % factor:
            return None
        term = _normal({left: coefficient // factor})
        quotient, total = quotient + term, total - term * part
    return quotient


def _leading(dim: Dim) -> tuple[Monomial, int]:
    """The first term in graded lexicographic order, which products keep."""
    return min(_terms(dim).items(), key=lambda term: _rank(term[0]))


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """``monomial / divisor``, or None if a factor is missing."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


class Equalities:
    """Equalities that a graph implies between its sizes: the inputs of a Concat agree along the other axes."""

    def __init__(self) -> None:
        self._rules: dict[Atom, tuple[int, Dim]] = {}
        self._known: dict[Expr, Dim] = {}

    def learn(self, a: Dim, b: Dim) -> Atom | None:
        """Take ``a == b`` as given; an unknown, or else the longer one, is written as the other from now on.

        Returns:
            What is written otherwise from now on; None if nothing is.
        """
        better, worse = sorted((self.apply(a), self.apply(b)), key=preference)
        terms = dict(_terms(worse))
        constant = terms.pop((), 0)
        if len(terms) != 1 or worse == better:
            return None
        ((monomial, factor),) = terms.items()
        if len(monomial) != 1 or monomial[0] in atoms(better):
            return None
        self._rules[monomial[0]] = (factor, better - constant)
        self._rules = {atom: (factor, self._rewrite(value)) for atom, (factor, value) in self._rules.items()}
        self._known.clear()
        return monomial[0]

    def apply(self, dim: Dim) -> Dim:
        """``dim`` in the shortest form that is known."""
        if not isinstance(dim, Expr) or not self._rules:
            return dim
        if dim not in self._known:
            self._known[dim] = self._rewrite(dim)
        return self._known[dim]

    def _rewrite(self, dim: Dim) -> Dim:
        total: Dim = 0
        for monomial, coefficient in _terms(dim).items():
            term: Dim = 1
            for atom in monomial:
                factor, value = self._rules.get(atom, (0, 0))
                if factor and coefficient % factor == 0:
                    coefficient, term = coefficient // factor, term * value
                else:
                    term = term * Expr({(atom,): 1})
            total = total + term * coefficient
        return total
