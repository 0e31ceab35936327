"""Configs of schedulers: ``scheduler_config.json`` of stable-diffusion-v1-5, stabilityai/stable-diffusion-2-1,
stable-diffusion-xl-base-1.0 and -refiner-1.0, playgroundai/playground-v2.5, FLUX.1-dev."""

from __future__ import annotations

from sdort.families.family import Config

_NOISE: Config = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "trained_betas": None,
    "clip_sample": False,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
}
PNDM: Config = {"_class_name": "PNDMScheduler", **_NOISE, "prediction_type": "epsilon"}
DDIM_V: Config = {"_class_name": "DDIMScheduler", **_NOISE, "prediction_type": "v_prediction"}
EULER: Config = {
    "_class_name": "EulerDiscreteScheduler",
    **_NOISE,
    "prediction_type": "epsilon",
    "interpolation_type": "linear",
    "sample_max_value": 1.0,
    "timestep_spacing": "leading",
    "use_karras_sigmas": False,
}
ZERO_SNR: Config = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
"""Settings of a model that was trained down to a signal of zero (https://arxiv.org/abs/2305.08891)."""
EDM: Config = {
    "_class_name": "EDMDPMSolverMultistepScheduler",
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
    "sigma_data": 0.5,
    "sigma_max": 80.0,
    "sigma_min": 0.002,
    "rho": 7.0,
    "solver_order": 2,
}
EDM_VAE: Config = {
    "scaling_factor": 0.5,
    "latents_mean": [-1.6574, 0.886, -1.383, 2.5155],
    "latents_std": [8.4927, 5.9022, 6.5498, 5.2299],
}
FLOW: Config = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}
"""Of stable-diffusion-3.5-medium and -large, and of Z-Image-Turbo."""
FLOW_BY_TOKENS: Config = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
    "base_shift": 0.5,
    "max_shift": 1.15,
}
