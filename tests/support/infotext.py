"""A PNG's ``parameters`` as other programs read them, and a record to write there."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from sdort.generation.requests.record import GenerationRecord
from sdort.options.declared_options import declared


def record(**values: Any) -> GenerationRecord:
    empty: dict[str, Any] = dict.fromkeys((each.name for each in fields(GenerationRecord)), "")
    empty |= {name: each.default for name, each in declared(GenerationRecord).items()}
    base = {"steps": 20, "scheduler": "DDIMScheduler", "guidance_scale": 7.5, "height": 64, "width": 32,
            "model_hash": "0123", "clip_skip": 1, "eta": None, "prompt_weighting": "a1111", "lora": [],
            "deep_cache": None, "deep_cache_depth": None, "patches": None, "exact_steps": None,
            "model": "fast", "versions": {"sdort": "0"}}  # fmt: skip
    return GenerationRecord(**{**empty, **base, **values})


def read_infotext(text: str) -> dict[str, str]:
    """As AUTOMATIC1111's ``infotext_utils.parse_generation_parameters`` reads, with its rule for quoted values."""

    def unquoted(value: str) -> str:
        return str(json.loads(value)) if len(value) > 1 and value[0] == value[-1] == '"' else value

    *lines, last = text.strip().split("\n")
    found = re.findall(r'\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)', last)
    assert len(found) >= 3
    negative = [number for number, line in enumerate(lines) if line.strip().startswith("Negative prompt:")]
    start = negative[0] if negative else len(lines)
    unwanted = "\n".join(lines[start:]).removeprefix("Negative prompt:").strip()
    return {
        "prompt": unquoted("\n".join(lines[:start]).strip()),
        "negative": unquoted(unwanted),
        **{name: unquoted(value) for name, value in found},
    }
