"""Names of a pipeline's components, folder names that sdort, optimum and diffusers' conversion script share, and of
outputs that are sdort's own."""

from __future__ import annotations

ENCODER, DECODER = "vae_encoder", "vae_decoder"
CONTROLNET, T2I_ADAPTER = "controlnet", "t2i_adapter"
CONTROLS = (CONTROLNET, T2I_ADAPTER)
"""Components that steer a UNet by an image; each lies in a folder of its own, apart from the pipeline."""
IMAGE_ENCODER = "image_encoder"
"""Makes the image tokens of IP-Adapters: CLIP's vision model, and the adapters' projections."""
SAFETY_CHECKER = "safety_checker"
"""Judges images: CLIP's vision model, and the concepts that it compares an image with."""
CLIP_PIXELS = "clip_input"
"""A safety checker's input, float [B, channels, side, side]: images as ``CLIPImageProcessor`` makes them; the name is
that of diffusers."""
CONCEPT_SCORES, SPECIAL_CARE_SCORES = "concept_scores", "special_care_scores"
"""A safety checker's outputs, float [B, concepts]: the cosine of the angle between an image and each concept, less the
concept's threshold."""
CLIP_SKIP = "clip_skip"
"""``clip_skip.2`` of a text encoder is the final norm of the output of the last layer but one, and so on; sdort's own
exports of Stable Diffusion 1.x and 2.x have these outputs."""
IMAGE_TOKENS, IMAGE_SCALE = "image_tokens", "image_scale"
"""``image_tokens.0`` is what a UNet's cross-attentions take of the first IP-Adapter's image, float [B, tokens, width],
and an output of the image encoder; ``image_scale.0`` is how much it counts, float [B, 1]."""
NEGATIVE_IMAGE_TOKENS = "negative_image_tokens"
"""``negative_image_tokens.0`` are the first IP-Adapter's tokens of no image, where zeros in place of the image's
embedding make them; without that output they are those of an image of zeros."""
PLAIN, PLUS = "plain", "plus"
"""Kinds of IP-Adapters: a projection of the image's embedding, and a resampler of all of the encoder's last states."""
RESAMPLER_HEAD = 64
"""Width of a head of the attention of a resampler (``dim_head`` of IP-Adapter's ``Resampler``)."""
