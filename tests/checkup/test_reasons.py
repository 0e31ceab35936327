"""Each reason appears where there is evidence for it and nowhere else, and the page fits a screen of 80 columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.json_documents import check_document

from sdort import console
from sdort.checkup.command import CheckUp, image_seconds
from sdort.checkup.figures import Figure, MachineFigures, Reason, plain
from sdort.checkup.published import published_images
from sdort.checkup.rates import H200
from sdort.checkup.reasons import CODES, Evidence, find_reasons
from sdort.cli.checkup_page import show_page
from sdort.machine.nvml import CardState
from sdort.providers import PROVIDERS
from sdort.runtime.availability import Problem
from sdort.runtime.recommendation import Recommendation

GPU = Recommendation("rocm", "onnxruntime-rocm", "Radeon RX 7900 XTX", "gfx1100", True, "words", "https://example.com")


def figure(component: str = "unet", **changes: Any) -> Figure:
    """A component as it should be."""
    ordinary = Figure(
        "sd15", component, 2, 512, 512, "fp16", opened_s=1.0, first_s=1.5, again_s=0.5, runs=20, median_ms=30.0,
        least_ms=29.0, processors=1.0, roofline_ms=14.5, expected_ms=25.8, on_cpu={},
    )  # fmt: skip
    return replace(ordinary, **changes)


HEALTHY = Evidence(
    PROVIDERS["rocm"],
    [figure(), figure("vae_decoder")],
    GPU,
    peak_share=0.8,
    state=CardState(2400, 2500, 300, 355, 355),
    processors=16,
    gpus=["Radeon RX 7900 XTX"],
)
ON_CPU: dict[str, Any] = {"provider": PROVIDERS["cpu"], "gpus": [], "figures": [figure(processors=15.0, again_s=None)]}

CASES: dict[str, Mapping[str, Any]] = {
    "wrong-output": {"wrong": {"unet": "has NaN or infinite values (100 % of it)"}},
    "gpu-idle": {**ON_CPU, "gpus": ["Radeon RX 7900 XTX"], "install": "    pip install onnxruntime-rocm"},
    "provider-libraries": {"problems": [Problem("libraries", "this machine has ROCm 6", "Install ROCm 7.")]},
    "nodes-on-cpu": {"figures": [figure(on_cpu={"NhwcConv": 98})]},
    "not-ready": {"late": {"sd15's unet": 1200.0}},
    "kernels-not-kept": {"figures": [figure(first_s=40.0, again_s=38.0)]},
    "first-run-long": {"figures": [figure(first_s=40.0, again_s=2.0)]},
    "hot": {"state": replace(HEALTHY.state, hot=True)},
    "power-limit": {"state": replace(HEALTHY.state, power_limit=200)},
    "low-clock": {"state": replace(HEALTHY.state, clock=500)},
    "slow-products": {"peak_share": 0.1},
    "disturbed": {"disturbances": {"other programs used 15.0 of 16 processors": "close other programs"}},
    "processor-quota": {**ON_CPU, "quota": 2.0},
    "idle-processors": {**ON_CPU, "figures": [figure(processors=1.0, again_s=None)]},
    "slow-setting": {"environ": {"HIP_LAUNCH_BLOCKING": "1", "MIOPEN_DISABLE_CACHE": "0"}},
    "overridden": {"provider": PROVIDERS["migraphx"], "recommended": replace(GPU, provider="migraphx"),
                   "environ": {"ORT_MIGRAPHX_FP16_ENABLE": "0"}},
    "operators-not-built": {"operators": "the library is not built here (sdort ops build builds it)"},
    "not-tuned": {"tuned": False},
    "vae-fp32": {"wide_decoders": ["dreamshaper"]},
    "other-provider": {"provider": PROVIDERS["migraphx"]},
}  # fmt: skip


def test_every_reason_has_a_case() -> None:
    of_providers = {code for code in CODES if code.startswith("provider-")}
    assert set(CODES) - of_providers == CASES.keys() - of_providers


def codes(**changes: Any) -> list[str]:
    return [reason.code for reason in find_reasons(replace(HEALTHY, **changes))]


def test_a_healthy_machine_has_no_reason() -> None:
    assert codes() == []
    assert codes(**ON_CPU) == []
    assert codes(environ={"PATH": "/bin", "CUDA_LAUNCH_BLOCKING": "", "ORT_MIGRAPHX_X": "1"}) == []
    assert codes(state=CardState(), peak_share=None) == []  # nothing tells


@pytest.mark.parametrize("code", CASES)
def test_a_reason_appears_with_a_next_step(code: str) -> None:
    (found,) = find_reasons(replace(HEALTHY, **CASES[code]))
    assert found.code == code
    assert found.next_step
    assert not found.message.endswith(".")


def test_what_was_measured_stands_before_what_was_found() -> None:
    found = find_reasons(everything())
    evidence = [reason.evidence for reason in found]
    assert evidence == sorted(evidence, reverse=True)
    assert found[0].code == "wrong-output"
    assert {reason.code for reason in found} >= CASES.keys() - {
        "gpu-idle", "first-run-long", "processor-quota", "idle-processors", "other-provider", "overridden"
    }  # fmt: skip


def everything() -> Evidence:
    """All that can be wrong at once on a GPU."""
    changes: dict[str, Any] = {}
    for case in CASES.values():
        if "provider" not in case:
            changes |= {name: value for name, value in case.items() if name not in ("figures", "state")}
    figures = [figure(first_s=40.0, again_s=38.0, median_ms=2100.0, on_cpu={"NhwcConv": 98, "GroupNorm": 61})]
    state = CardState(500, 2500, 200, 200, 355, hot=True)
    return replace(HEALTHY, figures=[*figures, figure("vae_decoder", median_ms=900.0)], state=state, **changes)


def checked_up(evidence: Evidence, **changes: Any) -> CheckUp:
    """What the command would make of it."""
    figures = MachineFigures(
        "0.1.0", "2026-11-28", "Linux", "x86_64", "3.12.1", "onnxruntime-rocm", "1.22.2.post3", evidence.provider.name,
        "Radeon RX 7900 XTX", "gfx1100", 24, "amdgpu 6.14.14", "7.0.2-56", 16, True, 500.0, 2500.0, 200.0, 200.0, 355.0,
        700.0, 98.0, 960.0, 122.9, list(evidence.figures), find_reasons(evidence), "rocm", "onnxruntime-rocm",
    )  # fmt: skip
    published = published_images("Radeon RX 9070 XT")
    return CheckUp(replace(figures, **changes), GPU, "    python -m pip install onnxruntime-rocm", published, H200)


def page(found: CheckUp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    show_page(found)
    return capsys.readouterr().out.splitlines()


def test_the_page_fits_a_screen_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = page(checked_up(everything()), monkeypatch, capsys)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 50
    text = " ".join(" ".join(lines).split())
    assert "1. wrong results: the demo's unet has NaN" in text
    assert "And: " in text  # the others by their names
    assert "    sdort warm MODEL --provider rocm --size 512x512" in lines
    assert "85 s for 20 steps, ComfyUI, after a plain reinstall" in text


@pytest.mark.parametrize(
    ("median", "changes", "words"),
    [
        (30.0, {}, "As fast as it should be: SD 1.5 step, 2 x 512x512 takes 1.2 times"),
        (2064.0, {}, "Too slow by a factor of 80: SD 1.5 step, 2 x 512x512 takes 2,064 ms and should take 25.80; "
                     "nothing tells why"),
        (2064.0, {"tuned": False}, "most probably: nothing was tuned here: TunableOp and MIOpen"),
        (30.0, {"wrong": {"unet": "is constant"}}, "rocm gives wrong results here"),
    ],
)  # fmt: skip
def test_the_verdict_says_by_which_factor_and_why(
    median: float, changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    evidence = replace(HEALTHY, figures=[figure(median_ms=median), figure("vae_decoder")], **changes)
    found = checked_up(evidence)
    assert words in " ".join(" ".join(page(found, monkeypatch, capsys)).split())
    assert found.works == ("wrong" not in changes)


def test_an_image_is_its_steps_and_its_decode() -> None:
    assert image_seconds([figure(median_ms=30.0), figure("vae_decoder", median_ms=400.0)], 20) == pytest.approx(1.0)
    assert image_seconds([figure()], 20) is None


def test_the_file_is_of_its_schema_and_has_no_words_of_this_machine() -> None:
    reasons = [Reason("nodes-on-cpu", "measured", 98, "in /home/someone/model", "    cd /home/someone")]
    text = json.dumps(console.to_json(checked_up(HEALTHY, reasons=reasons).figures))
    check_document(json.loads(text))
    assert "someone" not in text
    assert json.loads(text)["reasons"] == [{"code": "nodes-on-cpu", "evidence": "measured", "value": 98}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("/home/someone/\x1b[31m", "home someone 31m"),
        ("a" * 200, "a" * 80),
        ("Graphics (RADV NAVI31), 12@3 GHz", "Graphics (RADV NAVI31), 12@3 GHz"),
    ],
)
def test_names_are_cut_to_plain_characters(text: str, expected: str) -> None:
    assert plain(text) == expected
    assert re.fullmatch(r"[\w .,+()@-]{0,80}", plain(text))
