"""Numbers of steps at the ends of their range: each scheduler has a schedule for them, or says that it has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_pipeline import SCHEDULER

from sdort.errors import UsageError
from sdort.generation.schedules.schedulers import load_scheduler, set_steps
from sdort.graph.signature import Array
from sdort.samplers.scheduler_names import SAMPLERS

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")

# The demo's is DDIM with this noise schedule, Stable Diffusion 1.5's PNDM.
CONFIGS: dict[str, dict[str, Any]] = {
    "demo": {**SCHEDULER, "_class_name": "DDIMScheduler", "prediction_type": "v_prediction"},
    "sd15": {**SCHEDULER, "_class_name": "PNDMScheduler", "skip_prk_steps": True},
}
FEW, MANY = (1, 2, 1001), (999, 1000)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_number_of_steps_gives_a_finite_schedule_or_a_sentence(name: str, tmp_path: Path) -> None:
    if name == "lms":
        pytest.importorskip("scipy")
    for config, steps in [(config, steps) for config in CONFIGS for steps in FEW] + [("demo", steps) for steps in MANY]:
        (tmp_path / "scheduler_config.json").write_text(json.dumps(CONFIGS[config]))
        times, sigmas = _schedule(load_scheduler(tmp_path, name), steps)
        assert len(times) == 0 or len(times) >= steps, (config, steps)
        assert ((times >= 0) & (times <= 999)).all(), (config, steps)
        assert np.isfinite(sigmas).all(), (config, steps)
        assert len(times) == 0 or steps <= 1000, config


def _schedule(scheduler: Any, steps: int) -> tuple[Array, Array]:
    """The timesteps and the sigmas, none where it refuses so many steps."""
    try:
        set_steps(scheduler, steps)
    except UsageError:
        return np.zeros(0), np.zeros(0)
    return np.asarray(scheduler.timesteps, np.float64), np.asarray(getattr(scheduler, "sigmas", ()), np.float64)
