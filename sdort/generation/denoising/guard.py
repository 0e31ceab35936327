"""The guard against stages that give NaN or nothing at all: they run again in the next safer precision.

The safer graph is made on the spot from the one that is open (:mod:`sdort.passes.widen`): the fp16 weights on disk
serve it too. So it needs no other file, no original and no network, it is there for pipelines that others optimized,
and it cannot be of another state than the pipeline. diffusers does the same with the decoder of Stable Diffusion XL.
What fp16 lost from weights that are too small for it does not come back: ``sdort optimize --fp16 auto`` keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from sdort.console import warn
from sdort.errors import ParityError, SdortError
from sdort.families.component_names import DECODER, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.families.known_families import DENOISERS, TEXT_ENCODERS
from sdort.generation.denoising.running_controls import RunningControls
from sdort.graph.signature import Array
from sdort.passes.widen import Select, all_nodes, attention_nodes, widen_file
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, SessionPlace, open_again

SAFER: dict[str, tuple[tuple[str, Select], ...]] = {
    **dict.fromkeys(TEXT_ENCODERS, (("all of it", all_nodes),)),
    **dict.fromkeys(DENOISERS, (("its attention", attention_nodes), ("all of it", all_nodes))),
    ENCODER: (("all of it", all_nodes),),
    IMAGE_ENCODER: (("all of it", all_nodes),),
    SAFETY_CHECKER: (("all of it", all_nodes),),
    DECODER: (("all of it", all_nodes),),
}
"""Component -> nodes to compute in fp32, the cheapest choice that may help first."""

T = TypeVar("T")


class Guard:
    """Replaces the sessions of a pipeline by safer ones, where they fail.

    ``widened`` says what is in fp32 by now, by component.

    Args:
        sessions: the pipeline's, by component; they are exchanged in place.
        controls: what steers its UNet, and is tried before the UNet itself.
        release: called with a component whose session is to be replaced, before the next one is opened.
    """

    def __init__(
        self,
        sessions: MutableMapping[str, Session],
        controls: RunningControls | None = None,
        release: Callable[[str], None] | None = None,
    ) -> None:
        self.sessions = sessions
        self._controls = controls
        self._release = release
        self.widened: dict[str, str] = {}
        self._left = {name: list(steps) for name, steps in SAFER.items()}
        self._chosen: dict[str, Select] = {}

    def run(self, component: str, work: Callable[[], T], problem_of: Callable[[T], str | None]) -> T:
        """The result of a stage, done again until there is no problem or nothing safer.

        Args:
            work: the stage; it takes its session from ``sessions`` anew each time.
            problem_of: what is wrong with a result, None if nothing is.

        Raises:
            ParityError: the last try failed too.
        """
        while True:
            try:
                result = work()
                problem, error = problem_of(result), None
            except ParityError as raised:
                problem, error = raised.message, raised
            if problem is None:
                return result
            if not self.step(component, problem):
                raise error or ParityError(problem, component=component)

    def step(self, component: str, problem: str) -> bool:
        """Open the next safer session of a component and say so; False if there is none."""
        if component in DENOISERS and self._controls and self._widen_controls(component, self._controls, problem):
            return True
        place, options = self.sessions[component].place, self.sessions[component].options
        while self._left[component]:
            what, select = self._left[component].pop(0)
            if self._release:
                self._release(component)
            session = _open(place, select, options)
            if session is not None:
                self.sessions[component] = session
                self.widened[component] = what
                self._chosen[component] = select
                _say(component, problem, what)
                return True
        return False

    def _widen_controls(self, component: str, controls: RunningControls, problem: str) -> bool:
        """Compute what steers the UNet in fp32; False if nothing of it is left that is not.

        The UNet's dead latents are the next input of a ControlNet, so that afterwards nothing tells which was first.
        """
        opened = controls.exchange(lambda session: _open(session.place, all_nodes, session.options))
        for session in opened:
            self.widened[session.component] = "all of it"
        if opened:
            _say(component, problem, "all of " + " and ".join(sorted({session.component for session in opened})))
        return bool(opened)

    def reopened(self, place: SessionPlace, options: RuntimeOptions) -> Session | None:
        """A session with other options, and with the same nodes in fp32; None where none are, or it does not load."""
        select = self._chosen.get(place.component)
        return _open(place, select, options) if select else None


def _say(component: str, problem: str, what: str) -> None:
    warn(
        f"{component}: {problem}. It is done again with {what} in fp32, which takes longer. "
        "What needs no second try:\n    sdort optimize IN OUT --fp16 auto"
    )


def dead(values: Array) -> str | None:
    """The reason why values are worthless: not finite, or the same everywhere; None if they may be right."""
    if not np.isfinite(values).all():
        return "it gave NaN or infinite values"
    return "it gave the same value everywhere" if values.min() == values.max() else None


def _open(place: SessionPlace, select: Select, options: RuntimeOptions) -> Session | None:
    """A session on the same weights with part of the graph in fp32; None if that part is no fp16, or does not load."""
    # Its shapes and addresses are others than those that a graph of the device was recorded for.
    options = replace(options, graph=False)
    try:
        proto = widen_file(place.path, select, place.component)
        if proto is None:
            return None
        return open_again(place, options, proto)
    except SdortError as error:
        warn(f"{place.component}: no safer precision could be tried: {error.message}")
        return None
