"""A running `sdort serve`, and requests that arrive at given times, whatever the server does; no program of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

CONNECTIONS = 256
"""Requests under way at once. One more waits here, and its latency counts from when it was due."""
_POLL = 0.01


@dataclass(frozen=True)
class Answers:
    """What came of requests, in the order in which they were due."""

    latencies: NDArray[np.float64]
    """float64 [n]: seconds from when a request was due to its image; infinite for one that failed."""
    problems: list[str]
    """Of those that failed, in words."""
    seconds: float
    """From the first request's time to the last answer."""

    @property
    def per_second(self) -> float:
        """Images a second."""
        return int(np.isfinite(self.latencies).sum()) / self.seconds

    def within(self, percent: int) -> float:
        """Seconds within which a share of requests is answered: one of the latencies, as LoadGen takes it."""
        ordered = np.sort(self.latencies)
        return float(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)])


def poisson_times(count: int, rate: float, seed: int) -> NDArray[np.float64]:
    """float64 [count]: seconds at which requests of a Poisson process arrive, the first one at 0.

    Args:
        rate: requests a second.
    """
    times: NDArray[np.float64] = np.random.default_rng(seed).exponential(1 / rate, count).cumsum()
    times -= times[0]
    return times


def ask_in_time(url: str, bodies: Sequence[dict[str, Any]], due: NDArray[np.float64], timeout: float) -> Answers:
    """Ask a server for an image of each body, at OpenAI's endpoint.

    Args:
        bodies: JSON.
        due: float64 [n]: seconds from now, ascending.
        timeout: seconds without an answer after which a request has failed.
    """
    started = time.perf_counter()
    problems = list[str]()

    def ask(body: dict[str, Any], at: float) -> float:
        request = Request(
            f"{url}/v1/images/generations", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urlopen(request, timeout=timeout) as answer:
                json.load(answer)["data"][0]["b64_json"]
        except (OSError, ValueError, LookupError) as error:
            problems.append(str(error))
            return np.inf
        return time.perf_counter() - started - at

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        asked = []
        for body, at in zip(bodies, due, strict=True):
            time.sleep(max(0.0, at - (time.perf_counter() - started)))
            asked.append(pool.submit(ask, body, at))
        latencies = np.array([each.result() for each in asked])
    return Answers(latencies, problems, time.perf_counter() - started)


class Served(NamedTuple):
    """A server: where it answers, and the number of its process."""

    url: str
    process: int


@contextmanager
def served(pipeline: str | Path, *options: str) -> Iterator[Served]:
    """A server of its own that is ready; it ends with the block.

    Args:
        options: of ``sdort serve``.
    """
    command = [sys.executable, "-m", "sdort", "serve", str(pipeline), "--port", "0", "--queue", str(CONNECTIONS)]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,
        subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=log) as server,
    ):
        try:
            while not (url := _ready(log)):
                if server.poll() is not None:
                    log.seek(0)
                    sys.exit(f"sdort serve ended:\n{log.read()}")
                time.sleep(_POLL)
            yield Served(url, server.pid)
        finally:
            server.terminate()


def _ready(log: Any) -> str | None:
    log.seek(0)
    found = re.search(r"listening at (\S+)", log.read())
    if not found:
        return None
    try:
        with urlopen(f"{found[1]}/ready"):
            return found[1]
    except OSError:
        return None
