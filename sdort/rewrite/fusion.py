"""A fusion: Before, After and a check, from one file of ``fusions/``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, Protocol

import onnx_graphsurgeon as gs

from sdort.graph.domains import OWN_DOMAIN
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion_names import fusion_names
from sdort.rewrite.match import Match, Refusal
from sdort.rewrite.pattern import Pattern, check_connected, parse_pattern

Variant = tuple[Pattern, Pattern]
"""Before and After."""
STAGES = ("restore", "raise", "fuse", "fuse_nhwc", "extend", "lower")


class Support(Protocol):
    """A target's answer for one node: None if it runs it, else the reason why not."""

    def unsupported(self, node: gs.Node, editor: Editor) -> str | None: ...


@dataclass(frozen=True)
class Fusion:
    """One file of ``fusions/``.

    The file defines ``STAGE``, ``BEFORE`` (one text or several variants), ``AFTER`` (one text, or one for each
    variant), ``ANCHOR`` (the operator in Before that makes a place a candidate) and ``EXAMPLE`` (sizes for the numeric
    test). It may define ``check(match)`` (returns a refusal or None), ``derive(match)`` (returns the tensors and
    attributes that After names and Before does not have), ``MUST_FUSE`` (no anchor may remain), ``concerns(editor,
    anchor)`` (whether an anchor that remains is one at all), ``RUN_AFTER`` (names of fusions of the same stage) and
    ``PROVIDERS`` (the only ones that it is for, as it was measured to be faster there; without, its operators decide).
    """

    module: ModuleType

    @property
    def name(self) -> str:
        return self.module.__name__.rpartition(".")[2]

    @property
    def stage(self) -> str:
        stage = str(self.module.STAGE)
        if stage not in STAGES:
            raise ValueError(f"{self.name}: its STAGE is {stage!r}, known are {', '.join(STAGES)}")
        return stage

    @property
    def anchor(self) -> str:
        return str(self.module.ANCHOR)

    def is_anchor(self, node: gs.Node) -> bool:
        """Whether a node makes its place a candidate."""
        domain, op = self._anchor
        return bool(node.op == op and (node.domain or "") == domain)

    @cached_property
    def _anchor(self) -> tuple[str, str]:
        """The anchor's domain and operator, which every node of a graph is compared with."""
        domain, _, op = self.anchor.rpartition(".")
        return domain, op

    @property
    def must_fuse(self) -> bool:
        return bool(getattr(self.module, "MUST_FUSE", False))

    @property
    def run_after(self) -> tuple[str, ...]:
        return tuple(getattr(self.module, "RUN_AFTER", ()))

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers that it is for; empty where their operators alone decide."""
        return tuple(getattr(self.module, "PROVIDERS", ()))

    def is_for(self, provider: str) -> bool:
        return not self.providers or provider in self.providers

    @property
    def through_casts(self) -> bool:
        """Whether Casts between floats count for nothing; only where no target's kernels are chosen yet."""
        return self.stage == "raise"

    @cached_property
    def variants(self) -> list[Variant]:
        """(Before, After) pairs, as the file states them: one After serves all Befores, and one Before all Afters."""
        befores = _texts(self.module.BEFORE)
        afters = _texts(self.module.AFTER)
        befores, afters = (
            texts * max(len(befores), len(afters)) if len(texts) == 1 else texts for texts in (befores, afters)
        )
        pairs = [(parse_pattern(b), parse_pattern(a)) for b, a in zip(befores, afters, strict=True)]
        for before, _ in pairs:
            check_connected(before)
        return pairs

    @cached_property
    def is_own(self) -> bool:
        """Whether whatever it makes has operators of sdort's own domain."""
        return all(any(node.domain == OWN_DOMAIN for node in after.nodes) for _, after in self.variants)

    @property
    def size(self) -> int:
        """The number of nodes of the largest Before."""
        return max(len(before.nodes) for before, _ in self.variants)

    @property
    def variants_by_size(self) -> list[list[Variant]]:
        """The variants in groups of one size, the largest first."""
        sizes = sorted({len(before.nodes) for before, _ in self.variants}, reverse=True)
        return [[variant for variant in self.variants if len(variant[0].nodes) == size] for size in sizes]

    def check(self, match: Match) -> Refusal | None:
        function: Callable[[Match], Refusal | None] | None = getattr(self.module, "check", None)
        return function(match) if function else None

    def concerns(self, editor: Editor, anchor: gs.Node) -> bool:
        function: Callable[[Editor, gs.Node], bool] | None = getattr(self.module, "concerns", None)
        return function(editor, anchor) if function else True

    def derive(self, match: Match) -> dict[str, Any]:
        function: Callable[[Match], dict[str, Any]] | None = getattr(self.module, "derive", None)
        return function(match) if function else {}


def _texts(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


@lru_cache(maxsize=1)
def load_fusions() -> Mapping[str, Fusion]:
    """All fusions by name, in the order in which their stage applies them: :func:`in_order`.

    Raises:
        UsageError: they are another checkout's (:func:`sdort.files.checkout.import_part`).
    """
    modules = [importlib.import_module(f"sdort.fusions.{name}") for name in fusion_names()]
    return {fusion.name: fusion for fusion in in_order(map(Fusion, modules))}


def in_order(fusions: Iterable[Fusion]) -> list[Fusion]:
    """Fusions in the order in which they are applied: each behind those of its RUN_AFTER, else the largest first.

    A smaller pattern may be part of a larger one, and would take away what that needs.
    """
    by_name = {fusion.name: fusion for fusion in sorted(fusions, key=lambda f: (-f.size, f.name))}
    ordered: dict[str, Fusion] = {}

    def place(name: str) -> None:
        if name not in ordered:
            for earlier in by_name[name].run_after:
                place(earlier)
            ordered[name] = by_name[name]

    for name in by_name:
        place(name)
    return list(ordered.values())
