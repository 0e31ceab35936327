"""Ray: a cluster that runs, or one that is started on this machine, and the places that it has for workers."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from sdort.batches.worker import refuse_rocr
from sdort.errors import ProviderError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.machine.gpus import visible_amd_gpus
from sdort.machine.optional_packages import SCALING, need_packages
from sdort.machine.system import System
from sdort.providers import AUTO, PROVIDERS
from sdort.providers.runtime_options import RuntimeOptions

LOCAL = "local"
"""The address of a Ray that is started on this machine for one command, and ends with it."""
MOST_IN_A_ROW = {False: 3, True: 12}
"""Workers that may die one after the other without any image between: before they have the pipeline open, and after."""
_OBJECT_STORE = 256 << 20
"""Bytes of shared memory for images on their way; what is more goes through the disk."""
_REACHED = 10.0
"""Seconds in which a cluster's address has to answer."""


@dataclass(frozen=True)
class Places:
    """Room for workers.

    Attributes:
        count: of workers.
        runtime: that each of them has.
        resources: that Ray gives each of them.
    """

    count: int
    runtime: RuntimeOptions
    resources: Mapping[str, int]


def find_places(ray: Any, runtime: RuntimeOptions, asked: int | None) -> Places:
    """The workers that a cluster has room for: one a GPU, or a share of the CPUs.

    Args:
        asked: how many the caller wants; by default one a GPU, and without GPUs one a machine.

    Raises:
        ProviderError: the provider runs on GPUs, and Ray knows none.
        UsageError: there is no room for so many.
    """
    gpus = 0 if runtime.provider == "cpu" else int(ray.cluster_resources().get("GPU", 0))
    if not gpus and runtime.provider not in ("cpu", AUTO):
        raise ProviderError(
            f"Ray knows no GPU, and {runtime.provider} runs on one",
            hint="Start its nodes with the number of their GPUs: ray start --num-gpus N.",
        )
    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    most = gpus or int(sum(nodes))
    count = asked or gpus or len(nodes)
    if count > most:
        raise UsageError(
            f"--workers {count}: Ray has {most} {'GPU' if gpus else 'CPU'}{'s' * (most != 1)}, one for each worker",
            hint=f"Ask for {most} at most.",
        )
    if gpus:
        return Places(count, runtime, {"num_gpus": 1, "num_cpus": 0})
    share = max(1, int(min(sum(nodes) / count, *nodes)))
    return Places(count, replace(runtime, threads=share), {"num_gpus": 0, "num_cpus": share})


@contextmanager
def connected(address: str, runtime: RuntimeOptions, workers: int | None) -> Iterator[Any]:
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
