"""Names of a pipeline's components, folder names that sdort, optimum and diffusers' conversion script share, and of
outputs that are sdort's own."""

from __future__ import annotations

ENCODER, DECODER = "vae_encoder", "vae_decoder"
CONTROLNET, T2I_ADAPTER = "controlnet", "t2i_adapter"
CONTROLS = (CONTROLNET, T2I_ADAPTER)
"""Components that steer a UNet by an image; each lies in a folder of its own, apart from the pipeline."""
EXPORTED = ("text_encoder", "text_encoder_2", "unet", ENCODER, DECODER, *CONTROLS)
"""Components that ``sdort export`` writes, in its order."""
SAFETY_CHECKER = "safety_checker"
COMPONENTS = (*EXPORTED, SAFETY_CHECKER)
"""Every component that a pipeline may have, in its order."""
CLIP_SKIP = "clip_skip"
"""``clip_skip.2`` of a text encoder is the final norm of the output of the last layer but one, and so on; sdort's own
exports of Stable Diffusion 1.x and 2.x have these outputs."""
