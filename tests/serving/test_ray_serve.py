"""A server whose workers are Ray's: the same answers as without them, whatever dies meanwhile."""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from support.serving import Running, pixels, running

import sdort
from sdort.batches import worker
from sdort.batches.ray_cluster import LOCAL, connected
from sdort.batches.worker import Ready
from sdort.cli import cli
from sdort.errors import BadModelError, ProviderError, UsageError
from sdort.pipelines.folder import open_folder
from sdort.providers.runtime_options import RuntimeOptions
from sdort.serving import ray_engine
from sdort.serving.ray_engine import RayEngine
from sdort.serving.replica import Carried, Replica

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install ray")

OPTIONS: dict[str, Any] = {"ray": "local", "workers": 2, "any_size": True, "batch_wait": 0.02}


@pytest.fixture(scope="module")
def own_ray() -> Iterator[Any]:
    """A Ray of two CPUs, which all servers of this process then use."""
    with connected(LOCAL, RuntimeOptions("cpu"), 2) as ray:
        yield ray


def until(found: Any, seconds: float = 60.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def sound(served: Running) -> int:
    return served.service.worker.sound


def answer(served: Running, prompt: str, **body: Any) -> Any:
    return served.post("/v1/images/generations", prompt=prompt, **{"steps": 8, "seed": 5, **body})


def drawn(answer: Any) -> Any:
    """The pixels of an answer's image."""
    assert answer.status_code == 200, answer.text
    (image,) = answer.json()["data"]
    return pixels(base64.b64decode(image["b64_json"]))


@with_ray
def test_a_worker_that_is_killed_loses_no_request(own_ray: Any, pipeline: Path) -> None:
    with running(pipeline, **OPTIONS) as served, ThreadPoolExecutor(16) as pool:
        until(lambda: sound(served) == 2)
        served.client.get("/ready").raise_for_status()
        (event,) = [data for name, data in served.events(served.draw(prompt="a cat", seed=7)) if name == "image"]
        with sdort.load(pipeline, provider="cpu") as own:
            (expected,) = own.generate("a cat", steps=2, seed=7, height=64, width=64).images
        image = pixels(served.client.get(event["url"]).content)
        np.testing.assert_allclose(image, expected.pixels.astype(int), atol=1)

        before = [drawn(answer(served, str(number))) for number in range(2)]
        asked = [pool.submit(answer, served, str(number % 2)) for number in range(16)]
        until(lambda: served.service.worker.sound == 2 and any(lane.batch for lane in served.service.worker._lanes))
        replicas = [each for each in psutil.Process().children(recursive=True) if each.name() == "ray::Replica"]
        assert len(replicas) == 2
        replicas[0].kill()
        for number, each in enumerate(asked):
            np.testing.assert_allclose(drawn(each.result(60)), before[number % 2], atol=1)
        until(lambda: sound(served) == 2)
        assert "sdort_workers 2.0" in served.client.get("/metrics").text

        # Another size; a drawing that is given up ends on its worker.
        assert answer(served, "wide", size="128x64").status_code == 200
        long = served.draw(prompt="long", steps=100, num_images=8)
        until(lambda: served.service.drawings[long].progress[0] > 0)
        assert served.client.delete(f"/api/images/{long}").status_code == 204
        until(lambda: not any(lane.batch for lane in served.service.worker._lanes), 5)
        # Why nothing is drawn is told as without workers, and is no fault of the worker's.
        failed = answer(served, "uneven", size="60x60")
        assert (failed.status_code, "mismatched dimensions" in failed.text, sound(served)) == (500, True, 2)


@with_ray
def test_an_image_that_kills_its_workers_is_given_up_and_those_beside_it_are_drawn(
    own_ray: Any, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mortal(Replica):
        """Its process is killed by a prompt."""

        def draw(self, number: int, model: str, job: Any, *more: Any) -> Any:
            if any(request.prompt == "poison" for request in job.requests):
                os.kill(os.getpid(), signal.SIGKILL)
            yield from super().draw(number, model, job, *more)

    monkeypatch.setattr(ray_engine, "Replica", Mortal)
    with running(pipeline, **{**OPTIONS, "workers": 1, "batch_wait": 0.3}) as served, ThreadPoolExecutor(3) as pool:
        answers = [*pool.map(lambda prompt: answer(served, prompt), ("a", "poison", "b"))]
        assert [each.status_code for each in answers] == [200, 500, 200]
        assert "the worker died" in answers[1].json()["detail"]


def test_a_replica_opens_the_servers_own_pipeline(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_own_gpus", list)
    unpacked: list[bytes] = []
    monkeypatch.setattr(worker, "unpack_tuning", unpacked.append)
    carried = Carried("tiny", pipeline, open_folder(pipeline).model_hash, [(64, 64)], b"bundles")
    assert Replica([carried], RuntimeOptions("cpu"), [1]).open() == Ready("cpu", [])
    assert unpacked == [b"bundles"]
    other = Replica([Carried("tiny", pipeline, "0", [(64, 64)], None)], RuntimeOptions("cpu"), [1]).open()
    assert isinstance(other, BadModelError)
    assert "is another pipeline than here" in other.message


class RayError(Exception):
    pass


def engine(opens: Any) -> RayEngine:
    """An engine whose replicas open as is said."""
    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=AssertionError)
    ray = SimpleNamespace(exceptions=exceptions, get=lambda call: call(), wait=lambda calls, timeout: ([], calls))
    actor = SimpleNamespace(open=SimpleNamespace(remote=lambda: opens), live=SimpleNamespace(remote=lambda: None))
    return RayEngine(ray, SimpleNamespace(remote=lambda *_: actor), (), has_second=True)


def test_replicas_that_do_not_open_end_their_engine() -> None:
    def dies() -> Any:
        raise RayError("no memory")

    with pytest.raises(ProviderError, match="3 workers died one after the other before they had the pipe"):
        engine(dies).start()
    with pytest.raises(BadModelError, match="broken"):
        engine(lambda: BadModelError("broken")).start()
    deaths = iter([RayError("once"), Ready("cpu", [])])

    def dies_once() -> Any:
        if isinstance(found := next(deaths), Exception):
            raise found
        return found

    once = engine(dies_once)
    assert [once.start(), once.start()] == [True, False]  # the second time it is open


def test_what_workers_need_is_said_before_anything_starts(pipeline: Path) -> None:
    result = CliRunner().invoke(cli, ["serve", str(pipeline), "--workers", "2"])
    assert (result.exit_code, "--workers needs --ray" in result.output) == (2, True)
    if find_spec("ray"):
        with pytest.raises(UsageError, match="leave out --device-id 1"):
            sdort.serve(pipeline, ray="local", device_id=1, provider="cpu")
