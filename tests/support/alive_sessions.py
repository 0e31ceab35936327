"""The sessions that live while others are made, and runs whose models are loaded in turn held against other runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx

import sdort
from sdort.generation.denoising.session_groups import PICTURES, group_of
from sdort.runtime import opener
from sdort.runtime import session as runtime_session
from sdort.runtime.session import Session

BESIDE = ("scheduler", "controls")
"""Small models of sdort's own, which go with the UNet."""


class Alive:
    """The sessions that were made in a block of :func:`watching`."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Session]] = []
        self.together: list[set[str]] = []
        """At each making the components whose sessions were alive, the new one among them."""
        self.unets: list[int] = []
        """At each making the UNets of several pipelines."""

    def see(self, session: Session) -> None:
        if session.path.name in BESIDE or session.component in BESIDE:
            return
        self._made.append(weakref.ref(session))
        self.together.append(self.now)
        self.unets.append(len({each.path for each in self._alive if each.component == "unet"}))

    @property
    def _alive(self) -> list[Session]:
        return [session for session in (made() for made in self._made) if session is not None]

    @property
    def now(self) -> set[str]:
        """The components whose sessions are alive."""
        return {session.component for session in self._alive}


@contextmanager
def watching() -> Iterator[Alive]:
    """A block whose sessions are watched."""
    found, begin = Alive(), Session.__init__

    def init(self: Session, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        found.see(self)

    with patch.object(Session, "__init__", init):
        yield found


class OpenParts:
    """The parts of denoisers whose ONNX Runtime sessions were opened in a block of :func:`watching_parts`."""

    def __init__(self) -> None:
        self._opened: list[tuple[str, weakref.ref[Any]]] = []
        self.together: list[list[str]] = []
        """At each opening the parts that were open, the new one last."""

    def see(self, part: str, ort: Any) -> None:
        self._opened.append((part, weakref.ref(ort)))
        self.together.append(self.now)

    @property
    def now(self) -> list[str]:
        """The parts that are open, in the order in which they were opened."""
        return [part for part, ort in self._opened if ort() is not None]


@contextmanager
def watching_parts() -> Iterator[OpenParts]:
    """A block in which the parts of denoisers are watched: ``time``, ``prompt`` and ``step``; ``whole`` and ``shallow``
    of a step that is cut."""
    found, create = OpenParts(), opener.create_session

    def created(model: Any, *given: Any, **named: Any) -> Any:
        ort = create(model, *given, **named)
        if isinstance(model, bytes):
            name = onnx.load_from_string(model).graph.name.rpartition(".")[2]
            if name in ("time", "prompt", "step", "whole", "shallow"):
                found.see(name, ort)
        return ort

    with patch.object(runtime_session, "create_session", created):
        yield found


def in_turn(normal: sdort.Pipeline, low: sdort.Pipeline, prompt: Any, **options: Any) -> dict[str, int]:
    """How often each model is loaded by a pipeline with low memory, whose images are those of the other one.

    The sessions of one group alone live at a time, and none afterwards.
    """
    expected = normal.generate(prompt, **options)
    with watching() as alive:
        found = low.generate(prompt, **options)
    assert len(found.images) == len(expected.images) > 0
    for first, second in zip(expected.images, found.images, strict=True):
        assert first.seed == second.seed
        np.testing.assert_array_equal(first.pixels, second.pixels)
    assert alive.together
    assert [each for each in alive.together if len(set(map(_group, each))) > 1] == []
    assert max(alive.unets) == 1, "a refiner's is beside the base's"
    assert alive.now == set()
    assert (expected.memory, found.memory) == ("normal", "low")
    return {each.component: each.times for each in found.opened}


def _group(component: str) -> str:
    return PICTURES if component == "upscaler" else group_of(component)
