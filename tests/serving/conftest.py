"""A server of the tiny pipeline, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import Running, running
from support.tiny_pipeline import Tiny, with_encoder


@pytest.fixture(scope="module")
def pipeline(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pipeline with an encoder of images."""
    return with_encoder(tiny, tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def served(pipeline: Path) -> Iterator[Running]:
    with running(pipeline) as found:
        yield found
