"""What commands print of a result: every cell of their tables, the verdict, and who hears it (--json, -q, -v)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from sdort import console
from sdort.checkpoints.configs import INDEX
from sdort.cli import cache as cache_command
from sdort.cli import cli, completions, fusions, optimize, placement
from sdort.cli import inspect as inspect_command
from sdort.cli import ops as ops_command
from sdort.cli import tuning as tuning_command
from sdort.cli.dry_run import show_plan
from sdort.cli.optimize_report import explained, show_report
from sdort.cli.verify import _show, _show_signature
from sdort.doctor.cache_entries import CacheEntry
from sdort.doctor.caches import CacheCleaning, CacheReport
from sdort.errors import OutputError, ProviderError, SdortError
from sdort.files.disk import DiskSpace, PlannedWrite, WritePlan
from sdort.lowering.component_report import ComponentReport, Fp32Report, Fp32Rule
from sdort.operator_library.build import Build
from sdort.operator_library.command import OpsBuild, OpsLibrary, OpsTuning
from sdort.operator_library.library import CodeObject, Description, LibraryOperator
from sdort.operator_library.tuning_table import Entry
from sdort.optimizer.report import OptimizeReport
from sdort.rewrite.apply import Outcome, Unfused
from sdort.tables import NO_BREAK, Table
from sdort.tuning.command import BundleReport, ReadableBundleReport, TuningCache, TuningImport, TuningPrune


class Printed(list[tuple[Any, ...]]):
    """Calls of the console by name, tables as their title and cells; and what a command got by being run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.quiet = False
        for name in ("show", "say", "warn", "conclude", "emit_json", "show_text", "detail"):
            monkeypatch.setattr(console, name, self.recorder(name))
        monkeypatch.setattr(console, "is_quiet", lambda: self.quiet)

    def recorder(self, name: str) -> Callable[..., None]:
        def record(*given: Any) -> None:
            plain = [cells_of(value) if isinstance(value, Table) else value for value in given]
            self.append((name, *(value for value in plain if value is not None)))

        return record

    def of(self, *words: str) -> list[tuple[Any, ...]]:
        """What a command prints."""
        del self[:]
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.output
        return [*self]


def cells_of(table: Table) -> tuple[str, list[tuple[str, ...]]]:
    return table.title, [tuple(cell.replace(NO_BREAK, " ") for cell in row.cells) for row in table.rows]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    return Printed(monkeypatch)


# Writes that are planned


def plan(free: int | None, *needed: int) -> WritePlan:
    out = Path("/out")
    writes = [
        PlannedWrite("unet", out, 5_000_000, "in halves"), PlannedWrite("traces", Path("/cache"), 1000),
        PlannedWrite("vae", out, 7000, "whole"),
    ]  # fmt: skip
    disks = [DiskSpace(Path(f"/disk{n}"), need, 9_000_000) for n, need in enumerate(needed)]
    return WritePlan(writes, 2_000_000, 300_000_000, free, disks)


ROWS = [
    ("unet", "5.0 MB", "in halves", ""), ("traces", "1.0 kB", "", "/cache"), ("vae", "7.0 kB", "whole", ""),
    ("for a while", "2.0 MB", "removed before the end", ""),
]  # fmt: skip
WRITES = ("show", ("Would be written to /out (estimates)", ROWS))


def test_a_plan_that_fits_is_told_with_its_memory_and_each_disk(printed: Printed) -> None:
    show_plan(plan(4_000_000_000, 8_000_000, 1000), as_json=False)
    assert printed == [
        WRITES, ("show", "Memory: about 300.0 MB of 4.0 GB free (an estimate)."),
        ("conclude", "It fits: 8.0 MB of 9.0 MB free at /disk0, 1.0 kB of 9.0 MB free at /disk1."),
    ]  # fmt: skip
    del printed[:]
    show_plan(plan(None, 1), as_json=False)
    assert printed[1] == ("show", "Memory: about 300.0 MB (an estimate).")
    del printed[:]
    show_plan(WritePlan([], 0, 0, 0), as_json=False)
    assert printed[:2] == [
        ("show", ("Would be written to None (estimates)", [])), ("show", "Memory: about 0 B of 0 B free (an estimate).")
    ]  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True])
def test_a_plan_that_does_not_fit_is_told_before_the_error_which_holds_it(as_json: bool, printed: Printed) -> None:
    made = plan(1, 8_000_000, 9_000_001)
    with pytest.raises(OutputError, match="at /disk1") as caught:
        show_plan(made, as_json=as_json)
    assert printed == ([] if as_json else [WRITES])
    assert caught.value.record == console.to_json(made)
    del printed[:]
    fitting = plan(1, 5)
    show_plan(fitting, as_json=True)
    assert printed == [("emit_json", fitting)]


# Caches


def entry(kind: str, name: str, size: int, age: int, **state: Any) -> CacheEntry:
    return CacheEntry(kind, name, Path("/caches") / kind / name, size, age, **state)


ENTRIES = [
    entry("traces", "a", 1000, 90, in_use=True), entry("traces", "b", 500, 7200, outdated=True),
    entry("ops", "c", 2_000_000, 5, in_use=True, outdated=True), entry("traces", "d", 1, 30),
]  # fmt: skip
CELLS = [
    ("traces", "a", "1.0 kB", "2 min", "in use"), ("traces", "b", "500 B", "2 h", "of an earlier sdort"),
    ("ops", "c", "2.0 MB", "5 s", "in use"), ("traces", "d", "1 B", "30 s", ""),
]  # fmt: skip


def test_caches_are_listed_by_kind_and_by_entry(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def list_cache(kinds: Any = ()) -> CacheReport:
        asked.append(kinds)
        return CacheReport(Path("/caches"), [each for each in ENTRIES if not kinds or each.kind in kinds])

    monkeypatch.setattr("sdort.doctor.caches.list_cache", list_cache)
    sums = [
        ("traces", "3", "1.5 kB", "2 h", "/caches/traces"), ("ops", "1", "2.0 MB", "5 s", "/caches/ops"),
    ]  # fmt: skip
    total = [("show", ("", sums)), ("conclude", "4 entries, 2.0 MB", "sdort cache clean --dry-run")]
    assert printed.of("cache") == printed.of("cache", "size") == total
    assert printed.of("cache", "list") == [("show", ("", CELLS)), ("conclude", "4 entries, 2.0 MB")]
    assert printed.of("cache", "list", "ops") == [("show", ("", CELLS[2:3])), ("conclude", "1 entry, 2.0 MB")]
    assert asked == [(), (), (), ("ops",)]
    assert printed.of("cache", "list", "--json") == [("emit_json", CacheReport(Path("/caches"), ENTRIES))]
    assert printed.of("cache", "list", "models") == [("conclude", "0 entries, 0 B")]
    monkeypatch.setattr("sdort.doctor.caches.list_cache", lambda: CacheReport(Path("/caches"), []))
    assert printed.of("cache", "size") == [("conclude", "0 entries, 0 B")]
    assert cache_command._amount([]) == "0 entries, 0 B"


@pytest.mark.parametrize(
    ("kind", "name", "in_use", "state"),
    [
        ("models", ".making-0", False, "left by a killed command"),
        ("models", ".making-0", True, "in use"),
        ("temporary", "sdort-tmp-a", False, "left by a killed command"),
        ("traces", "a.trace", False, ""),
    ],
)
def test_what_a_killed_command_left_is_called_that(
    kind: str, name: str, in_use: bool, state: str, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [entry(kind, name, 1, 1, in_use=in_use)]
    monkeypatch.setattr("sdort.doctor.caches.list_cache", lambda kinds=(): CacheReport(Path("/caches"), left))
    assert printed.of("cache", "list")[0] == ("show", ("", [(kind, name, "1 B", "1 s", state)]))


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("removed", [False, True])
def test_a_cleaning_is_told(removed: bool, quiet: bool, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under -q only what would go, which is what was asked."""
    done = CacheCleaning(removed, ENTRIES[1:2], ENTRIES[2:3], 500)
    monkeypatch.setattr("sdort.doctor.caches.clean_cache", lambda *_, **__: done)
    printed.quiet = quiet
    found = printed.of("cache", "clean")
    if removed and quiet:
        assert found == []
    else:
        assert found == [
            ("show", ("", CELLS[1:2])), ("say", "kept, as a running command uses it: /caches/ops/c"),
            ("conclude", f"{'Removed' if removed else 'Would remove'} 1 entry, 500 B"),
        ]  # fmt: skip
    assert printed.of("cache", "clean", "--json") == [("emit_json", done)]


# Tuning bundles

KEY = {
    "shapes": {"sample": [2, 4, 8, 6], "timestep": [], "states": [2, 77]}, "architecture": "gfx1100",
    "toolkit": "HIP 7.1.2", "onnxruntime": "onnxruntime 1.23",
}  # fmt: skip
READABLE = ReadableBundleReport("unet-1", "stale", "ep differs", KEY, 3000, 4, 100, 7200, 1.5)
BROKEN = BundleReport("unet-2", "broken", "cut off")
BUNDLES = [
    ("unet-1", "2x4x8x6 2x77", "2 h", "stale", "ep differs", "sample 2x4x8x6, timestep scalar, states 2x77",
     "gfx1100, HIP 7.1.2, onnxruntime 1.23", "3.0 kB"),
    ("unet-2", "", "", "broken", "cut off", "", "", ""),
]  # fmt: skip


def test_bundles_are_listed_with_their_shapes_and_machine(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    bundles: list[BundleReport] = [READABLE, BROKEN]

    def list_tuning(custom_ops: str) -> TuningCache:
        asked.append(custom_ops)
        return TuningCache(Path("/tuning"), bundles)

    monkeypatch.setattr("sdort.tuning.command.list_tuning", list_tuning)
    assert printed.of("tuning", "list", "--custom-ops", "off") == [
        ("show", ("Tuning bundles", BUNDLES)),
        ("conclude", "Runs here use 0 of 2 bundles, 3.0 kB in /tuning", "sdort tuning prune"),
    ]
    assert printed.of("tuning", "list", "--json") == [("emit_json", TuningCache(Path("/tuning"), bundles))]
    assert asked == ["off", "auto"]
    del bundles[:]
    assert printed.of("tuning", "list") == [("conclude", "No tuning bundles in /tuning", "sdort warm PIPELINE")]
    cpu = {**KEY, "toolkit": "", "architecture": "x86_64"}
    assert tuning_command._table("", []).details == ("inputs", "made for", "size")
    assert tuning_command._table("", []).headers == (
        "bundle", "shapes", ">age", "here", "why", "inputs", "made for", ">size"
    )  # fmt: skip
    here = ReadableBundleReport("a", "used", "", cpu, 1, 1, 1, 59, None)
    assert tuning_command._cells(here)[1:4:2] == ("59 s", "x86_64, onnxruntime 1.23")


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("elsewhere", [[], ["b"], ["a", "b"]])
def test_an_import_warns_of_what_no_run_here_uses(
    elsewhere: list[str], quiet: bool, printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tar").touch()
    done = TuningImport(["a", "b"], elsewhere)
    monkeypatch.setattr("sdort.tuning.command.import_tuning", lambda *_, **__: done)
    printed.quiet = quiet
    file = str(tmp_path / "a.tar")
    told = ("warn", f"{len(elsewhere)} of them are for other machines; no run here uses those")
    warned = [told] if elsewhere else []
    concluded = [] if quiet else [("conclude", f"Imported 2 bundles from {file}", "sdort tuning list")]
    assert printed.of("tuning", "import", file) == [*warned, *concluded]
    assert printed.of("tuning", "import", file, "--json") == [*warned, ("emit_json", done)]


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("removed", [False, True])
def test_bundles_that_are_pruned_are_told(
    removed: bool, quiet: bool, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = TuningPrune(removed, [BROKEN])
    monkeypatch.setattr("sdort.tuning.command.prune_tuning", lambda **_: done)
    printed.quiet = quiet
    title, verb = ("Removed", "Removed") if removed else ("To be removed", "Would remove")
    told = [("show", (title, BUNDLES[1:])), ("conclude", f"{verb} 1 bundle")]
    assert printed.of("tuning", "prune") == ([] if removed and quiet else told)
    assert printed.of("tuning", "prune", "--json") == [("emit_json", done)]


# Custom operators


def made(code: tuple[str, ...] = ("gfx1100", "sm_90"), left_out: tuple[str, ...] = ()) -> Build:
    return Build(Path("/ops/lib.so"), code, left_out, "the package", 12.6, "2026-01-02")


@pytest.mark.parametrize("new", [False, True])
def test_a_build_says_what_it_has_and_what_it_left_out(
    new: bool, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, left_out, lines in (
        (("gfx1100", "sm_90"), ("gfx900", "gfx906"),
         ["  CPU, and machine code for gfx1100, sm_90", "  left out, as no compiler here knows it: gfx900, gfx906"]),
        ((), (), ["  CPU, and machine code for no GPU"]),
    ):  # fmt: skip
        done = OpsBuild(made(code, left_out), new)
        monkeypatch.setattr("sdort.operator_library.command.build_ops", lambda done=done, **_: done)
        account = "\n".join([*lines, "  ONNX Runtime headers: the package"])
        assert printed.of("ops", "build") == [
            ("say", "built in 13 s: /ops/lib.so" if new else "up to date: /ops/lib.so"), ("say", account),
            ("say", "Next:\n    sdort ops list"),
        ]  # fmt: skip
        assert printed.of("ops", "build", "--json") == [("emit_json", done)]


def operator(name: str, domain: str = "com.microsoft", **given: Any) -> LibraryOperator:
    return LibraryOperator(**{"domain": domain, "name": name, "cpu": True, "gpu": True, "by_default_on_cuda": False,
                              **given})  # fmt: skip


def test_the_library_is_listed_with_its_operators(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = (
        operator("GroupNorm"), operator("NhwcConv", by_default_on_cuda=True), operator("Resize", "", gpu=False),
        operator("FusedMatMul", cpu=False),
    )  # fmt: skip
    rows = [
        ("com.microsoft", "GroupNorm", "yes", "yes", "if SDORT_OPS names it"),
        ("com.microsoft", "NhwcConv", "yes", "yes", "yes"), ("ai.onnx", "Resize", "yes", "no", "no"),
        ("com.microsoft", "FusedMatMul", "no", "yes", "if SDORT_OPS names it"),
    ]  # fmt: skip
    code: tuple[CodeObject, ...] = ()
    for codes, ends in ((("gfx1100", "sm_90"), " and gfx1100, sm_90."), ((), ", no GPU.")):
        library = OpsLibrary(made(codes), "ab", 5_000_000, Description(operators, code))
        monkeypatch.setattr("sdort.operator_library.command.list_ops", lambda library=library: library)
        assert printed.of("ops", "list") == [
            ("show", ("Operators, for float32 and float16", rows)),
            ("say", "\n/ops/lib.so, built 2026-01-02; the cache holds 5.0 MB"),
            ("say", ops_command._account(made(codes))), ("conclude", f"4 operators for the CPU{ends}"),
        ]  # fmt: skip
        assert printed.of("ops", "list", "--json") == [("emit_json", library)]


def test_the_fastest_variants_are_told_as_of_now_or_before(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [Entry("gfx1100", "conv 3x3", "tiled", 12.34), Entry("sm_90", "norm", "wide", 1234.56)]
    rows = [("gfx1100", "conv 3x3", "tiled", "12.3"), ("sm_90", "norm", "wide", "1234.6")]
    before, now = OpsTuning(Path("/t.tsv"), entries), OpsTuning(Path("/t.tsv"), entries[:1])
    monkeypatch.setattr("sdort.operator_library.command.tuned_ops", lambda: before)
    monkeypatch.setattr("sdort.warmup.tune_ops.tune_ops", lambda *_, **__: now)
    assert printed.of("ops", "tune", "--show") == printed.of("ops", "tune", "model", "--show") == [
        ("show", ("Fastest variants", rows)), ("conclude", "2 kernels tuned before, kept in /t.tsv")
    ]  # fmt: skip
    assert printed.of("ops", "tune", "model") == [
        ("show", ("Fastest variants", rows[:1])), ("conclude", "1 kernel tuned now, kept in /t.tsv")
    ]  # fmt: skip
    assert printed.of("ops", "tune", "model", "--json") == [("emit_json", now)]
    monkeypatch.setattr("sdort.operator_library.command.tuned_ops", lambda: OpsTuning(Path("/t.tsv"), []))
    assert printed.of("ops", "tune", "--show") == [("conclude", "0 kernels tuned before, kept in /t.tsv")]
    assert "give a PIPELINE, or --show" in CliRunner().invoke(cli, ["ops", "tune"]).output


# Optimizations


def place(fusion: str, node: str, *, matched: int = 1, of: int = 3, miss: bool = False) -> Unfused:
    return Unfused(fusion, node, f"{node} is odd", matched, of, applicable=True, miss=miss, kind="odd")


def optimized(**values: Any) -> OptimizeReport:
    report = OptimizeReport("in", "out", "cpu", False, **values)
    first, second = (ComponentReport(name, bytes=1, bytes_before=2) for name in ("unet", "vae_decoder"))
    first.fusions = {
        "attention": Outcome("attention", candidates=4, matched=2, left=[
            place("attention", "a"), place("attention", "b", of=0),
        ]),
        "gelu": Outcome("gelu", candidates=0),
    }  # fmt: skip
    second.fusions = {
        "attention": Outcome("attention", candidates=1, matched=1), "gelu": Outcome("gelu", candidates=0),
        "nhwc": Outcome("nhwc", candidates=0),
    }  # fmt: skip
    report.components = {"unet": first, "vae_decoder": second}
    return report


PLACES = ("Places of attention", [
    ("unet", "2/4", "a", "1/3", "a is odd"), ("unet", "2/4", "b", "", "b is odd"),
    ("vae_decoder", "1/1", "", "", "nothing left"),
])  # fmt: skip


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), []), (("misses",), []), (("all",), [PLACES]), (("attention",), [PLACES]),
        (("gelu",), ["gelu found nothing to do."]), (("nhwc", "attention"), [PLACES, "nhwc found nothing to do."]),
    ],
)  # fmt: skip
def test_every_place_of_a_fusion_that_is_named_is_told(
    names: tuple[str, ...], told: list[Any], printed: Printed
) -> None:
    show_report(optimized(wrong_counts=["3 of 4 Conv"]), names, "next")
    assert printed[1:] == [
        ("show", "\n3 of 4 Conv"), *(("show", each) for each in told), ("conclude", printed[-1][1], "next")
    ]  # fmt: skip
    assert printed[0][1][0] == ""
    assert printed[-1][1].startswith("2 components optimized for cpu in fp32: 4 B -> 2 B in out, ")


@pytest.mark.parametrize("verbose", [False, True])
def test_misses_are_told_with_their_nodes(verbose: bool, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "verbosity", lambda: console.VERBOSE if verbose else console.NORMAL)
    report = optimized()
    left = [place("attention", node, miss=True) for node in "ab"]
    report.components["unet"].fusions["attention"] = Outcome("attention", candidates=4, left=left)
    show_report(report, (), "next")
    title, rows = printed[1][1]
    assert title == "Not fused"
    assert [(row[0], row[1], row[2], row[3], row[4]) for row in rows] == [
        ("unet", rows[0][1], "attention", "a\nb" if verbose else "a", rows[0][4])
    ]
    assert rows[0][1].startswith("2 of 4 ")
    assert "a is odd" in rows[0][4]


@pytest.mark.parametrize(
    ("provider", "used", "told"),
    [("rocm", True, "used"), ("rocm", False, "not used"), ("cuda", False, "not used"), ("cpu", True, "used"),
     ("cpu", False, ""), ("migraphx", False, "")],
)  # fmt: skip
def test_own_operators_are_told_where_they_could_be_used(
    provider: str, used: bool, told: str, printed: Printed
) -> None:
    report = optimized(sdort_ops=used, sdort_ops_reason="so it is")
    report.provider = provider
    report.components["unet"].declined = {"no kernel": 5}
    show_report(report, (), "next")
    lines = [("show", f"sdort's own operators: {told}, so it is")] if told else []
    left = ("Left in standard operators, which is no error", [("5", "unet", "no kernel")])
    assert printed[1:-1] == [*lines, ("show", left)]


@pytest.mark.parametrize("names", [(), ("misses",)])
def test_nodes_that_stay_in_fp32_stand_below_their_component(names: tuple[str, ...], printed: Printed) -> None:
    report = optimized()
    rules = [Fp32Rule(f"where {n}", f"why {n}") for n in range(6)]
    report.components["vae_decoder"].precision = Fp32Report("", rules, 12, 0.125, None, 3_000_000, "", "")
    show_report(report, names, "next")
    assert printed[1] == ("show", "")
    lines = [text for _, text in printed[2:-1]]
    assert lines[0] == "vae_decoder: in fp32: 12 nodes (12.5%), 3.0 MB more"
    assert len(lines) == (7 if names else 6)
    assert all(line.startswith("vae_decoder: ") for line in lines)


@pytest.mark.parametrize("quiet", [False, True])
def test_an_error_leaves_what_was_to_be_explained_until_then(quiet: bool, printed: Printed) -> None:
    def fail(report: OptimizeReport | None) -> None:
        error = ProviderError("no")
        error.record = {"report": report} if report else {}
        with explained(("attention",), quiet):
            raise error

    for report, count in ((optimized(), 2), (optimized(misses=["x"]), 1), (OptimizeReport("a", "b", "cpu", False), 0)):
        del printed[:]
        with pytest.raises(SdortError):
            fail(report)
        assert len(printed) == (0 if quiet else count)
        if printed:
            assert printed[0] == ("show", PLACES)
            assert all(text[1].startswith("Until the error: ") for text in printed[1:])
    del printed[:]
    with pytest.raises(SdortError):
        fail(None)
    assert printed == []


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("left_out", [None, INDEX, "text_encoder", "unet", "vae_decoder"])
def test_a_whole_pipeline_is_run_next_and_all_else_is_looked_at(
    left_out: str | None, here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline of a provider that does not work on this machine is compared with its original."""
    working = {"migraphx": here}
    monkeypatch.setattr("sdort.optimizer.provider_choice.runs_here", working.__getitem__)
    monkeypatch.setattr("sdort.engines.default_prompts.short_prompt", lambda out: f"a star in {out.name}")
    out = tmp_path / "the out"
    out.mkdir()
    if left_out != INDEX:
        (out / INDEX).write_text("{}")
    report = OptimizeReport("the in", str(out), "migraphx", True)
    names = ("text_encoder", "text_encoder_2", "unet", "vae_decoder")
    report.components = {name: ComponentReport(name) for name in names if name != left_out}
    run = f"sdort run '{out}' --provider migraphx --prompt 'a star in the out'"
    compare = f"sdort verify '{out}'"
    look = f"sdort inspect --diff 'the in' '{out}'"
    assert optimize._next(report) == (look if left_out else run if here else compare)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("--fp16", "--fp16=plain"), ("--fp16 auto", "--fp16 auto"), ("--fp16 plain", "--fp16 plain"),
        ("--fp16 out", "--fp16=plain out"), ("--explain", "--explain=misses"), ("--explain gelu", "--explain gelu"),
        ("--explain all", "--explain all"), ("--explain gelu,attention", "--explain gelu,attention"),
        ("--explain gelu,out", "--explain=misses gelu,out"), ("--explain --fp16", "--explain=misses --fp16=plain"),
        ("--explain --fp16 auto a", "--explain=misses --fp16 auto a"), ("-- --fp16 --explain", "-- --fp16 --explain"),
        ("--fp16 -- auto", "--fp16=plain -- auto"), ("a --explain -- gelu", "a --explain=misses -- gelu"),
        ("--fp16=auto --explain=gelu", "--fp16=auto --explain=gelu"), ("", ""),
    ],
)  # fmt: skip
def test_values_that_may_be_left_out_are_filled_in(given: str, made: str) -> None:
    assert optimize._with_explicit_values(given.split()) == made.split()


def test_a_name_that_is_almost_a_fusion_s_is_told() -> None:
    assert "'gelo' names no fusion" in optimize._misspelt("gelo")
    assert "gelu" in optimize._misspelt("gelo")
    for name in ("gelu", "gelu,attention", "all", "xyzzyxyzzy"):
        assert optimize._misspelt(name) == ""
    context: Any = None
    assert optimize._explained_names(context, context, ()) == frozenset()
    assert optimize._explained_names(context, context, ("gelu,attention", "gelu", "all", "misses")) == {
        "gelu", "attention", "all", "misses"
    }  # fmt: skip
    with pytest.raises(click.BadParameter, match=r"'gelo' is no fusion\. .*gelu.*sdort fusions lists them"):
        optimize._explained_names(context, context, ("gelu,gelo",))


@pytest.mark.parametrize("value", ["Conv", "=3", "Conv=", "Conv=x", "Conv=-1", "Conv=1.5", "Conv=3=4"])
def test_an_expectation_is_a_name_and_a_count(value: str) -> None:
    context: Any = None
    with pytest.raises(click.BadParameter, match="is not NAME=COUNT"):
        optimize._expectations(context, context, ("unet:Conv=3", value))
    assert optimize._expectations(context, context, ("unet:Conv=3", "Conv=0")) == {"unet:Conv": 3, "Conv": 0}


# Fusions


def test_fusions_stand_under_their_stage_with_the_providers_that_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from sdort.optimizer import fusion_list
    from sdort.providers import PROVIDER_NAMES

    monkeypatch.setattr(fusion_list, "STAGES", {"early": "before", "late": "after"})

    def fusion(name: str, stage: str, on: Any) -> Any:
        return SimpleNamespace(
            name=name, stage=stage, is_on=lambda provider: provider in on,
            replaces=["com.microsoft.Conv", "Conv", "Add"], makes=["com.microsoft.Gelu"],
        )  # fmt: skip

    listed: Any = SimpleNamespace(
        fusions=[
            fusion("b", "late", PROVIDER_NAMES),
            fusion("a", "early", PROVIDER_NAMES[1:3]),
            fusion("c", "late", ()),
        ],
        steps={"fold": "constants"},
    )
    assert [cells_of(table) for table in fusions._tables(listed)] == [
        ("early: before", [("a", "Conv, Add", "Gelu", ", ".join(PROVIDER_NAMES[1:3]))]),
        ("late: after", [("b", "Conv, Add", "Gelu", "all"), ("c", "Conv, Add", "Gelu", "")]),
        ("no fusions, but --disable takes them too", [("fold", "constants")]),
    ]


def test_onnx_text_is_indented_and_long_lines_are_broken() -> None:
    words = [f"operand{number:02}" for number in range(12)]
    text = "g (x) => (y) {\n  y = Op (" + ", ".join(words) + ")\n  z = a-b\n}"
    lines = fusions._indented(text).splitlines()
    assert all(len(line) <= 4 + 72 for line in lines)
    assert (lines[0], lines[-1], lines[-2]) == ("    g (x) => (y) {", "    }", "        z = a-b")
    assert len(lines) == 6
    assert lines[1].startswith("        y = Op (operand00")
    assert " ".join(line.strip() for line in lines[1:4]) == f"y = Op ({', '.join(words)})"
    assert fusions._indented("{\n}\n{") == "    {\n    }\n        {"
    longest = fusions._indented("w" * 30 + " " + "v" * 37).splitlines()
    assert [len(line) for line in longest] == [4 + 30 + 1 + 37]
    assert len(fusions._indented("w" * 30 + " " + "v" * 38).splitlines()) == 2


@pytest.mark.parametrize("beginning", ["", "group", "x"])
def test_completions_begin_as_what_was_typed(beginning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdort.rewrite.fusion_names.fusion_names", lambda: ["group_norm", "gelu", "a_group"])
    found: dict[str, list[str]] = {"": ["group_norm", "gelu", "a_group"], "group": ["group_norm"], "x": []}
    context: Any = None
    assert completions.complete_fusions(context, context, beginning) == found[beginning]


# Inspections, placements, verifications


@pytest.mark.parametrize("verbose", [False, True])
def test_an_inspection_is_of_the_providers_that_are_named_or_all(
    verbose: bool, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdort.providers import PROVIDER_NAMES

    asked: Any = []
    monkeypatch.setattr(console, "verbosity", lambda: console.VERBOSE if verbose else console.NORMAL)
    found = SimpleNamespace(components=["c"])
    monkeypatch.setattr("sdort.inspection.command.inspect", lambda path, providers: asked.append(providers) or found)
    monkeypatch.setattr("sdort.inspection.component_tables.component_tables", lambda parts: [*parts, "more"])
    monkeypatch.setattr("sdort.inspection.component_tables.rewriting_verdict", lambda parts: f"of {parts}")
    inspect_command._inspect(Path("a"), ("cuda",), False)
    hint = [] if verbose else [("say", "\nWith -v: inputs and outputs, every operator, opsets and producers.")]
    assert printed == [("show", "c"), ("show", "more"), *hint, ("conclude", "of ['c']")]
    del printed[:]
    inspect_command._inspect(Path("a"), (), True)
    assert printed == [("emit_json", found)]
    assert asked == [("cuda",), PROVIDER_NAMES]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a b", "give one path, or two with --diff"), ("--diff a", "--diff compares two paths"),
        ("--diff a b c", "--diff compares two paths"), ("a --placement", "--placement wants one --provider"),
        ("--diff a b --placement --provider cpu", "and no --diff"),
        ("a --placement --provider cpu --provider cuda", "--placement wants one --provider"),
    ],
)  # fmt: skip
def test_what_cannot_be_inspected_together(words: str, message: str) -> None:
    result = CliRunner().invoke(cli, ["inspect", *words.split()])
    assert (result.exit_code, message in result.output) == (2, True)


@pytest.mark.parametrize("differ", [False, True])
def test_a_difference_is_of_the_first_path_to_the_second(
    differ: bool, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    diff = SimpleNamespace(components={"unet": []}, places={"vae": []}, differ=differ)

    def compare(*paths: Path) -> Any:
        asked.append([*map(str, paths)])
        return diff

    monkeypatch.setattr("sdort.inspection.command.compare", compare)
    tables = "sdort.inspection.component_tables"
    monkeypatch.setattr(f"{tables}.change_tables", lambda parts, places: [[*parts], [*places]])
    monkeypatch.setattr(f"{tables}.change_verdict", lambda parts, places: f"of {[*parts, *places]}")
    shown = [("show", ["unet"]), ("show", ["vae"]), ("conclude", "of ['unet', 'vae']")]
    assert printed.of("inspect", "--diff", "a", "b") == shown
    assert printed.of("inspect", "--diff", "a", "b", "--json") == [("emit_json", diff)]
    assert asked == [["a", "b"]] * 2
    for words in ([], ["--json"]):
        ended = CliRunner().invoke(cli, ["inspect", "--diff", "a", "b", "--exit-code", *words])
        assert ended.exit_code == int(differ)


def test_remarks_on_a_placement_stand_below_it(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdort.inspection.profile.placement_table", lambda placements: f"table of {placements}")
    placed: Any = ["p"]
    placement.show_placement(placed, [])
    placement.show_placement(placed, ["one", "two"])
    assert printed == [("show", "table of ['p']"), ("show", "table of ['p']"), ("show", "\none\ntwo")]
    found = SimpleNamespace(placement=["q"], remarks=["r"])
    monkeypatch.setattr(
        "sdort.inspection.command.placement",
        lambda path, provider, **_: found if (str(path), provider) == ("m", "cuda") else 1,
    )
    shown = [("show", "table of ['q']"), ("show", "\nr")]
    assert printed.of("inspect", "m", "--placement", "--provider", "cuda") == shown
    assert printed.of("inspect", "m", "--placement", "--provider", "cuda", "--json") == [("emit_json", found)]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_signature_is_told_with_its_holder(as_json: bool, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(folder=Path("/m"), trusted=Path("/key.pem"), signature=Path("/m/model.sig"))
    asked: Any = []
    monkeypatch.setattr(
        "sdort.pipelines.folder_signature.verify_signature", lambda *given: asked.append(given) or found
    )
    _show_signature(Path("m"), Path("key.pem"), as_json=as_json)
    assert asked == [(Path("m"), Path("key.pem"))]
    text = "/m is what the holder of /key.pem signed: model.sig holds"
    assert printed == [("emit_json", found) if as_json else ("conclude", text)]


@pytest.mark.parametrize(
    ("against", "checkpoint", "compared"),
    [
        ("model", None, "fast against model (ONNX)"),
        (None, "mine.safetensors", "fast against mine.safetensors (torch in fp32)"),
        ("model", "mine.safetensors", "fast against model (ONNX) and mine.safetensors (torch in fp32)"),
    ],
)
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_a_verification_says_what_it_compared_and_is_concluded_where_it_passed(
    passed: bool, verbose: bool, against: str | None, checkpoint: str | None, compared: str,
    printed: Printed, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    module = "sdort.verification.report.text"
    monkeypatch.setattr(console, "verbosity", lambda: console.VERBOSE if verbose else console.NORMAL)
    monkeypatch.setattr(f"{module}.tables", lambda result: ["t", "u"])
    monkeypatch.setattr(f"{module}.notes", lambda result, every: [f"every {every}"])
    monkeypatch.setattr(f"{module}.finding_lines", lambda result: ["finding"])
    result: Any = SimpleNamespace(
        shown="fast", against=against, checkpoint=checkpoint, passed=passed, verdict="well",
        next_command="sdort run",
    )  # fmt: skip
    _show(result)
    lines = [("show", text) for text in (compared, "t", "u", "", f"every {verbose}", "finding")]
    assert printed == lines + ([("conclude", "well", "sdort run")] if passed else [])
