"""A server of ``sdort serve`` that runs in a thread of the tests, and its client."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx2
import numpy as np
from PIL import Image

from sdort.serving.command import Server, listening

if TYPE_CHECKING:
    from sdort.serving.serve_options import ServeKeywords

OPTIONS: dict[str, Any] = {"port": 0, "provider": "cpu", "sizes": [(64, 64)], "batch_wait": 0.1, "drain": 5.0}


class Running:
    """A server that is ready."""

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.service, self.port = server, server.service, port
        self.engine: Any = server.service.worker.engines[0]
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx2.Client(base_url=self.url, timeout=60)

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return self.client.post(path, json=body)

    def draw(self, **body: Any) -> str:
        """The id of a drawing of sdort's own API."""
        answer = self.post("/api/images", **{"prompt": "a", "steps": 2, **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def events(self, drawing: str) -> list[tuple[str, dict[str, Any]]]:
        """All events of a drawing, until its end."""
        text = self.client.get(f"/api/images/{drawing}/events").text
        blocks = [block.split("\n") for block in text.split("\n\n") if block.startswith("event: ")]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


@contextmanager
def running(*pipelines: Any, ready: bool = True, **options: Any) -> Iterator[Running]:
    """A server until the end of the block."""
    with listening([str(each) for each in pipelines], cast("ServeKeywords", OPTIONS | options)) as (server, sockets):
        thread = threading.Thread(target=server.run, args=(sockets,))
        thread.start()
        try:
            found = Running(server, sockets[0].getsockname()[1])
            worker = found.service.worker
            while ready and not worker.is_warm.wait(0.05):
                assert thread.is_alive(), worker.failure
            with found.client:
                yield found
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def pixels(content: bytes) -> Any:
    """The pixels of a file, as numbers whose differences do not wrap."""
    return np.asarray(Image.open(io.BytesIO(content))).astype(int)


def png(colour: Any = (200, 30, 30), size: tuple[int, int] = (64, 64), mode: str = "RGB") -> bytes:
    """A PNG of one colour."""
    with io.BytesIO() as file:
        Image.new(mode, size, colour).save(file, "PNG")
        return file.getvalue()


def data_url(content: bytes) -> str:
    """A PNG as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
