"""Schedulers of diffusers as samplers, for settings that sdort's own do not know."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sdort.graph.signature import Array
from sdort.samplers.sampler import Draw, Sampler


class DiffusersSampler(Sampler):
    """A scheduler of diffusers, which computes in fp32.

    Args:
        scheduler: a new one, with its timesteps set.
    """

    linear = False

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.name = type(scheduler).__name__
        self.order = int(getattr(scheduler, "order", 1))
        self.timesteps = np.asarray(scheduler.timesteps)
        self.trained = int(scheduler.config.get("num_train_timesteps", len(self.timesteps)))
        self.prediction = str(scheduler.config.get("prediction_type", "epsilon"))
        self.shares = np.asarray(scheduler.alphas_cumprod, np.float64)

    def begin_at(self, call: int) -> None:
        if hasattr(self.scheduler, "set_begin_index"):
            # Otherwise it searches the timestep, and where one stands twice it may find the wrong one.
            self.scheduler.set_begin_index(call)

    def begin(self, noise: Array) -> Array:
        return _array(_tensor(noise) * self.scheduler.init_noise_sigma)

    def noised(self, call: int, image: Array, noise: Array) -> Array:
        times = self.scheduler.timesteps[call : call + 1].repeat(len(noise))
        return _array(self.scheduler.add_noise(_tensor(image), _tensor(noise), times))

    def sample(self, call: int, latents: Array) -> Array:
        return _array(self.scheduler.scale_model_input(_tensor(latents), self.scheduler.timesteps[call]))

    def step(self, call: int, output: Array, latents: Array, draw: Draw) -> Array:
        def drawn(*args: Any, **kwargs: Any) -> Any:
            return _tensor(draw())

        with drawing_from(drawn, self.scheduler):
            time = self.scheduler.timesteps[call]
            return _array(self.scheduler.step(_tensor(output), time, _tensor(latents), return_dict=False)[0])


def _tensor(array: Array) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def _array(tensor: Any) -> Array:
    array: Array = tensor.numpy()
    return array


@contextmanager
def drawing_from(source: Callable[..., Any], scheduler: Any) -> Iterator[None]:
    """A block in which the scheduler takes its noise from ``source``, called as diffusers' ``randn_tensor``."""
    module: Any = sys.modules[type(scheduler).__module__]
    if not hasattr(module, "randn_tensor"):
        yield
        return
    own, module.randn_tensor = module.randn_tensor, source
    try:
        yield
    finally:
        module.randn_tensor = own
