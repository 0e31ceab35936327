"""Replicas on Ray as the engines of a server: each is an actor with a GPU.

They are actors of Ray and not Ray Serve's deployments, which are such actors behind a proxy, a controller and queues of
their own: docs/guide/service.md has the numbers. A replica that dies is replaced by the engine, and its images are
drawn again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sdort.batches.carried_tuning import pack_tuning
from sdort.batches.part import WorkerDeathError
from sdort.batches.ray_cluster import LOCAL, MOST_IN_A_ROW, connected, find_places
from sdort.console import warn_once
from sdort.errors import ProviderError, SdortError
from sdort.errors.plain_text import library_reason
from sdort.generation.job import Job
from sdort.generation.requests.record import StageSeconds
from sdort.generation.requests.typed_options import PreviewOptions
from sdort.providers.runtime_options import RuntimeOptions
from sdort.serving.engine import Take
from sdort.serving.logs import log
from sdort.serving.replica import Carried, Done, Replica, Step
from sdort.serving.served_model import ServedModel

_LOOK = 0.2
"""Seconds from one look at a job's event to the next."""
_CALLS = 8
"""Calls of a replica at once: two that draw, one that waits for its death, and those that cancel."""


class RayEngine:
    """A replica, and the next one where it dies.

    Args:
        ray: Ray, connected.
        kind: the actor's class with its resources.
        arguments: of :class:`Replica`.
    """

    def __init__(self, ray: Any, kind: Any, arguments: Sequence[Any], *, has_second: bool) -> None:
        self._ray, self._kind, self._arguments, self.has_second = ray, kind, arguments, has_second
        self._turn = threading.RLock()
        self._actor: Any = None
        self._life: Any = None
        """A call that ends with the actor."""
        self._deaths = dict.fromkeys(MOST_IN_A_ROW, 0)
        self._mended = False
        self._numbers = itertools.count()

    def start(self) -> bool:
        """As :meth:`sdort.serving.engine.Engine.start`.

        Raises:
            ProviderError: replicas die one after the other.
        """
        with self._turn:
            is_new = False
            if self._actor is not None and self._ray.wait([self._life], timeout=0)[0]:
                self._bury(self._actor, "its process ended")
            while self._actor is None:
                actor = self._kind.remote(*self._arguments)
                try:
                    found = self._ray.get(actor.open.remote())
                except self._ray.exceptions.RayTaskError:  # a fault of sdort's, as without replicas
                    raise
                except self._ray.exceptions.RayError as error:
                    self._count(False, library_reason(error))
                    continue
                if isinstance(found, SdortError):
                    raise found
                for warning in found.warnings:
                    warn_once(warning)
                log("replica", provider=found.provider)
                self._deaths[False] = 0
                self._actor, self._life, self._mended = actor, actor.live.remote(), False
                is_new = True
            return is_new

    def draw(self, model: ServedModel, job: Job, take: Take, *, new_size: bool = False) -> StageSeconds:
        """As :meth:`sdort.serving.engine.Engine.draw`.

        Raises:
            WorkerDeathError: the replica died.
        """
        self.start()
        actor, number, cancelled = self._actor, next(self._numbers), False
        previews = job.previews.preview_every if job.previews.on_preview else None
        plain = replace(job, on_progress=None, cancel=None, previews=PreviewOptions())
        try:
            told = actor.draw.options(num_returns="streaming").remote(number, model.name, plain, previews, new_size)
            while True:
                if job.cancel and job.cancel.is_set() and not cancelled:
                    cancelled = True
                    actor.cancel.remote(number)
                if not self._ray.wait([told], timeout=_LOOK)[0]:
                    continue
                found = self._ray.get(next(told))
                if isinstance(found, SdortError):
                    raise found
                if isinstance(found, StageSeconds):
                    self._deaths[True], self._mended = 0, False
                    return found
                if isinstance(found, Done):
                    take(*found)
                elif isinstance(found, Step):
                    if job.on_progress:
                        job.on_progress(*found)
                elif job.previews.on_preview:
                    job.previews.on_preview(found)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            reason = library_reason(error)
            self._bury(actor, reason)
            raise WorkerDeathError(f"the worker died: {reason}") from error

    def mend(self, model: ServedModel) -> None:
        """As :meth:`sdort.serving.engine.Engine.mend`; another process takes its place where that did not help."""
        with self._turn:
            if self._actor is not None and self._mended:
                self._ray.kill(self._actor)
                self._actor = None
            elif self._actor is not None:
                self._actor.mend.remote(model.name)
                self._mended = True

    def close(self) -> None:
        """As :meth:`sdort.serving.engine.Engine.close`."""
        with self._turn:
            if self._actor is not None:
                self._ray.kill(self._actor)
                self._actor = None

    def _bury(self, actor: Any, reason: str) -> None:
        """Let the next call start another actor."""
        with self._turn:
            if self._actor is actor:
                self._actor = None
                self._count(True, reason)

    def _count(self, was_open: bool, reason: str) -> None:
        """Count a death.

        Raises:
            ProviderError: there were too many, and no image between them.
        """
        log("a replica died", reason=reason)
        self._deaths[was_open] += 1
        if self._deaths[was_open] >= MOST_IN_A_ROW[was_open]:
            doing = "without an image between" if was_open else "before they had the pipelines open"
            raise ProviderError(f"{self._deaths[was_open]} workers died one after the other {doing}: {reason}")


@contextmanager
def ray_engines(
    address: str, workers: int | None, models: Sequence[ServedModel], runtime: RuntimeOptions, batches: Sequence[int]
) -> Iterator[list[RayEngine]]:
    """Engines on a cluster, which is given back with the block.

    Raises:
        ProviderError: there is no Ray at the address, or no GPU.
        UsageError: there is no room for so many workers.
    """
    with connected(address, runtime, workers) as ray:
        places = find_places(ray, runtime, workers)
        carried = [
            Carried(
                model.name,
                model.folder.path,
                model.folder.model_hash,
                model.sizes,
                None if address == LOCAL else pack_tuning(model.folder),
            )
            for model in models
        ]
        kind = ray.remote(Replica).options(max_concurrency=_CALLS, **places.resources)
        arguments = (ray.put(carried), places.runtime, [*batches])
        yield [RayEngine(ray, kind, arguments, has_second=not runtime.graph) for _ in range(places.count)]
