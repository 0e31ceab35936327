"""What is made of timesteps is made once for each, and never taken for another's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_pipeline import Tiny

from sdort.integrations.torch import GraphUNet, load_unet, timestep_cache
from sdort.integrations.torch.tensor_binding import in_one_piece, piece_of
from sdort.integrations.torch.timestep_cache import KnownTimesteps
from sdort.runtime.step import step_caches

TOLERANCE = 1e-4
"""fp32 on both sides, outputs of about 1: 3e-6 is seen, and rows of another timestep give 0.01 and more."""


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The sizes of what the host read, for which it would have waited on a GPU."""
    found: list[torch.Size] = []
    tolist = torch.Tensor.tolist

    def counted(self: torch.Tensor) -> Any:
        found.append(self.shape)
        return tolist(self)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    return found


@pytest.fixture
def unet(tiny: Tiny) -> GraphUNet:
    return load_unet(tiny.onnx, provider="cpu")


@pytest.fixture
def runs(unet: GraphUNet, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The runs of the graph of the timesteps."""
    preparation = unet.session.session.preparation
    assert preparation is not None
    assert preparation.time is not None
    found: list[tuple[Any, ...]] = []
    run = preparation.time.run_bound

    def counted(*args: Any) -> None:
        found.append(args)
        run(*args)

    monkeypatch.setattr(preparation.time, "run_bound", counted)
    return found


def test_a_schedule_is_read_once(reads: list[torch.Size]) -> None:
    known, schedule = KnownTimesteps(waits=lambda _: True), torch.tensor([981, 961, 941, 921])
    assert [known.number(each) for each in schedule] == [981, 961, 941, 921]
    assert known.number(schedule[2].expand(2)) == 941
    assert known.number(schedule[1:2]) == 961
    assert reads == [(4,)]


def test_a_schedule_that_changed_in_place_is_read_again(reads: list[torch.Size]) -> None:
    known, schedule = KnownTimesteps(waits=lambda _: True), torch.tensor([981.0, 961.0])
    assert known.number(schedule[1]) == 961
    schedule[1] = 950.5
    assert known.number(schedule[1]) == 950.5
    assert len(reads) == 2


def test_the_next_schedule_is_another_one() -> None:
    known = KnownTimesteps(waits=lambda _: True)
    for first in range(100):  # torch gives memory that is free to the next tensor of its size
        assert known.number(torch.tensor([first, 7])[0]) == first


def test_numbers_of_another_dtype_in_the_same_memory() -> None:
    known, schedule = KnownTimesteps(waits=lambda _: True), torch.tensor([981.0, 961.0])
    assert known.number(schedule[0]) == 981
    assert known.number(schedule.view(torch.int32)[0]) == int(schedule.view(torch.int32)[0])


def test_what_has_no_number() -> None:
    known = KnownTimesteps(waits=lambda _: True)
    assert known.number(torch.tensor([1, 2])) is None
    assert known.number(torch._neg_view(torch.tensor([3.0]))) is None
    assert known.number(torch.arange(timestep_cache.LONGEST_SCHEDULE + 1)[3]) is None
    with torch.inference_mode():
        counts_nothing = torch.tensor([5])
    assert known.number(counts_nothing) is None


def test_nothing_is_known_while_torch_records(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    known, schedule = KnownTimesteps(waits=lambda _: True), torch.tensor([981, 961])
    assert known.number(schedule[0]) == 981
    recording = True
    assert known.number(schedule[0]) is None


def test_numbers_are_read_each_time_where_nothing_waits() -> None:
    known = KnownTimesteps(waits=lambda _: False)
    with torch.inference_mode():
        timestep = torch.tensor([5, 6])
        assert known.number(timestep[1]) == 6
        timestep.mul_(2)
        assert known.number(timestep[1]) == 12


def test_rows_are_made_once_for_a_timestep(unet: GraphUNet, tiny: Tiny, runs: list[tuple[Any, ...]]) -> None:
    samples, context = torch.randn(2, 4, 16, 16), torch.randn(2, 77, 32)
    for timestep in (7, 900, 7, torch.tensor(900.0), torch.tensor([7, 7]), 900):
        made = unet(samples, timestep, context).sample
        expected = tiny.pipeline.unet(samples, timestep, context).sample
        torch.testing.assert_close(made, expected, atol=TOLERANCE, rtol=0)
    assert len(runs) == 2
    unet(samples[:1], 7, context[:1])  # a row for each sample
    assert len(runs) == 3


def test_numpy_may_change_a_timestep(unet: GraphUNet, tiny: Tiny) -> None:
    samples, context, number = torch.randn(1, 4, 16, 16), torch.randn(1, 77, 32), np.array([7.0], np.float32)
    timestep = torch.from_numpy(number)
    for value in (7, 900):
        number[0] = value
        expected = tiny.pipeline.unet(samples, value, context).sample
        torch.testing.assert_close(unet(samples, timestep, context).sample, expected, atol=TOLERANCE, rtol=0)


def test_rows_are_made_again_for_other_weights(unet: GraphUNet, runs: list[tuple[Any, ...]]) -> None:
    samples, context = torch.randn(1, 4, 16, 16), torch.randn(1, 77, 32)
    unet(samples, 7, context)
    unet.session.session.weights.version += 1
    unet(samples, 7, context)
    assert len(runs) == 2


def test_the_oldest_rows_give_way(
    unet: GraphUNet, runs: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_caches, "KEPT_ROWS", 2)
    samples, context = torch.randn(1, 4, 16, 16), torch.randn(1, 77, 32)
    for timestep in (1, 2, 3, 3, 2):
        unet(samples, timestep, context)
    assert len(runs) == 3
    unet(samples, 1, context)
    assert len(runs) == 4


def test_tensors_in_one_piece_are_copied_at_once() -> None:
    values = {"a": torch.randn(3, 5), "b": torch.randn(2, 7).half(), "c": torch.arange(4)}
    made = in_one_piece(values)
    kept = piece_of(made).clone()
    for name, value in values.items():
        torch.testing.assert_close(made[name], value, atol=0, rtol=0)
        made[name].zero_()
    piece_of(made).copy_(kept)
    for name, value in values.items():
        torch.testing.assert_close(made[name], value, atol=0, rtol=0)
