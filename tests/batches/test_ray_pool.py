"""The pool of workers without Ray: workers that die, and what Ray and the machine do not have."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from support.tiny_pipeline import Tiny

from sdort.batches import ray_cluster, ray_pool, worker
from sdort.batches.carried_tuning import pack_tuning, unpack_tuning
from sdort.batches.line_files import Line
from sdort.batches.part import OF_A_LINE, Part, Wanted
from sdort.batches.ray_cluster import check_workers, connected
from sdort.batches.ray_pool import AHEAD, RayPool
from sdort.batches.worker import Answer, Drawn, Ready, Worker, refuse_rocr, show_gpus
from sdort.cli import cli
from sdort.console import SILENT, warn, warn_once
from sdort.errors import BadModelError, MissingPackageError, ProviderError, SdortError, UsageError
from sdort.generation.job import plan_job
from sdort.onnx_io.model_hash import hash_model
from sdort.pipelines.folder import open_folder
from sdort.providers import PROVIDERS
from sdort.providers.runtime_options import RuntimeOptions
from sdort.tuning.bundle import TUNABLE
from sdort.tuning.device import Machine
from sdort.tuning.key import Key
from sdort.tuning.store import Store

READY = Ready("cpu", ["the GPU is slow"])


class RayError(Exception):
    pass


class FakeRay:
    """Ray as far as the pool uses it: calls run when they are waited for, those of one actor in their order.

    Args:
        deadly: whether an actor dies of a job.
        opens: what an actor's ``open`` returns.
    """

    def __init__(self, deadly: Callable[[Any], bool], opens: Callable[[], Any] = lambda: READY, gpus: int = 0) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=AssertionError)
        self.deadly = deadly
        self.opens = opens
        self.gpus = gpus
        self.started = 0
        self.most = 0
        self.threads: list[int] = []

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4, "GPU": self.gpus}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4}}]

    def remote(self, kind: Any) -> Any:
        return SimpleNamespace(options=self.options)

    def options(self, **resources: Any) -> Any:
        self.resources = resources
        return SimpleNamespace(remote=self.actor)

    def actor(self, folder: Path, model_hash: str, runtime: RuntimeOptions, image_format: str) -> Any:
        self.started += 1
        self.threads.append(runtime.threads)
        actor = SimpleNamespace(is_dead=False, calls=[])

        def call(run: Callable[[Any], Any]) -> Any:
            def remote(given: Any) -> Any:
                actor.calls.append(SimpleNamespace(actor=actor, run=run, given=given))
                self.most = max(self.most, len(actor.calls))
                return id_of(actor.calls[-1])

            return SimpleNamespace(remote=remote)

        actor.open, actor.draw = call(lambda _: self.opens()), call(self.draw)
        return actor

    def draw(self, job: Any) -> Answer:
        if self.deadly(job):
            raise RayError("killed by a test")
        images = {number: Drawn(each.seed, each.prompt, b"", 0.1) for number, each in enumerate(job.requests)}
        return Answer(images, warnings=[f"{job.requests[0].prompt} is dark"])

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        opening = [reference for reference in references if reference.call.given is None]
        return (opening or references)[:1], []

    def get(self, reference: Any) -> Any:
        call = reference.call
        assert call.actor.calls[0] is call, "another call of the actor comes before"
        if not call.actor.is_dead:
            try:
                return call.run(call.given)
            except RayError:
                call.actor.is_dead = True
                raise
            finally:
                call.actor.calls.pop(0)
        raise RayError("its actor died")

    def kill(self, actor: Any) -> None:
        actor.is_dead = True


class id_of:
    def __init__(self, call: Any) -> None:
        self.call = call


def part_of(*prompts: str) -> Part:
    job = plan_job([*prompts], {"seed": 1})
    return Part(job, [Wanted(Line(number, prompt, {}), 0, "", 1.0) for number, prompt in enumerate(prompts, 1)])


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayPool]:
    def make(ray: FakeRay, workers: int | None = 1, provider: str = "cpu") -> RayPool:
        @contextmanager
        def fake(*_: object) -> Iterator[Any]:
            yield ray

        monkeypatch.setattr(ray_pool, "connected", fake)
        folder: Any = SimpleNamespace(path=Path("nowhere"), model_hash="0")
        return RayPool("local", workers, folder, RuntimeOptions(provider), "png")

    return make


def outcome(pool: RayPool, parts: list[Part]) -> tuple[list[str], dict[str, str]]:
    """The prompts that were drawn, and those that were set aside with the reasons, as the batch does it."""
    drawn, aside = list[str](), dict[str, str]()
    with pool:
        for part, answer in pool.drawn(iter(parts)):
            drawn += [image.prompt for image in answer.images.values() if image]
            left = [number for number in range(len(part.wanted)) if number not in answer.images]
            if answer.error:
                assert isinstance(answer.error, OF_A_LINE)
                if len(left) == 1:
                    aside[part.wanted[left[0]].line.name] = answer.error.message
                else:
                    pool.again(part.halves(left))
    return drawn, aside


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}0000"])
def test_a_cluster_that_does_not_answer_is_refused_before_ray_waits_for_it(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = SimpleNamespace(is_initialized=lambda: False, init=lambda **_: pytest.fail("Ray waits"))
    monkeypatch.setitem(sys.modules, "ray", waits)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        address = form.format(free.getsockname()[1])
        with (
            pytest.raises(ProviderError, match=f"there is no Ray at {address}: "),
            connected(address, RuntimeOptions("cpu"), 1),
        ):
            pass


def test_an_image_that_kills_its_workers_is_set_aside_alone(pool: Callable[..., RayPool]) -> None:
    parts = [part_of("a", "b"), part_of(*"cdefghX"), part_of("i", "j"), part_of("k")]
    ray = FakeRay(lambda job: any(request.prompt == "X" for request in job.requests))
    drawn, aside = outcome(pool(ray, 2), parts)
    assert sorted(drawn) == [*"abcdefghijk"]
    assert aside == {"X": "the workers that drew it died: killed by a test"}
    assert ray.started == 2 + 2 + 2 + 1  # twice of seven images, then of four, two and one: at most
    assert ray.most == AHEAD


def test_a_worker_that_dies_once_costs_nothing(pool: Callable[..., RayPool]) -> None:
    deaths = iter([False, True])
    ray = FakeRay(lambda job: next(deaths, False))
    drawn, aside = outcome(pool(ray), [part_of(name) for name in "abcdef"])
    assert (sorted(drawn), aside, ray.started) == ([*"abcdef"], {}, 2)


def test_what_workers_have_to_tell_is_told(
    pool: Callable[..., RayPool], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    warn_once.cache_clear()
    monkeypatch.setattr("sdort.console._verbosity", SILENT)
    opened = iter([READY, Ready("cuda", READY.warnings)])
    outcome(pool(FakeRay(lambda job: False, lambda: next(opened)), 2), [part_of("a"), part_of("b")])
    assert sorted(record.getMessage() for record in caplog.records) == [
        "a is dark",
        "b is dark",
        "the GPU is slow",
        "workers run on cpu and on cuda: their images may differ a little",
    ]


def test_a_worker_collects_what_it_has_to_tell(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> Any:
        warn("it is slow")
        return SimpleNamespace(provider="cpu", generate_job=lambda *_: warn("it is dark"))

    monkeypatch.setattr(worker, "_own_gpus", list)
    monkeypatch.setattr(worker, "load_folder", load)
    monkeypatch.setattr("sdort.console._verbosity", SILENT)  # as in a process that is no command
    own = Worker(tiny.onnx, open_folder(tiny.onnx).model_hash, RuntimeOptions("cpu"), "png")
    assert own.open(None) == Ready("cpu", ["it is slow"])
    assert own.draw(part_of("a").job) == Answer({}, None, ["it is dark"])


def test_workers_that_die_of_everything_end_the_batch(pool: Callable[..., RayPool]) -> None:
    with pytest.raises(ProviderError, match="12 workers died one after the other without an image between: killed by"):
        outcome(pool(FakeRay(lambda job: True)), [part_of(*"abcdefgh") for _ in range(9)])

    def dies() -> str:
        raise RayError("no memory")

    with pytest.raises(ProviderError, match="3 workers died one after the other before they had the pipeline open: no"):
        outcome(pool(FakeRay(lambda job: False, dies)), [part_of("a")])


def test_a_pipeline_that_does_not_open_ends_the_batch(pool: Callable[..., RayPool]) -> None:
    with pytest.raises(BadModelError, match="broken"):
        outcome(pool(FakeRay(lambda job: False, lambda: BadModelError("broken"))), [part_of("a")])


def test_nothing_is_started_for_nothing(pool: Callable[..., RayPool]) -> None:
    ray = FakeRay(lambda job: False)
    assert outcome(pool(ray), []) == ([], {})
    assert ray.started == 0


def test_no_more_is_read_than_is_in_flight(pool: Callable[..., RayPool]) -> None:
    read = list[int]()

    def parts() -> Iterator[Part]:
        for number in range(50):
            read.append(number)
            yield part_of(str(number))

    with pool(FakeRay(lambda job: False), 2) as own:
        for done, _ in enumerate(own.drawn(parts()), 1):
            assert len(read) <= done + 2 * AHEAD + 1


@pytest.mark.parametrize(
    ("gpus", "provider", "workers", "resources", "started"),
    [
        (2, "cuda", None, {"num_gpus": 1, "num_cpus": 0}, 2),
        (2, "auto", 1, {"num_gpus": 1, "num_cpus": 0}, 1),
        (2, "cpu", None, {"num_gpus": 0, "num_cpus": 4}, 1),
        (0, "auto", 2, {"num_gpus": 0, "num_cpus": 2}, 2),
    ],
)
def test_each_worker_has_a_gpu_or_its_share_of_the_cpus(
    gpus: int, provider: str, workers: int | None, resources: Any, started: int, pool: Callable[..., RayPool]
) -> None:
    ray = FakeRay(lambda job: False, gpus=gpus)
    outcome(pool(ray, workers, provider), [part_of("a")])
    assert (ray.resources, ray.started) == (resources, started)
    assert ray.threads == [resources["num_cpus"]] * started


@pytest.mark.parametrize(
    ("gpus", "provider", "workers", "words"),
    [
        (2, "cuda", 3, "--workers 3: Ray has 2 GPUs, one for each worker"),
        (0, "cpu", 5, "--workers 5: Ray has 4 CPUs"),
        (0, "rocm", None, "Ray knows no GPU, and rocm runs on one"),
    ],
)
def test_workers_that_there_is_no_room_for_are_refused(
    gpus: int, provider: str, workers: int | None, words: str, pool: Callable[..., RayPool]
) -> None:
    ray = FakeRay(lambda job: False, gpus=gpus)
    with pytest.raises(SdortError, match=words):
        outcome(pool(ray, workers, provider), [part_of("a")])
    assert ray.started == 0


@pytest.mark.parametrize(
    ("before", "gpus", "after"),
    [
        ({}, ["2"], "2"),
        ({"HIP_VISIBLE_DEVICES": "3"}, ["3"], "3"),  # Ray knows the cards
        ({"HIP_VISIBLE_DEVICES": "3,1"}, ["1"], "1"),  # it does not: the second of those
        ({"HIP_VISIBLE_DEVICES": "3,1", "CUDA_VISIBLE_DEVICES": "0"}, ["0"], "3"),
    ],
)
def test_a_worker_sees_its_own_gpu_of_amds(before: dict[str, str], gpus: list[str], after: str) -> None:
    show_gpus(gpus, before)
    assert before["HIP_VISIBLE_DEVICES"] == after


def test_what_numbers_gpus_below_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match="ROCR_VISIBLE_DEVICES is set, and Ray divides the GPUs by HIP_VISIBLE_DEVICES"
    ):
        refuse_rocr({"ROCR_VISIBLE_DEVICES": "0"})
    monkeypatch.setattr(ray_cluster, "SCALING", ())
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    check_workers(RuntimeOptions("cpu"))
    with pytest.raises(UsageError, match="ROCR_VISIBLE_DEVICES is set"):
        check_workers(RuntimeOptions("rocm"))
    with pytest.raises(UsageError, match="leave out --device-id 1"):
        check_workers(RuntimeOptions("cpu", device_id=1))


def test_without_ray_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "a.txt").write_text("a")
    words = ["batch", "demo", "--prompts", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--provider", "cpu"]
    result = CliRunner().invoke(cli, [*words, "--ray"])
    assert isinstance(result.exception, MissingPackageError) or "--ray needs ray" in result.output
    assert "ray>=2.50" in f"{result.output}{result.exception}"
    assert not (tmp_path / "out").exists()
    alone = CliRunner().invoke(cli, [*words, "--workers", "2"])
    assert alone.exit_code == 2
    assert "--workers needs --ray" in alone.output


def test_tuning_of_the_pipelines_models_reaches_a_worker(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, own, other = open_folder(tiny.onnx), tmp_path / "driver", tmp_path / "worker"
    machine = Machine("gfx1100", 96, "HIP 7.0.1", PROVIDERS["rocm"].ep, "1.22.2", "onnxruntime-rocm 1.22.2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    assert pack_tuning(folder) is None
    names = []
    for model in (hash_model(folder.models["unet"]), "another"):
        key = Key(**asdict(machine), custom_ops=None, model=model, component="unet", shapes=(), options=())
        with Store().filling(key) as made:
            (made.folder / TUNABLE).write_text("[]")
        names.append(key.name)
    archive = pack_tuning(folder)
    assert archive is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(other))
    unpack_tuning(archive)
    assert Store().names() == names[:1]


def test_a_machine_without_the_pipeline_or_with_another_one_is_named(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_own_gpus", list)
    for folder, words in ((tmp_path / "none", "is not on the machine"), (tiny.onnx, "is another pipeline than here")):
        found = Worker(folder, "0", RuntimeOptions("cpu"), "png").open(None)
        assert isinstance(found, BadModelError)
        assert words in found.message
