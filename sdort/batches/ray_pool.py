"""Workers of a batch as actors of Ray, on this machine or on a cluster.

The driver alone has the journal and the folder. It hands each worker two parts at a time, the one that is drawn and the
next, and reads no further in the file of prompts than that: what is in flight is bounded by the number of workers. A
worker whose process ends is replaced, and its parts are drawn again. Ray's own restarts are not used: they do not tell
which part was under way.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sdort.batches.carried_tuning import pack_tuning
from sdort.batches.part import MOST_DEATHS, Part, WorkerDeathError
from sdort.batches.worker import Answer, Worker, refuse_rocr
from sdort.console import say, warn, warn_once
from sdort.errors import ProviderError, SdortError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.machine.gpus import visible_amd_gpus
from sdort.machine.optional_packages import SCALING, need_packages
from sdort.machine.system import System
from sdort.pipelines.folder import PipelineFolder
from sdort.providers import AUTO, PROVIDERS
from sdort.providers.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from typing_extensions import Self

LOCAL = "local"
"""The address of a Ray that is started on this machine for the batch, and ends with it."""
OF_A_PART = 8
"""Images of a part: two calls of the UNet by default. All of a part are drawn again where its worker dies."""
AHEAD = 2
"""Parts that a worker has at a time: the one that it draws, and the next."""
MOST_IN_A_ROW = {False: 3, True: 12}
"""Workers that may die one after the other without any image between: before they have the pipeline open, and after."""
_OBJECT_STORE = 256 << 20
"""Bytes of shared memory for images on their way; what is more goes through the disk."""
_REACHED = 10.0
"""Seconds in which a cluster's address has to answer."""
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
        self._ray = self._open.enter_context(_connected(self._address, self._runtime, self._asked))
        resources = self._ray.cluster_resources()
        gpus = 0 if self._runtime.provider == "cpu" else int(resources.get("GPU", 0))
        if not gpus and self._runtime.provider not in ("cpu", AUTO):
            raise ProviderError(
                f"Ray knows no GPU, and {self._runtime.provider} runs on one",
                hint="Start its nodes with the number of their GPUs: ray start --num-gpus N.",
            )
        nodes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        most = gpus or int(sum(nodes))
        count = self._asked or gpus or len(nodes)
        if count > most:
            raise UsageError(
                f"--workers {count}: Ray has {most} {'GPU' if gpus else 'CPU'}{'s' * (most != 1)}, one for each worker",
                hint=f"Ask for {most} at most.",
            )
        runtime, resources = self._runtime, {"num_gpus": 1, "num_cpus": 0}
        if not gpus:
            share = max(1, int(min(sum(nodes) / count, *nodes)))
            runtime, resources = replace(runtime, threads=share), {"num_gpus": 0, "num_cpus": share}
        kind = self._ray.remote(Worker).options(**resources)
        tuning = None if self._address == LOCAL else self._ray.put(pack_tuning(self._folder))

        def start() -> _Member:
            actor = kind.remote(self._folder.path, self._folder.model_hash, runtime, self._image_format)
            return _Member(actor, actor.open.remote(tuning))

        self._start = start
        self._members = [start() for _ in range(count)]

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


@contextmanager
def _connected(address: str, runtime: RuntimeOptions, workers: int | None) -> Iterator[Any]:
    """Ray, which ends with the block unless the program has started it before.

    Raises:
        ProviderError: there is no cluster at the address.
    """
    with _environment(address):
        import ray

        if ray.is_initialized():
            yield ray
            return
        own: dict[str, Any] = {"address": address}
        with ExitStack() as stack:
            if address == LOCAL:
                # Below /tmp: the names of its sockets have at most 107 bytes.
                place = stack.enter_context(
                    TemporaryDirectory(prefix="sdort-ray-", dir="/tmp", ignore_cleanup_errors=True)
                )
                own |= {"num_cpus": max(workers or 1, os.cpu_count() or 1), "num_gpus": _gpus(runtime)}
                own |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE, "_temp_dir": place}
            before = signal.getsignal(signal.SIGTERM)
            try:
                _reach(address)
                ray.init(**own, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, ValueError, RuntimeError) as error:
                raise ProviderError(
                    f"there is no Ray at {address}: {library_reason(error)}",
                    hint="--ray without an address starts one here; ray start --head starts one for several machines.",
                ) from error
            finally:
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, before)
            try:
                yield ray
            finally:
                ray.shutdown()


def _reach(address: str) -> None:
    """Connect to an address that names a port: Ray itself would try for many minutes.

    Raises:
        OSError, ValueError: nothing answers there, or it is no address.
    """
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), _REACHED).close()


@contextmanager
def _environment(address: str) -> Iterator[None]:
    """A block with Ray's settings of :func:`_settings`, but for those that the environment has."""
    words = _settings() if address == LOCAL else {}
    given = {name: word for name, word in words.items() if name not in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)


@cache
def _settings() -> Mapping[str, str]:
    """Settings of a Ray that is started here: it sends nobody statistics, is on the loopback interface alone, and asks
    for a token that is in no file. Ray reads them when it is imported, once for all its time in a process."""
    if "ray" in sys.modules:
        return {}
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: whether other machines may join
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


def _gpus(runtime: RuntimeOptions) -> int | None:
    """The GPUs of this machine for Ray; None for those of NVIDIA, which it finds itself."""
    if runtime.provider == "cpu":
        return 0
    vendor = "amd" if runtime.provider == AUTO else PROVIDERS[runtime.provider].vendor
    return (visible_amd_gpus(System()) or None) if vendor == "amd" else None


def check_workers(runtime: RuntimeOptions) -> None:
    """Refuse what keeps a batch from workers, before anything is made.

    Raises:
        MissingPackageError: Ray is not installed.
        UsageError: the options of the runtime name a GPU, or the environment numbers them otherwise than Ray.
    """
    need_packages(*SCALING, what="--ray")
    if runtime.device_id:
        raise UsageError(
            f"--ray gives each worker a GPU: leave out --device-id {runtime.device_id}",
            hint="Show the GPUs that may be used in CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES.",
        )
    if runtime.other_devices:
        raise UsageError("--ray gives each worker a GPU, and --devices an image several", hint="Leave one of them out.")
    if runtime.provider != "cpu":
        refuse_rocr(os.environ)
