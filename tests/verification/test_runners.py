"""Where a verification runs: on the provider that was named, as it was asked for, or not at all."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from support.small_models import write

import sdort
from sdort.cli import cli
from sdort.machine import distributions
from sdort.machine.onnxruntime_copies import Flavour
from sdort.onnx_io.precision_mark import BF16, PRECISION_KEY
from sdort.providers import CPU, PROVIDERS
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import session as session_module
from sdort.runtime.opener import ALL, BASIC
from sdort.verification.bisection.subgraph import extract_subgraph
from sdort.verification.bisection.tensor_pairs import GraphPair, run_graph
from sdort.verification.runners import RunConfiguration, open_component

TEXT = "g (float[B, 4] x) => (float[B, 4] y) { t = Add (x, w)  y = Mul (t, x) }"
SOURCES = Path(sdort.__path__[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path, TEXT, {"w": np.ones(4, np.float32)})


class Opened:
    """In the place of ONNX Runtime: what every session was opened with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[SimpleNamespace] = []
        monkeypatch.setattr(session_module, "create_session", self.create)
        monkeypatch.setattr(
            session_module, "prepare_tuning", lambda path, component, provider, options: self.tuned(options)
        )

    def tuned(self, options: RuntimeOptions) -> Any:
        return SimpleNamespace(options=options, apply=lambda ort: self.calls[-1].__dict__.update(tuned=True))

    def create(self, model: str | bytes, provider: Provider, options: RuntimeOptions, **settings: Any) -> Any:
        self.calls.append(SimpleNamespace(model=model, provider=provider, options=options, tuned=False, **settings))
        value = SimpleNamespace(name="x", type="tensor(float)", shape=[1, 4])
        return SimpleNamespace(
            get_inputs=lambda: [value],
            get_outputs=lambda: [value],
            get_provider_options=lambda: {provider.ep: dict.fromkeys(provider.bf16, "1")},
            run=lambda *_: [np.zeros((1, 4), np.float32)],
        )


ASKED = RuntimeOptions("cuda", device_id=1, tuning=True, provider_options={"use_tf32": "0"}, custom_ops="off")


def test_a_part_runs_in_the_configuration_that_failed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, cuda = Opened(monkeypatch), PROVIDERS["cuda"]
    feeds = {"x": np.zeros((1, 4), np.float32)}
    graphs = GraphPair("unet", path, path, RunConfiguration(cuda, ASKED), feeds)
    run_graph(graphs.graph(path), graphs, feeds, original=False)
    open_component(path, "unet", graphs.configuration)
    part, whole = opened.calls
    assert (part.provider, part.options, part.optimization) == (cuda, ASKED, ALL)
    # What a trial would refuse is warned of, and then compared.
    assert (whole.provider, whole.options, whole.optimization) == (cuda, replace(ASKED, trials=False), ALL)
    assert part.tuned
    assert part.data_folder == path.parent
    run_graph(graphs.graph(path), graphs, feeds, original=True)
    reference = opened.calls[-1]
    assert (reference.provider, reference.options.provider_options, reference.optimization) == (CPU, {}, BASIC)


def test_a_part_of_a_model_for_bf16_runs_in_bf16_unless_it_is_to_be_in_fp32(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(path)
    model.metadata_props.add(key=PRECISION_KEY, value=BF16)
    onnx.save(model, path)
    opened, migraphx = Opened(monkeypatch), PROVIDERS["migraphx"]
    monkeypatch.setattr("sdort.providers.session_settings.flavour", lambda: Flavour("onnxruntime-migraphx", "1.27.1"))
    feeds = {"x": np.zeros((1, 4), np.float32)}
    graphs = GraphPair(
        "unet", path, path, RunConfiguration(migraphx, RuntimeOptions("migraphx", custom_ops="off")), feeds
    )
    for wide in (False, True):
        part = extract_subgraph(graphs, graphs.graph(path).graph.node, "y", {}, wide)
        run_graph(part, graphs, feeds, original=False, exact=wide)
    assert [call.options.provider_options for call in opened.calls] == [dict(migraphx.bf16), {}]


def test_without_onnxruntime_verify_says_what_bench_says(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "installed_copies", list)
    distributions.import_onnxruntime.cache_clear()
    try:
        said = [
            CliRunner().invoke(cli, [command, str(path), *more, "--provider", "cpu"])
            for command, more in (("verify", ["--against", str(path)]), ("bench", []))
        ]
    finally:
        distributions.import_onnxruntime.cache_clear()
    assert [each.exit_code for each in said] == [6, 6]
    assert "ONNX Runtime is not installed" in said[0].stderr
    assert said[0].stderr == said[1].stderr


def test_onnxruntime_is_imported_and_a_session_made_in_one_place() -> None:
    """Whoever imports it elsewhere shows its absence as a bug, and whoever makes a session forgets what was asked."""
    imports, sessions = [], []
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imports += [str(file) for name in names if name.partition(".")[0] == "onnxruntime"]
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "InferenceSession":
                sessions.append(file.relative_to(SOURCES).as_posix())
    assert imports == []
    assert sessions == ["machine/distributions.py"]
