"""``sdort fusions``: every fusion is listed and described, as it is and for which providers."""

from __future__ import annotations

import json

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import sdort
from sdort.cli import cli
from sdort.errors import UsageError
from sdort.rewrite.fusion import load_fusions


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fusions", *arguments])


def test_all_are_listed_and_described() -> None:
    found = {fusion.name: fusion for fusion in sdort.list_fusions().fusions}
    assert set(found) == set(load_fusions())
    assert [name for name, fusion in found.items() if not fusion.summary.endswith(".") or not fusion.makes] == []
    printed = call().stdout.splitlines()
    assert [name for name in found if not any(line.startswith(f"{name} ") for line in printed)] == []


READ = {"rocm", "migraphx", "cuda", "dml", "cpu"}
"""The targets whose kernels' sources were read for what is told here; another one's are told in tests of its own."""


@pytest.mark.parametrize(
    ("name", "on"),
    [
        ("attention", {"rocm", "migraphx", "cuda", "dml", "cpu"}),
        ("bias_split_gelu", {"rocm", "cuda", "dml"}),  # ONNX Runtime has this kernel for GPUs alone
        ("packed_qkv", {"rocm", "dml"}),  # CUDA's kernels copy packed inputs apart, the others take none
        ("group_norm_silu", {"rocm", "cuda", "dml"}),  # channels-last
        ("concat_group_norm", {"rocm", "cuda"}),
        ("gelu", {"rocm", "cuda", "dml", "cpu"}),  # MIGraphX finds Gelu itself
        ("upsampling_phases", {"cpu"}),  # standard operators that all have, measured there alone
    ],
)
def test_the_providers_of_a_fusion(name: str, on: set[str]) -> None:
    (fusion,) = sdort.list_fusions([name]).fusions
    assert {provider for provider in fusion.providers if fusion.is_on(provider)} & READ == on


def test_one_is_described() -> None:
    result = call("multi_head_attention")
    assert result.exit_code == 0
    assert "y = com.microsoft.MultiHeadAttention" in result.stdout
    assert "  no kernel of MultiHeadAttention caps its scores" in result.stdout
    assert "    sdort optimize IN OUT --disable multi_head_attention" in result.stdout
    assert "(1 more form: -v)" in result.stdout
    assert result.stdout.count("Replaces") == 1
    assert call("multi_head_attention", "-v").stdout.count("Replaces") == 2


def test_reasons_of_a_check_of_another_file_are_its_own_too() -> None:
    (fusion,) = sdort.list_fusions(["attention_merged"]).fusions
    assert {"the mask has not three axes", "the head size is not fixed"} <= set(fusion.refusals)


def test_a_condition_of_a_kernel_is_named() -> None:
    (fusion,) = sdort.list_fusions(["bias_split_gelu"]).fusions
    assert (
        fusion.providers["rocm"]
        == "on: BiasSplitGelu is compiled for widths 1280, 2560, 5120 (sdort's own takes every width)"
    )
    assert fusion.providers["cpu"] == "off: cpu has no kernel for BiasSplitGelu"
    (own,) = sdort.list_fusions(["wide_attention"]).fusions
    assert {name: told for name, told in own.providers.items() if name in READ} == {
        "rocm": "off: rocm has no kernel for sdort.MultiHeadAttention",
        "migraphx": "off: migraphx has no kernel for sdort.MultiHeadAttention",
        "cuda": "on: where the library is built or --sdort-ops asks for them",
        "dml": "off: dml has no kernel for sdort.MultiHeadAttention",
        "cpu": "off: cpu has no kernel for sdort.MultiHeadAttention",
    }


def test_providers_that_a_fusion_is_not_for_are_told_why() -> None:
    (fusion,) = sdort.list_fusions(["upsampling_phases"]).fusions
    off = "off: only for cpu, where it was measured to be faster"
    assert fusion.providers == dict.fromkeys(fusion.providers, off) | {"cpu": "on"}


def test_names_that_are_none() -> None:
    result = call("atention")
    assert result.exit_code == 2
    assert "there is no fusion 'atention'" in result.stderr
    assert "Did you mean 'attention'?" in result.stderr
    with pytest.raises(UsageError, match="It is a step, which --disable leaves out: the channels-last region"):
        sdort.list_fusions(["nhwc"])


def test_json() -> None:
    printed = json.loads(call("gelu_erf", "--json").stdout)
    (fusion,) = printed["fusions"]
    assert (fusion["name"], fusion["makes"], fusion["anchor"]) == ("gelu_erf", ["Gelu"], "Erf")
    assert set(printed["steps"]) == {"nhwc", "separate_qkv", "conv_bias", "group_norm"}


@pytest.mark.parametrize("words", [["fusions"], ["optimize", "--disable"], ["optimize", "--explain"]])
def test_names_are_completed(words: list[str]) -> None:
    completer = ShellComplete(cli, {}, "sdort", "_SDORT_COMPLETE")
    found = [item.value for item in completer.get_completions(words, "bias_")]
    assert found == ["bias_add", "bias_gelu", "bias_split_gelu"]
