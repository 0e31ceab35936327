"""Estimates of memory, and the refusals by them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.tiny_pipeline import Tiny

import sdort
from sdort.errors import BadModelError, MemoryShortageError
from sdort.generation import memory_need
from sdort.generation.latents import graph_memory
from sdort.generation.latents.graph_memory import GraphMemory, decoder_memory
from sdort.generation.requests.request import Request
from sdort.machine.gpus import free_memory
from sdort.machine.system import System
from sdort.pipelines.folder import open_folder, pixels_of
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.provider import Provider
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.step.preparation import ROWS
from sdort.runtime.step.prepared_inputs import prepared_rows
from sdort.runtime.step.prepared_tensors import prepared_tensors, rows_bytes, split_file
from sdort.tables import size_text
from sdort.verification.command_line import VerifyOptions
from sdort.verification.pipeline_comparison import verify_pipeline
from sdort.warmup import items
from sdort.warmup.warm_options import WarmupOptions
from sdort.workload.cases import Case
from sdort.workload.samples import Sample


def test_what_cannot_fit_is_refused_with_its_size_and_what_fits_is_not(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(tiny.onnx)
    monkeypatch.setattr(memory_need, "free_memory", lambda *_: 8 << 30)
    with pytest.raises(MemoryShortageError, match=r"generating 16384x16384 .* of memory, and 8.6 GB are free"):
        memory_need.refuse_generation(folder, Request("", height=16384, width=16384), 1, CPU, 0)
    memory_need.refuse_generation(folder, Request("", height=256, width=256), 4, CPU, 0)
    with pytest.raises(MemoryShortageError):  # the pixels of all images
        memory_need.refuse_generation(folder, Request("", height=1024, width=1024), 10_000, CPU, 0)


@pytest.mark.parametrize(
    ("on", "fused", "copies"), [(CPU, False, 1), (CPU, True, 0), (CUDA, False, 2), (CUDA, True, 0), (ROCM, True, 2)]
)
def test_scores_count_where_they_are_held(
    on: Provider, fused: bool, copies: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = open_folder(tiny.onnx).file("vae_decoder")
    if fused:
        monkeypatch.setattr(graph_memory, "keeps_scores", lambda _: False)
    assert decoder_memory(file, on) == GraphMemory(4, copies)


def test_a_loaded_pipeline_refuses_a_size_and_counts_what_it_holds(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = sdort.load(tiny.onnx, provider="cpu")
    monkeypatch.setattr(memory_need, "free_memory", lambda *_: 1 << 20)
    free = size_text((1 << 20) + pipeline._models.closable_bytes)
    with pytest.raises(MemoryShortageError, match=rf"generating 512x512 .* {free} are free"):
        pipeline.generate("a", height=512, width=512, steps=1)
    monkeypatch.undo()
    pipeline.generate("a", height=128, width=128, steps=1)
    monkeypatch.setattr(memory_need, "free_memory", lambda *_: 0)  # all is held by the sessions
    assert len(pipeline.generate("a", height=128, width=128, steps=1).images) == 1
    with pytest.raises(MemoryShortageError):
        pipeline.generate("a", height=512, width=512, steps=1)


def test_what_is_prepared_counts_as_much_as_is_allocated(tiny: Tiny) -> None:
    """Of prompts for every sample, of timesteps for every step; longer prompts take as much more."""
    folder = open_folder(tiny.onnx)
    request = Request("a AND b", height=64, width=128, steps=3, num_images=2)
    pipeline = sdort.load(tiny.onnx, provider="cpu")
    pipeline.generate(request.prompt, height=64, width=128, steps=3, num_images=2, seed=0)
    loop = pipeline._models.loop
    [(batch, bound)] = [(key[0], bound) for key, bound in loop._bound.items()]
    prompts = sum(value.numpy().nbytes for prompt in bound.prompts for value in prompt.values.values())
    rows = {name: bound.row.array(name) for name in prepared_rows(loop.unet, batch.samples)}
    row = sum(math.prod(shape) * dtype.itemsize for shape, dtype in rows.values())
    latents = batch.samples, *batch.latent[1:]
    assert (batch.samples, prompts > 0, row > 0) == (len(request.guidance()) * 2, True, True)
    split = split_file(folder.file("unet"))
    assert split is not None
    made = rows_bytes(split)  # at once, by the part of the timesteps
    assert made == ROWS * row // batch.samples  # each has its own here
    assert memory_need.prepared_bytes(folder.file("unet"), latents, 3) == prompts + 4 * row + made
    longer = prepared_tensors(split, "unet", Sample(*latents, 2 * 77))
    assert longer.prompt_bytes == 2 * prompts
    one, three = (memory_need.case_bytes(folder, Case("unet", *latents), CPU, steps=steps) for steps in (1, 3))
    assert three - one == 2 * prepared_tensors(split, "unet", Sample(latents[0])).step_bytes


def test_warming_up_and_verifying_refuse_what_cannot_fit(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_need, "free_memory", lambda *_: 1 << 20)
    options = WarmupOptions(RuntimeOptions("cpu"), [(512, 512)], (1,), ["vae_decoder"], vae_tiling=False)
    with pytest.raises(MemoryShortageError, match="vae_decoder"):
        items.plan(items.WarmupTarget(open_folder(tiny.onnx), CPU, options.runtime), options)
    monkeypatch.setattr(memory_need, "free_memory", lambda *_: 1 << 10)
    with pytest.raises(MemoryShortageError, match="generating 64x64"):
        verify_pipeline(tiny.onnx, VerifyOptions(against=tiny.onnx, torch=False))


def test_a_models_own_size_has_the_range_of_one_that_is_asked_for() -> None:
    assert pixels_of([2048, 64], 8, "unet") == (16384, 512)
    with pytest.raises(BadModelError, match=r"images of 16392x16392 pixels: 16392 is not .* from 1 to 16,384"):
        pixels_of(2049, 8, "unet")


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    for name, text in {
        "proc/meminfo": "MemAvailable: 16000000 kB",
        "sys/fs/cgroup/memory.max": "4000000000",
        "sys/fs/cgroup/memory.current": "3500000000",
        "sys/fs/cgroup/memory.stat": "inactive_file 1000000000",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory("", 0, System(tmp_path)) == 1_500_000_000
