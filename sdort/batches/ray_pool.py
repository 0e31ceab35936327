"""Workers of a batch as actors of Ray, on this machine or on a cluster.

The driver alone has the journal and the folder. It hands each worker two parts at a time, the one that is drawn and the
next, and reads no further in the file of prompts than that: what is in flight is bounded by the number of workers. A
worker whose process ends is replaced, and its parts are drawn again. Ray's own restarts are not used: they do not tell
which part was under way.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sdort.batches.carried_tuning import pack_tuning
from sdort.batches.part import MOST_DEATHS, Part, WorkerDeathError
from sdort.batches.ray_cluster import LOCAL, MOST_IN_A_ROW, connected, find_places
from sdort.batches.worker import Answer, Worker
from sdort.console import say, warn, warn_once
from sdort.errors import ProviderError, SdortError
from sdort.errors.plain_text import library_reason
from sdort.pipelines.folder import PipelineFolder
from sdort.providers.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from typing_extensions import Self

OF_A_PART = 8
"""Images of a part: two calls of the UNet by default. All of a part are drawn again where its worker dies."""
AHEAD = 2
"""Parts that a worker has at a time: the one that it draws, and the next."""
_PATIENCE = 20.0
"""Seconds without a worker after which that is said."""


@dataclass
class _Member:
    """A worker, and the parts that it has, in their order."""

    actor: Any
    opening: Any
    parts: dict[Any, Part] = field(default_factory=dict)
    is_ready: bool = False

    @property
    def references(self) -> list[Any]:
        return [*([] if self.is_ready else [self.opening]), *self.parts]


class RayPool:
    """Workers of one batch, which start with its first part; give back by leaving its block.

    Attributes:
        provider: of the workers; None until one is ready.
        ready_since: when the first one was, by :func:`time.perf_counter`.
    """

    def __init__(
        self, address: str, workers: int | None, folder: PipelineFolder, runtime: RuntimeOptions, image_format: str
    ) -> None:
        self._address = address
        self._asked = workers
        self._folder = folder
        self._runtime = runtime
        self._image_format = image_format
        self._open = ExitStack()
        self._start: Callable[[], _Member]
        self._members: list[_Member] = []
        self._again: deque[Part] = deque()
        self._deaths = dict.fromkeys(MOST_IN_A_ROW, 0)
        self._waited = False
        self.provider: str | None = None
        self.ready_since = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            self._ray.kill(member.actor)
        self._members = []
        self._open.close()

    def again(self, parts: Sequence[Part]) -> None:
        """Draw parts before all others."""
        self._again.extendleft(reversed(parts))

    def drawn(self, parts: Iterator[Part]) -> Iterator[tuple[Part, Answer]]:
        """Draw parts, in any order; each comes with its answer.

        Raises:
            ProviderError: there is no Ray, no GPU, or workers die of whatever they draw.
            SdortError: a worker does not open the pipeline.
        """
        while True:
            self._hand_out(parts)
            if not (self._again or any(member.parts for member in self._members)):
                return
            owners = {reference: member for member in self._members for reference in member.references}
            ready, _ = self._ray.wait([*owners], num_returns=1, timeout=_PATIENCE)
            if not ready and not self._waited and not any(member.is_ready for member in self._members):
                self._waited = True
                say("waiting for a worker: the pipeline is being opened, or the cluster is busy")
            for reference in ready:
                yield from self._received(owners[reference], reference)

    def _hand_out(self, parts: Iterator[Part]) -> None:
        """Give parts to the workers that have fewer than :data:`AHEAD`; the first part of all starts the workers."""
        while True:
            free = [member for member in self._members if member.is_ready and len(member.parts) < AHEAD]
            if self._members and not free:
                return
            part = self._again.popleft() if self._again else next(parts, None)
            if part is None:
                return
            if not self._members:
                self._begin()
                self._again.append(part)
                return
            member = min(free, key=lambda each: len(each.parts))
            member.parts[member.actor.draw.remote(part.job)] = part

    def _begin(self) -> None:
        self._ray = self._open.enter_context(connected(self._address, self._runtime, self._asked))
        places = find_places(self._ray, self._runtime, self._asked)
        kind = self._ray.remote(Worker).options(**places.resources)
        tuning = None if self._address == LOCAL else self._ray.put(pack_tuning(self._folder))

        def start() -> _Member:
            actor = kind.remote(self._folder.path, self._folder.model_hash, places.runtime, self._image_format)
            return _Member(actor, actor.open.remote(tuning))

        self._start = start
        self._members = [start() for _ in range(places.count)]

    def _received(self, member: _Member, reference: Any) -> Iterator[tuple[Part, Answer]]:
        errors = self._ray.exceptions
        try:
            found = self._ray.get(reference)
        except errors.RayTaskError:  # a fault of sdort's, as without workers
            raise
        except errors.RayError as error:
            yield from self._died(member, library_reason(error))
            return
        if isinstance(found, SdortError):
            raise found
        for warning in found.warnings:
            (warn if isinstance(found, Answer) else warn_once)(warning)
        if isinstance(found, Answer):
            self._deaths = dict.fromkeys(MOST_IN_A_ROW, 0)
            yield member.parts.pop(reference), found
            return
        member.is_ready = True
        if self.provider is None:
            self.provider, self.ready_since = found.provider, time.perf_counter()
        if self.provider != found.provider:
            warn_once(f"workers run on {self.provider} and on {found.provider}: their images may differ a little")

    def _died(self, member: _Member, reason: str) -> Iterator[tuple[Part, Answer]]:
        """Replace a worker; of its parts the first was under way."""
        self._members.remove(member)
        self._deaths[member.is_ready] += 1
        if self._deaths[member.is_ready] >= MOST_IN_A_ROW[member.is_ready]:
            doing = "without an image between" if member.is_ready else "before they had the pipeline open"
            raise ProviderError(f"{self._deaths[member.is_ready]} workers died one after the other {doing}: {reason}")
        warn(f"a worker died, and another takes its place: {reason}")
        self._members.append(self._start())
        [*parts] = member.parts.values()
        self.again(parts[1:])
        if not parts:
            return
        part = replace(parts[0], deaths=parts[0].deaths + 1)
        if part.deaths < MOST_DEATHS:
            self.again([part])
        else:
            yield part, Answer(error=WorkerDeathError(f"the workers that drew it died: {reason}"))
