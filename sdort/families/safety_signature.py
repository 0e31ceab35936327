"""The two kinds of safety checkers as graphs, by the names of their inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from sdort.families.component_names import CLIP_PIXELS, CONCEPT_SCORES, SPECIAL_CARE_SCORES

FLAGS = "has_nsfw_concepts"
"""The output of diffusers' conversion script that says whether an image is flagged, bool [B]."""
IMAGES = "images"
"""The input of that script's graph that becomes black where it is flagged, float [B, height, width, 3]."""


class SafetyKind(Enum):
    """The kind of output of a safety checker."""

    SCORES = "scores"
    """How near an image is to each concept, as sdort exports it."""
    FLAGS = "flags"
    """Its decision alone, as diffusers' conversion script, optimum's and Olive's write it."""


def safety_kind(inputs: Collection[str], outputs: Collection[str]) -> SafetyKind | None:
    """The kind of a safety checker by the names of its inputs and outputs; None of any other graph."""
    if CLIP_PIXELS not in inputs:
        return None
    if {CONCEPT_SCORES, SPECIAL_CARE_SCORES} <= set(outputs) and len(inputs) == 1:
        return SafetyKind.SCORES
    return SafetyKind.FLAGS if FLAGS in outputs and set(inputs) <= {CLIP_PIXELS, IMAGES} else None
