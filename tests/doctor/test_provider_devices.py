"""sdort doctor --devices: what providers compute on here."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.any_vendor import openvino_library

from sdort.cli import cli
from sdort.doctor import provider_devices
from sdort.doctor.provider_devices import list_devices
from sdort.machine.subprocesses import WorkerError


def test_the_processor_is_always_there() -> None:
    found = list_devices({})
    assert [(each.provider, each.number, each.kind) for each in found.devices if each.provider == "cpu"] == [
        ("cpu", 0, "cpu")
    ]


def test_a_plugin_lists_its_devices() -> None:
    [device] = [each for each in list_devices({"openvino": openvino_library()}).devices if each.provider == "openvino"]
    assert (device.number, device.kind, device.execution_provider) == (0, "cpu", "OpenVINOExecutionProvider")
    assert device.vendor
    assert device.device
    assert device.driver.startswith("1.")
    assert device.source == openvino_library()


def test_a_plugin_that_ends_its_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise WorkerError(-11, "a crash")

    monkeypatch.setattr(provider_devices, "run_worker", crash)
    found = list_devices({"openvino": "crashing.so"})
    assert found.problems[0] == "openvino: crashing.so ended the process with code -11: a crash"
    assert [each.provider for each in found.devices] == ["cpu"]


def test_the_command_lists_them_for_people_and_programs() -> None:
    words = ["doctor", "--devices", "--ep-library", f"openvino={openvino_library()}", "--provider", "openvino"]
    shown = CliRunner().invoke(cli, words)
    assert shown.exit_code == 0
    assert "openvino" in shown.stdout
    assert "choose one of them" in shown.output
    document = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert document["schema"] == "sdort-devices-1"
    assert [each["provider"] for each in document["devices"]] == ["openvino"]


def test_a_provider_without_a_device_is_an_error() -> None:
    done = CliRunner().invoke(cli, ["doctor", "--devices", "--provider", "cuda"])
    assert done.exit_code == 6
    assert "cuda finds no device here" in done.output


def test_the_doctor_loads_a_library_that_is_named() -> None:
    words = ["doctor", "--provider", "openvino", "--ep-library"]
    assert CliRunner().invoke(cli, [*words, f"openvino={openvino_library()}"]).exit_code == 0
    done = CliRunner().invoke(cli, [*words, "openvino=/no/such.so"])
    assert done.exit_code == 6
    assert "the plugin /no/such.so does not load" in done.output
