"""The gate: who may ask, and what hostile and broken clients get."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from support.serving import Running, data_url, png, running

from sdort.errors import ProviderError, UsageError
from sdort.serving import connection, guard
from sdort.serving.command import listening, serve

KEY = "0123456789abcdef-one"


@pytest.fixture(scope="module")
def locked(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"# of friends\n\nfedcba9876543210-two\n{KEY}\n")
    keys.chmod(0o600)
    with running(pipeline, api_keys=keys) as served:
        yield served


@pytest.fixture(scope="module")
def strict(pipeline: Path) -> Iterator[Running]:
    with running(pipeline, queue=8, max_upload=1, allow_host=["images.example"]) as served:
        yield served


def send(served: Running, content: bytes) -> bytes:
    """What a server answers to bytes until it closes the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client, suppress(ConnectionError):
        client.sendall(content)
        while part := client.recv(65536):
            answer += part
    return answer


def is_well(served: Running) -> bool:
    answer = served.post("/v1/images/generations", prompt="a", steps=1)
    return answer.status_code == 200


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer {KEY}", 200),
        (f"Basic {base64.b64encode(f'anybody:{KEY}'.encode()).decode()}", 200),
        ("", 401),
        ("Bearer", 401),
        (f"Bearer {KEY}x", 401),
        (f"Bearer {KEY[:-1]}", 401),
        ("Bearer # of friends", 401),
        (f"Basic {KEY}", 401),
        ("Basic ~~~", 401),
        (f"Digest {KEY}", 401),
        ("Bearer \xff\xfe", 401),
    ],
)
def test_a_key_opens_all_endpoints(locked: Running, authorization: str, status: int) -> None:
    headers = {b"Authorization": authorization.encode("latin-1")}
    for path in ("/api/info", "/v1/models", "/sdapi/v1/samplers", "/metrics", "/ready", "/openapi.json"):
        assert locked.client.get(path, headers=headers).status_code == status
    assert locked.client.get("/health").status_code == locked.client.get("/").status_code == 200
    assert locked.client.post("/api/images", content=b"x" * 100, headers=headers).status_code == (
        422 if status == 200 else 401
    )


@pytest.mark.parametrize(("lines", "problem"), [("# none\n", "has no keys"), ("short\n", "less than 16 characters")])
def test_a_file_without_good_keys_is_refused(pipeline: Path, tmp_path: Path, lines: str, problem: str) -> None:
    path = tmp_path / "keys"
    path.write_text(lines)
    with pytest.raises(UsageError, match=problem):
        serve(pipeline, port=0, api_keys=path)


def test_an_address_that_others_reach_needs_keys_or_a_word(pipeline: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"others reach 0\.0\.0\.0, and everybody could draw"):
        serve(pipeline, host="0.0.0.0", port=0)
    with pytest.raises(UsageError, match="say opposite things"):
        serve(pipeline, host="0.0.0.0", port=0, no_keys=True, api_keys=tmp_path)
    with listening(str(pipeline), {"host": "0.0.0.0", "port": 0, "no_keys": True, "provider": "cpu"}) as (_, sockets):
        assert sockets[0].getsockname()[0] == "0.0.0.0"


def test_an_address_that_is_taken_is_told(served: Running, pipeline: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1 port {served.port}: .*in use"):
        serve(pipeline, port=served.port)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:7860"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1@evil.example"}, 403),
        ({"Host": "[::1]:7860"}, 200),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:7860", "Origin": "http://localhost:7860"}, 200),
        ({"Host": "localhost:7860", "Origin": "http://localhost:7861"}, 403),
    ],
)
def test_pages_of_other_sites_may_not_ask(served: Running, headers: dict[str, str], status: int) -> None:
    answer = served.client.get("/api/info", headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


def test_a_proxy_has_its_own_name(strict: Running) -> None:
    assert strict.client.get("/api/info", headers={"Host": "images.example"}).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"prompt": "a"',
        b"\xff\xfe{}",
        b'"prompt"',
        b'{"prompt": "a", "seed": NaN}',
        b'{"prompt": "a", "steps": 1e999}',
        b'{"prompt": "a", "seed": 1e30}',
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "a", "adapters": ' + b'[{"name": "a"},' * 100_000 + b"{}]}",
        b"{" + b",".join(b'"%d": 0' % number for number in range(300_000)) + b"}",
        b'{"prompt": {"a": 1}}',
        b'{"prompt": "\\ud800", "steps": 1}',
        b'{"prompt": "a\\u0000b", "negative_prompt": null}',
    ],
    ids=lambda content: ascii(content[:24].decode("latin-1")),
)
def test_a_body_that_is_none_is_refused_and_the_server_goes_on(served: Running, content: bytes) -> None:
    started = time.process_time()
    for path in ("/api/images", "/v1/images/generations", "/sdapi/v1/txt2img"):
        answer = served.client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, (path, answer.text[:200])
        assert answer.json()["error"]["message"]
        assert len(answer.content) < 2000
    assert time.process_time() - started < 5
    assert len(served.service.waiting) == 0


def test_a_form_of_a_browser_is_no_body(served: Running) -> None:
    """Which another site's page can send without asking."""
    answer = served.client.post("/api/images", content=b'{"prompt": "a"}', headers={"Content-Type": "text/plain"})
    assert answer.status_code == 422


def test_a_request_that_is_too_large_is_refused_before_it_is_read(strict: Running) -> None:
    head = b"POST /api/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert send(strict, head + b"Content-Length: 1000001\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
    assert send(strict, head + b"Transfer-Encoding: chunked\r\n\r\n" + 4 * chunk).startswith(b"HTTP/1.1 413 ")
    assert send(strict, head + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n").startswith(b"HTTP/1.1 4")


def test_bodies_that_come_at_once_are_bounded_together(strict: Running) -> None:
    head = b"POST /api/images HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection(("127.0.0.1", strict.port))).sendall(head)
        for _ in range(100):
            answer = send(strict, head.replace(b"1000000", b"1"))
            if answer.startswith(b"HTTP/1.1 503 "):
                break
        assert answer.startswith(b"HTTP/1.1 503 ")
    for _ in range(100):
        if is_well(strict):
            break
    assert is_well(strict)


def test_slow_clients_are_sent_away(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    head = b"POST /api/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert send(served, head + b"Content-Length: 100\r\n\r\n{").startswith(b"HTTP/1.1 408 ")
    assert send(served, head) == b""
    assert send(served, b"") == b""
    both = send(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + head)
    assert both.startswith(b"HTTP/1.1 200 ")


def test_what_is_no_http_gets_an_answer(served: Running) -> None:
    for content in (b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000):
        answer = send(served, content)
        assert answer.startswith(b"HTTP/1.1 4") or answer == b""
    assert is_well(served)


def test_sixty_at_once_are_drawn_or_told_to_come_again(strict: Running) -> None:
    answers: list[Any] = []
    before = strict.service.metrics.report

    def ask(seed: int) -> None:
        answers.append(strict.post("/v1/images/generations", prompt="a", steps=20, seed=seed))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    drawn = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(drawn) + len(refused) == 60
    assert len(drawn) >= 8
    assert refused
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    for _ in range(100):  # an answer may leave before its batch is counted
        report = strict.service.metrics.report
        counts = report.requests - before.requests, report.images - before.images, report.refused - before.refused
        if counts == (len(drawn), len(drawn), len(refused)):
            break
        time.sleep(0.05)
    assert counts == (len(drawn), len(drawn), len(refused))
    assert len(strict.service.waiting) == 0


def test_a_client_that_goes_frees_its_place(served: Running) -> None:
    before = served.service.metrics.report
    body = json.dumps({"prompt": "a", "steps": 100, "n": 8}).encode()
    head = f"POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    for number in range(3):
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            for _ in range(500):
                if served.service.metrics.report.requests > before.requests + number:
                    break
                time.sleep(0.01)
    for _ in range(100):
        report = served.service.metrics.report
        if report.cancelled == before.cancelled + 3:
            break
        time.sleep(0.05)
    assert report.cancelled == before.cancelled + 3
    assert report.images < before.images + 24
    assert len(served.service.waiting) == len(served.service.drawings) == 0


def test_what_fails_is_told_and_the_server_goes_on(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from sdort.generation.command import Pipeline

    def lost(*_: Any) -> Any:
        raise ProviderError("the GPU is lost", hint="Look at dmesg.")

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("secret prompt")

    for failure, told in ((lost, "the GPU is lost. Look at dmesg."), (broken, "the image could not be drawn")):
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "generate_job", failure)
            answer = served.post("/v1/images/generations", prompt="a")
            assert answer.status_code == 500
            assert answer.json()["error"]["message"].startswith(told)
            name, data = served.events(served.draw())[-1]
            assert (name, data["message"][: len(told)]) == ("failed", told)
        assert is_well(served)


def test_one_bad_image_of_a_batch_leaves_the_others(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from sdort.errors import ParityError
    from sdort.generation.command import Pipeline

    own = Pipeline.generate_job

    def picky(self: Pipeline, job: Any, *rest: Any) -> Any:
        if any(request.prompt == "bad" for request in job.requests):
            raise ParityError("the UNet gave NaN")
        return own(self, job, *rest)

    monkeypatch.setattr(Pipeline, "generate_job", picky)
    drawings = [served.draw(prompt=prompt) for prompt in ("good", "bad", "fine")]
    assert [served.events(drawing)[-1][0] for drawing in drawings] == ["done", "failed", "done"]


def test_answers_are_not_held_back(served: Running) -> None:
    """With Nagle's algorithm each takes the 40 ms of a delayed acknowledgement; the fastest of many is told."""
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        served.client.get("/health")
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.03


def test_metrics_and_readiness(served: Running) -> None:
    assert is_well(served)
    text = served.client.get("/metrics").text
    for name in ("sdort_queue_length 0.0", 'sdort_images_total{model="tiny"}', 'sdort_requests_total{end="done"}',
                 "sdort_batch_images_bucket", 'sdort_stage_seconds_count{stage="denoise"}'):  # fmt: skip
        assert name in text
    assert served.client.get("/ready").json() == {"status": "ready"}


def test_a_large_image_to_begin_with_is_taken_within_bounds(served: Running) -> None:
    drawing = served.draw(init_image=data_url(png(size=(1024, 1024))))
    assert served.events(drawing)[-1][0] == "done"
    assert served.service.kept[drawing].requests == []


def test_who_does_not_read_an_answer_is_sent_away(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the answer does not fit into the buffers of the connection."""
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(served.service.metrics, "text", lambda: b"#" * 50_000_000)
    ended = threading.Event()
    own = connection.Connection.connection_lost

    def lost(self: Any, error: Any) -> None:
        own(self, error)
        ended.set()

    monkeypatch.setattr(connection.Connection, "connection_lost", lost)
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert ended.wait(10)
    assert is_well(served)
