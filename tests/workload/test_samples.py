"""Random inputs of components."""

from __future__ import annotations

import numpy as np

from sdort.workload.samples import Input, Sample, make_inputs


def test_a_guidance_embedding_is_sines_and_a_timestep_a_whole_number() -> None:
    """Latent consistency models take both; their names begin alike."""
    inputs = [
        Input("timestep", np.dtype(np.float32), (None,), per_sample=True),
        Input("timestep_cond", np.dtype(np.float32), (None, 256)),
    ]
    feeds = make_inputs(inputs, Sample(batch=2), "unet", seed=0)
    assert feeds["timestep"].shape == (2,)
    assert (feeds["timestep"] == feeds["timestep"].round()).all()
    embedding = feeds["timestep_cond"]
    assert embedding.shape == (2, 256)
    assert np.abs(embedding).max() <= 1
    assert np.abs(np.std(embedding) - np.sqrt(0.5)) < 0.05  # of a sine
