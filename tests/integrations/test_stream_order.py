"""Streams of a GPU, simulated: whatever torch and a session do with the same memory has an order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.tiny_pipeline import Tiny

from sdort.integrations.torch import TensorSession, load_unet
from sdort.integrations.torch.torch_place import StreamOrder, TorchPlace


class Stream:
    """A stream that knows which operations are done before its next one."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.cuda_stream = gpu, len(gpu.streams)
        self.captures = False
        self.before: set[int] = set()
        gpu.streams.append(self)

    def wait_event(self, event: Event) -> None:
        assert event.captured == self.gpu.captures, "a graph and what is outside of it depend on each other"
        self.captures = event.captured
        self.before |= event.before

    def wait_stream(self, other: Stream) -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)


class Event:
    before: frozenset[int]
    captured = False

    def record(self, stream: Stream) -> None:
        self.before, self.captured = frozenset(stream.before), stream.captures


class Gpu:
    """As much of ``torch.cuda`` as is asked, and memory that tells races."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.session, self.current = Stream(self), Stream(self)
        self.captures = False
        self.operations = 0
        self.used: dict[str, tuple[int, list[int]]] = {}
        """The last operation that wrote a memory, and those that have read it since."""

    def use(self, stream: Stream, *, reads: str = "", writes: str = "") -> None:
        self.operations += 1
        for name in reads.split():
            written, readers = self.used.setdefault(name, (0, []))
            assert not written or written in stream.before, f"{name} is read before it is written"
            readers.append(self.operations)
        for name in writes.split():
            written, readers = self.used.get(name, (0, []))
            assert {*readers} - {self.operations} | ({written} if written else set()) <= stream.before, (
                f"{name} is written while it is used"
            )
            self.used[name] = self.operations, []
        stream.before.add(self.operations)

    @contextmanager
    def captured(self, stream: Stream) -> Iterator[None]:
        self.captures = stream.captures = True
        with self.on(stream):
            yield
        self.captures = False
        for each in self.streams:
            each.captures = False

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made.current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.current.captures)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: made.current.cuda_stream, raising=False
    )  # torch for the CPU has none
    return made


@pytest.fixture
def order(gpu: Gpu) -> StreamOrder:
    return StreamOrder(TorchPlace(torch.device("cuda", 0), gpu.session))


def call(gpu: Gpu, order: StreamOrder, sample: str, output: str, *, makes: bool = False, fails: bool = False) -> None:
    """A call as a session's is, on torch's current stream: inputs are copied to where a graph reads them."""
    order.begin()
    try:
        if makes:
            with order.making():
                gpu.use(gpu.current, reads="prompt", writes="prepared")
                order.run(lambda: gpu.use(gpu.session, reads="prepared", writes="made"))
                gpu.use(gpu.current, reads="made", writes="kept")
        gpu.use(gpu.current, reads=f"{sample} kept", writes="input")

        def run() -> None:
            gpu.use(gpu.session, reads="input made", writes="fixed")
            if fails:
                raise ValueError

        order.run(run)
        gpu.use(gpu.current, reads="fixed", writes=output)
    finally:
        order.end()


@pytest.mark.parametrize("streams", ["aaa", "aba", "abb", "abc", "sas", "ass"])
@pytest.mark.parametrize("making", [{0}, {0, 1}, {0, 2}])
def test_calls_from_any_stream_have_an_order(gpu: Gpu, order: StreamOrder, streams: str, making: set[int]) -> None:
    known = {"a": gpu.current, "b": Stream(gpu), "c": Stream(gpu), "s": gpu.session}
    for number, name in enumerate(streams):
        with gpu.on(known[name]):
            gpu.use(gpu.current, writes=f"sample{number} prompt{number}")
            if number in making:  # a prompt comes on the stream of the call
                gpu.used.pop("prompt", None)
                gpu.use(gpu.current, writes="prompt")
            call(gpu, order, f"sample{number}", f"output{number}", makes=number in making)
            gpu.use(gpu.current, reads=f"output{number}", writes=f"sample{number} output{number}")


def _use_and_fail(gpu: Gpu) -> None:
    gpu.use(gpu.current, reads="input", writes="kept")
    raise KeyError


def test_what_comes_after_a_run_that_failed_waits_for_it(gpu: Gpu, order: StreamOrder) -> None:
    gpu.use(gpu.current, writes="sample prompt")
    call(gpu, order, "sample", "output", makes=True)
    with pytest.raises(ValueError, match=r"^$"):
        call(gpu, order, "sample", "output", fails=True)
    with pytest.raises(KeyError), order.making():
        _use_and_fail(gpu)
    gpu.use(gpu.current, writes="kept")
    call(gpu, order, "sample", "output")
    with gpu.on(Stream(gpu)):
        gpu.used.pop("sample")
        gpu.use(gpu.current, writes="sample")
        call(gpu, order, "sample", "other")


@pytest.mark.parametrize("same", [False, True])
def test_a_call_that_is_captured_depends_on_nothing_outside(gpu: Gpu, order: StreamOrder, same: bool) -> None:
    """Also on the stream of the call before; and the next call waits for what really ran."""
    gpu.use(gpu.current, writes="sample prompt")
    call(gpu, order, "sample", "output", makes=True)
    with gpu.captured(gpu.current if same else Stream(gpu)):
        order.begin()
        order.run(lambda: None)
        order.end()
    with gpu.on(Stream(gpu)):
        gpu.used.pop("sample")
        gpu.use(gpu.current, writes="sample")
        call(gpu, order, "sample", "other")


def test_the_host_looks_for_the_stream_once(gpu: Gpu, order: StreamOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Stream] = []

    def current_stream(device: torch.device) -> Stream:
        asked.append(gpu.current)
        return gpu.current

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    first, other = gpu.current, Stream(gpu)
    for stream in (first, first, other, first, first):
        with gpu.on(stream):
            order.begin()
            order.end()
    assert asked == [first, other, first]


@pytest.mark.parametrize("graph", [False, True])
def test_a_unet_called_from_two_streams_gives_diffusers_numbers(gpu: Gpu, tiny: Tiny, graph: bool) -> None:
    """With inputs and outputs at addresses of its own too, as a graph of the device has them; on the CPU's memory."""
    own = load_unet(tiny.onnx, provider="cpu")
    session = own.session.session
    session.options = replace(session.options, graph=graph)
    unet = TensorSession(session, TorchPlace(torch.device("cpu"), gpu.session))
    streams, kept = [gpu.current, Stream(gpu)], []
    with torch.no_grad():
        for call in range(12):
            size, prompt, timestep = 16 + 8 * (call % 5 == 4), call // 4, torch.tensor(100.0 * (call % 3))
            sample = torch.randn(2, 4, size, size, generator=torch.Generator().manual_seed(call))
            context = torch.randn(2, 77, 32, generator=torch.Generator().manual_seed(prompt))
            with gpu.on(streams[call % 2]):
                feeds = {"sample": sample, "timestep": timestep, "encoder_hidden_states": context}
                (made,) = unet.run(feeds).values()
            kept.append((made, tiny.pipeline.unet(sample, timestep, context).sample))
    for made, expected in kept:  # whose memory no later call has written to
        torch.testing.assert_close(made, expected, atol=1e-4, rtol=0)


def test_nothing_is_ordered_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", SimpleNamespace())
    order, done = StreamOrder(TorchPlace(torch.device("cpu"))), []
    steps: list[Callable[[], Any]] = [order.begin, lambda: order.run(lambda: done.append(1)), order.end]
    for step in steps:
        step()
    with order.making():
        done.append(2)
    assert done == [1, 2]
