"""The room that a warm-up needs, and how its time is told: item by item, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.errors import ProviderError
from sdort.generation.latents.decode import Plan
from sdort.operator_library.tuning_table import Entry
from sdort.providers import PROVIDERS
from sdort.warmup import bundle_sizes, tune_ops
from sdort.warmup import command as warm
from sdort.warmup.bundle_sizes import plan_space
from sdort.warmup.items import Decode, Item, add
from sdort.warmup.warm_report import Warmed, Warmup
from sdort.workload.cases import Case

SIZES = {"unet": 700, "vae_decoder": 30}


def item(component: str, name: str, decodes: Any = ()) -> Item:
    key: Any = SimpleNamespace(name=name)
    return Item(Case(component, 2, 64, 96), Path(component), {}, key, list(decodes))


@pytest.mark.parametrize(
    ("provider", "extra", "note", "holds_weights"),
    [
        ("migraphx", 50_000_000, "compiled program", True),
        ("rocm", 50_000_000, "kernels and tables", False),
        ("cuda", 50_000_000, "kernels and tables", False),
        ("cpu", 1_000_000, "that it ran", False),
    ],
)
def test_what_each_item_keeps(
    provider: str, extra: int, note: str, holds_weights: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_sizes, "weight_bytes", lambda folder, names: sum(SIZES[name] for name in names))
    store: Any = SimpleNamespace(names=lambda: ["b"], folder=tmp_path)
    target: Any = SimpleNamespace(folder=None, provider=PROVIDERS[provider])
    planned = plan_space([item("unet", "a"), item("unet", "b"), item("vae_decoder", "c")], store, target)
    expected = [
        (extra + 700 * holds_weights, note), (0, "kept already"), (extra + 30 * holds_weights, note),
    ]  # fmt: skip
    assert [(write.bytes, write.note) for write in planned.writes] == expected
    assert {write.folder for write in planned.writes} == {tmp_path}
    assert planned.writes[0].name == "unet, batch 2, 96x64"
    assert planned.peak_memory == 500_000_000 + 2 * 700
    assert plan_space([], store, target).peak_memory == 500_000_000


def test_an_item_of_the_same_shapes_takes_over_what_another_decodes() -> None:
    decodes = [Decode(Case("vae_decoder", number, 64, 96), Plan()) for number in (1, 2, 3)]
    there: dict[str, Item] = {}
    for name, indices in (("a", (0, 1)), ("b", (0,)), ("a", (1, 2))):
        add(there, item("vae_decoder", name, [decodes[index] for index in indices]))
    assert {name: each.decodes for name, each in there.items()} == {"a": decodes, "b": decodes[:1]}
    assert str(there["a"]).startswith("vae_decoder, batch 2, 96x64 (1 of 96x64 all at once; 2 of 96x64 all at once; ")


def warmed(status: str, before: float | None = None, after: float | None = None, problem: str = "") -> Warmed:
    return Warmed("unet", 2, 64, 96, status, "", [], before, after, problem or None)


def test_a_failure_is_told_with_the_first_reason() -> None:
    done = [warmed("new", 1.0), warmed("too large"), warmed("failed", problem="no room"), warmed("failed", problem="x")]
    with pytest.raises(
        ProviderError, match=r"^2 of 4 did not run\. The first: unet, batch 2, 96x64: no room"
    ) as caught:
        Warmup(done, 0).raise_if_failed()
    assert "What else was tuned is kept" in str(caught.value.hint)
    Warmup([warmed("new"), warmed("left"), warmed("kept"), warmed("too large")], 1).raise_if_failed()


@pytest.mark.parametrize(
    ("done", "left", "verdict"),
    [
        ([], 0, "0 of 0 ready."),
        ([warmed("kept", 9.0)], 0, "1 of 1 ready, 1 of them since an earlier time; first runs took 9.0 s."),
        ([warmed("failed", 9.0), warmed("too large", 9.0)], 0, "0 of 2 ready."),
        ([warmed("new", 4.0, 1.0), warmed("new", 2.0)], 0, "2 of 2 ready; first runs now take 1.0 s, before 4.0 s."),
        ([warmed("new", 4.0), warmed("new")], 0, "2 of 2 ready; first runs took 4.0 s."),
        (
            [warmed("new", 4.0), warmed("left")], 1,
            "1 of 2 ready; first runs took 4.0 s. The time was up with 1 left: the same command goes on with them.",
        ),
    ],
)  # fmt: skip
def test_verdicts(done: list[Warmed], left: int, verdict: str) -> None:
    assert Warmup(done, left).verdict == verdict


@pytest.mark.parametrize(
    ("done", "todo", "remaining", "said", "warned"),
    [
        (warmed("new", 4.0, 0.5), 3, 120.0, "first run 4.0 s, with what is kept 0.5 s; 3 to go, about 120 s", ""),
        (warmed("new", 4.0), 3, None, "first run 4.0 s; 3 to go", ""),
        (warmed("new", 4.0), 0, None, "first run 4.0 s", ""),
        (warmed("kept", 4.0), 1, 1.0, "", ""),
        (warmed("new"), 1, 1.0, "", ""),
        (warmed("failed", problem="no room"), 1, 1.0, "", "unet, batch 2, 96x64: no room"),
    ],
)
def test_how_an_item_ended_is_said(
    done: Warmed, todo: int, remaining: float | None, said: str, warned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []
    for name in ("say", "warn"):
        monkeypatch.setattr(warm, name, lambda text, name=name: told.append((name, text)))
    store: Any = None
    target: Any = SimpleNamespace(runtime=None)
    warmer = warm._Warmer(store, target, None)
    warmer.todo = [item("unet", "a")] * todo
    monkeypatch.setattr(warmer, "remaining", lambda: remaining)
    warmer.announce(done)
    expected = [("say", f"unet, batch 2, 96x64: {said}")] if said else []
    assert told == expected + ([("warn", warned)] if warned else [])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A GPU that is here, and what it was asked."""
    import os

    asked: list[Any] = []
    before, after = [Entry("sm_90", "a", "x", 1.0)], [Entry("sm_90", "a", "x", 1.0), Entry("sm_90", "b", "y", 2.0)]
    tables = [before, after]
    case = SimpleNamespace

    class Engine:
        def __init__(self, path: Path, provider: Any, options: Any) -> None:
            asked.append((path, provider.name, options.fallback, options.device_id, options.custom_ops))

        def components(self) -> str:
            return "components"

        def default_size(self) -> tuple[int, int]:
            return 64, 96

        def prepare(self, case: Any, *_: Any) -> Any:
            asked.append((case.component, os.environ["SDORT_OPS_TUNE"], os.environ["SDORT_OPS_TUNING"]))
            return lambda: asked.append("ran")

        def close(self) -> None:
            asked.append("closed")

    def cases(components: str, batch_sizes: Any, sizes: Any) -> Any:
        asked.append((components, tuple(batch_sizes), tuple(sizes)))
        return [case(component="pipeline"), case(component="unet")]

    def choose(options: Any, **_: Any) -> Any:
        return PROVIDERS[options.provider], None

    monkeypatch.setattr("sdort.engines.onnx.OnnxEngine", Engine)
    monkeypatch.setattr("sdort.workload.cases.cases", cases)
    monkeypatch.setattr("sdort.runtime.probe.choose_provider", choose)
    monkeypatch.setattr(tune_ops, "resolve", asked.append)
    monkeypatch.setattr(tune_ops, "read_table", lambda: tables.pop(0))
    monkeypatch.setattr(tune_ops, "tuning_table", lambda: tmp_path / "ops/tuning.tsv")
    yield asked
    assert os.environ.get("SDORT_OPS_TUNE") is None
    assert os.environ.get("SDORT_OPS_TUNING") == "/mine"


def test_kernels_are_tuned_into_the_table_and_the_environment_is_as_before(
    machine: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SDORT_OPS_TUNE", raising=False)
    monkeypatch.setenv("SDORT_OPS_TUNING", "/mine")
    found = tune_ops.tune_ops("model", provider="cuda", batch_sizes=[1, 2], device_id=3)
    table = tmp_path / "ops/tuning.tsv"
    assert (found.table, found.entries) == (table, [Entry("sm_90", "b", "y", 2.0)])
    assert machine == [
        "on", (Path("model"), "cuda", False, 3, "on"), ("components", (1, 2), ((64, 96),)), ("unet", "1", str(table)),
        "ran", "closed",
    ]  # fmt: skip
    assert table.parent.is_dir()


def test_sizes_that_are_given_are_tuned_and_the_cpu_is_refused(
    machine: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SDORT_OPS_TUNE", raising=False)
    monkeypatch.setenv("SDORT_OPS_TUNING", "/mine")
    with pytest.raises(ProviderError, match="no GPU to tune for"):
        tune_ops.tune_ops("model", provider="cpu")
    tune_ops.tune_ops("model", provider="rocm", sizes=[(64, 128), (8, 16)])
    assert ("components", (1,), ((64, 128), (8, 16))) in machine
