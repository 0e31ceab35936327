"""Prompts where a person names none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdort.demo.prompt_language import parse
from sdort.engines.default_prompts import DEMO_PROMPTS, PROMPTS, default_prompts


@pytest.mark.parametrize(
    ("manifest", "prompts"),
    [
        ({"source": "demo", "optimized": {"from": "model"}}, DEMO_PROMPTS),
        ({"source": "random:tiny"}, DEMO_PROMPTS),
        ({"source": "stable-diffusion-v1-5"}, PROMPTS),
        (None, PROMPTS),
    ],
)
def test_the_demo_is_asked_for_what_it_can_draw(
    tmp_path: Path, manifest: dict[str, object] | None, prompts: tuple[str, ...]
) -> None:
    if manifest is not None:
        (tmp_path / "sdort.json").write_text(json.dumps(manifest))
    assert default_prompts(tmp_path) == prompts


def test_the_demos_judge_knows_its_prompts() -> None:
    assert [len(parse(prompt).shapes) for prompt in DEMO_PROMPTS] == [2, 1]
