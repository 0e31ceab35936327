"""The command: its log, its end at a signal, and what it needs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click import Context

import sdort
from sdort.errors import UsageError

PROMPT = "a secret lighthouse, <lora:nothing:1>"


class Command:
    """``sdort serve`` in a process of its own, with the lines of its log."""

    def __init__(self, process: subprocess.Popen[str], stack: ExitStack) -> None:
        self.process, self.lines = process, list[str]()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        stack.callback(self.reader.join)
        stack.callback(process.kill)
        self._wait("listening at http")
        port = re.search(r":(\d+)$", self.lines[0])
        assert port
        self.client = stack.enter_context(httpx2.Client(base_url=f"http://127.0.0.1:{port[1]}", timeout=30))
        for _ in range(600):
            if self.client.get("/ready").status_code == 200:
                return
            time.sleep(0.05)
        raise AssertionError(self.lines)

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def _wait(self, text: str) -> None:
        for _ in range(600):
            if any(text in line for line in self.lines):
                return
            assert self.process.poll() is None, self.lines
            time.sleep(0.05)
        raise AssertionError(self.lines)

    def ended(self) -> tuple[int, str]:
        """The exit code, and what stands on stdout."""
        code = self.process.wait(30)
        self.reader.join()
        assert self.process.stdout
        return code, self.process.stdout.read()


@contextmanager
def command(pipeline: Path, *options: str) -> Iterator[Command]:
    words = [sys.executable, "-m", "sdort", "serve", str(pipeline), "--provider", "cpu", "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words += ["--size", "64x64"]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        found = Command(process, stack)
        yield found


def test_a_signal_ends_it_when_what_waits_is_drawn(pipeline: Path) -> None:
    with command(pipeline, "--json") as served:
        answers: list[Any] = []

        def ask() -> None:
            body = {"prompt": PROMPT, "steps": 40, "n": 4}
            answers.append(served.client.post("/v1/images/generations", json=body))

        thread = threading.Thread(target=ask)
        thread.start()
        served._wait('"queued"')
        served.process.send_signal(signal.SIGTERM)
        code, out = served.ended()
        thread.join(30)
        assert [answer.status_code for answer in answers] == [200]
        assert len(answers[0].json()["data"]) == 4
        assert code == 0
        report = json.loads(out)
        assert (report["schema"], report["requests"], report["images"]) == ("sdort-serve-1", 1, 4)
        entries = [json.loads(line) for line in served.lines[1:]]
        queued, done = (next(each for each in entries if each["message"] == name) for name in ("queued", "done"))
        assert queued["drawing"] == done["drawing"]
        request = next(each for each in entries if each.get("path") == "/v1/images/generations")
        assert (request["request"], request["status"]) == (queued["request"], 200)
        assert answers[0].headers["x-request-id"] == request["request"]
        assert "lighthouse" not in "\n".join(served.lines)


def test_what_is_not_drawn_in_time_is_told_and_prompts_are_logged_where_that_is_asked(pipeline: Path) -> None:
    with command(pipeline, "--drain", "0", "--log-prompts") as served:
        answer = served.client.post("/api/images", json={"prompt": PROMPT, "steps": 100, "num_images": 8})
        assert answer.status_code == 202
        served.process.send_signal(signal.SIGINT)
        code, out = served.ended()
        assert code == 0
        assert "0 images of 1 request; refused: 0, failed: 1, cancelled: 0" in out
        assert any("lighthouse" in line for line in served.lines)


def test_without_its_packages_it_says_which_to_install(pipeline: Path) -> None:
    code = "import sys; sys.modules['fastapi'] = sys.modules['uvicorn'] = None; from sdort.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", str(pipeline)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 9
    assert "sdort serve needs fastapi, uvicorn, which are not installed" in done.stderr
    assert re.search(r"pip install '?fastapi>=0.115'? '?uvicorn>=0.30'?", done.stderr)


def test_a_broken_pipeline_ends_the_command(pipeline: Path, tmp_path: Path) -> None:
    from shutil import copytree

    broken = copytree(pipeline, tmp_path / "broken")
    (broken / "unet" / "model.onnx").write_bytes(b"no model")
    done = subprocess.run(
        [sys.executable, "-m", "sdort", "serve", str(broken), "--provider", "cpu", "--port", "0", "--no-check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "Error: " in done.stderr


def test_two_pipelines_of_one_name_are_refused(pipeline: Path) -> None:
    with pytest.raises(UsageError, match="two pipelines are called tiny"):
        sdort.serve([pipeline, f"tiny={pipeline}"], port=0, provider="cpu")


def test_the_recipes_of_services_have_options_that_there_are() -> None:
    from sdort.cli import cli
    from sdort.cli.serve import command as serve

    assert cli.get_command(Context(cli), "serve") is serve
    recipes = Path(__file__).parents[2] / "docs" / "recipes"
    texts = [(recipes / name).read_text() for name in ("image-server.service", "Containerfile", "lemonade-sdort.json")]
    parsed = json.loads(texts[2])
    assert {"recipe", "health_probe", "platforms"} <= parsed.keys()
    used = {word for text in texts for word in re.findall(r'(?<=[ "])--[a-z-]+', text.partition("serve")[2])}
    known = {flag for option in serve.params for flag in option.opts}
    others = {"--gpus", "--device", "--create-home", "--uid", "--start-period", "--no-cache-dir"}
    assert {"--host", "--port", "--provider", "--api-keys"} <= used
    assert used - others <= known


def test_the_benchmark_of_the_server(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import serve_benchmark

    words = [str(pipeline), "--provider", "cpu", "--steps", "1", "--images", "32", "--rounds", "1", "--clients", "2"]
    words += ["--size", "64x64", "--half-load", "2", "--json", str(tmp_path / "rows.json")]
    monkeypatch.setattr(sys, "argv", ["serve_benchmark.py", *words])
    monkeypatch.setattr(serve_benchmark, "OPEN", "print(1_000_000)")
    assert serve_benchmark.main() == 0
    out = capfd.readouterr().out
    assert re.search(r"^opening [\d.]+ s, 1 MB; ready [\d.]+ s, \d+ MB$", out, re.MULTILINE)
    assert re.search(r"^batch [\d.]+ images/s, serve [\d.]+ images/s, ratio [\d.]+ \(medians of 1 rounds\)$", out, re.M)
    found = json.loads((tmp_path / "rows.json").read_text())
    assert found["ratio"] == found["serve"] / found["batch"]
    assert (found["half_load"]["rate"], found["half_load"]["failed"]) == (found["serve"] / 2, 0)
    assert 0 < found["half_load"]["p50"] <= found["half_load"]["p99"]


def test_the_rate_of_what_is_busy_leaves_out_its_ends() -> None:
    from measuring import steady_rate

    bursts = [10.0 + second for second in range(6) for _ in range(4)]  # 4 images a second
    assert steady_rate([*bursts, 99.0, 98.0, 1.0, 2.0], 2) == pytest.approx(4, rel=0.05)
    assert steady_rate(bursts, 5) is None
