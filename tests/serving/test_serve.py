"""The server: its APIs as clients see them, over sockets of the loopback device."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx2
import numpy as np
import pytest
from PIL import Image
from support.tiny_pipeline import Tiny

from sdort.generation.command import load_folder
from sdort.providers.runtime_options import RuntimeOptions
from sdort.serving.command import Server, listening

if TYPE_CHECKING:
    from sdort.serving.serve_options import ServeKeywords

SIZE = (64, 64)
OPTIONS: dict[str, Any] = {"port": 0, "provider": "cpu", "sizes": [SIZE], "batch_wait": 0.1, "drain": 5.0}


class Running:
    """A server that runs in a thread."""

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.service = server, server.service
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx2.Client(base_url=self.url, timeout=60)

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return self.client.post(path, json=body)


@contextmanager
def running(*pipelines: Any, **options: Any) -> Iterator[Running]:
    """A server that is ready, until the end of the block."""
    with listening([str(each) for each in pipelines], cast("ServeKeywords", OPTIONS | options)) as (server, sockets):
        thread = threading.Thread(target=server.run, args=(sockets,))
        thread.start()
        try:
            found = Running(server, sockets[0].getsockname()[1])
            assert found.service.worker.is_ready.wait(60)
            with found.client:
                yield found
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def served(tiny: Tiny) -> Iterator[Running]:
    with running(tiny.onnx) as found:
        yield found


def pixels(content: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(content))).astype(int)


def test_openai_generations_answer_with_what_a_run_draws(served: Running, tiny: Tiny) -> None:
    answer = served.post("/v1/images/generations", prompt="a cat", n=2, size="64x64", steps=2, seed=7)
    assert answer.status_code == 200
    images = [pixels(base64.b64decode(each["b64_json"])) for each in answer.json()["data"]]
    expected = load_folder(tiny.onnx, RuntimeOptions("cpu")).generate(
        "a cat", num_images=2, height=64, width=64, steps=2, seed=7
    )
    for image, other in zip(images, expected.images, strict=True):
        np.testing.assert_allclose(image, other.pixels.astype(int), atol=1)


def test_requests_at_once_are_drawn_together(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    own = served.service.worker._generated

    def generated(*given: Any) -> Any:
        sizes.append(len(given[1].pieces))
        return own(*given)

    monkeypatch.setattr(served.service.worker, "_generated", generated)
    alone = served.post("/v1/images/generations", prompt="b", size="64x64", steps=2, seed=3).json()
    answers: dict[int, Any] = {}

    def ask(seed: int) -> None:
        answers[seed] = served.post("/v1/images/generations", prompt="ab"[seed % 2], size="64x64", steps=2, seed=seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sizes == [1, 4]
    np.testing.assert_allclose(
        pixels(base64.b64decode(answers[3].json()["data"][0]["b64_json"])),
        pixels(base64.b64decode(alone["data"][0]["b64_json"])),
        atol=1,
    )
