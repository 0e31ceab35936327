"""Diffusers' own pipelines on optimized components.

::

    from sdort.integrations.diffusers import load_pipeline

    pipeline = load_pipeline("fast", provider="cuda")
    pipeline("a lighthouse at dusk").images[0].save("lighthouse.png")

Schedulers, callbacks and what else works outside of the UNet is as in diffusers (docs/integrations.md).
"""

from __future__ import annotations

from sdort.machine.optional_packages import COMPARING, need_packages

need_packages(*COMPARING, what=__name__)

from sdort.integrations.diffusers.assembled_pipeline import load_pipeline  # noqa: E402

__all__ = ["load_pipeline"]
