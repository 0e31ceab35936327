"""sdort with what Windows has: no name that Linux alone has stands outside of one module, and commands work without.

No machine with Windows runs these tests. ``support/windows`` says what takes its place.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import windows

import sdort

if TYPE_CHECKING:
    from support.tiny_pipeline import Tiny

PACKAGE = Path(sdort.__file__).parent
ROOT = PACKAGE.parent
MODULES = {
    "linux": {"sdort/machine/windows_calls.py"},
    "win32": {"sdort/machine/posix_calls.py", "sdort/machine/supervisor.py"},
}
"""The modules that may use what a platform lacks. The supervisor is a program that ``posix_calls`` alone starts."""
POSIX_OPTIONS = {"pass_fds", "preexec_fn", "start_new_session", "process_group", "umask", "dir_fd"}
"""Arguments of the standard library's functions that Windows refuses or passes over."""


@cache
def trees() -> dict[str, ast.Module]:
    """All sources, by their places."""
    files = [path for folder in ("sdort", "fusions", "custom_ops") for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in files}


def imported(tree: ast.Module) -> dict[str, str]:
    """The modules that a file imports, by the names that it gives them."""
    return {
        alias.asname or alias.name.partition(".")[0]: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }


def lacking(tree: ast.Module, platform: str, other: str) -> Iterator[str]:
    """What a file uses of the standard library that one platform has and not the other."""
    names = imported(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (each.name for each in aliases if windows.is_lacking(each.name, platform, other))
            case ast.ImportFrom(module=str(module), level=0, names=aliases):
                if windows.is_lacking(module, platform, other):
                    yield module
                absent = windows.lacking(module, platform, other)
                yield from (f"{module}.{each.name}" for each in aliases if each.name in absent)
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute) if owner in names:
                if attribute in windows.lacking(names[owner], platform, other):
                    yield f"{names[owner]}.{attribute}"
            case ast.keyword(arg=str(argument)) if platform == "win32" and argument in POSIX_OPTIONS:
                yield f"{argument}="


@pytest.mark.parametrize(("platform", "other"), [("win32", "linux"), ("linux", "win32")])
def test_what_one_system_lacks_stands_in_one_module(platform: str, other: str) -> None:
    found = {name: used for name, tree in trees().items() if (used := sorted({*lacking(tree, platform, other)}))}
    assert found.keys() == MODULES[platform], found


def test_the_stubs_are_read() -> None:
    assert {"fork", "getuid", "O_NOFOLLOW", "pread", "sched_getaffinity"} < windows.lacking("os", "win32", "linux")
    assert {"link", "replace", "open", "O_EXCL"} <= windows.names_on("os", "win32")
    assert {"O_BINARY", "startfile"} < windows.lacking("os", "linux", "win32")
    assert {"SIGKILL", "SIGHUP", "SIGALRM", "pthread_kill"} < windows.lacking("signal", "win32", "linux")
    modules = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "os", "signal", "json")
    assert [name for name in modules if windows.is_lacking(name, "win32", "linux")] == [*modules[:6]]
    source = "import fcntl, os as o\nfrom os import fork, replace\no.getuid(), o.link\nPopen(pass_fds=[])"
    assert sorted(lacking(ast.parse(source), "win32", "linux")) == ["fcntl", "os.fork", "os.getuid", "pass_fds="]


def signatures(name: str) -> dict[str, str]:
    """The public constants and functions of a module of ``sdort/machine``, with what they take and return."""
    found = {}
    for node in ast.parse((PACKAGE / "machine" / f"{name}.py").read_text()).body:
        match node:
            case ast.FunctionDef():
                returns = ast.unparse(node.returns) if node.returns else ""
                found[node.name] = f"{ast.unparse(node.args)} -> {returns.replace('subprocess.', '')}"
            case ast.Assign(targets=[ast.Name(id=constant)]):
                found[constant] = "constant"
    return {each: text for each, text in found.items() if not each.startswith("_")}


def test_both_systems_calls_are_the_same() -> None:
    assert signatures("posix_calls") == signatures("windows_calls")
    assert len(signatures("posix_calls")) > 20


def test_every_call_of_the_system_is_of_both() -> None:
    used = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"\bos_calls\.([a-zA-Z_]+)\b", path.read_text())
        if name != "os_calls"
    }
    assert used == signatures("posix_calls").keys(), "what nothing uses, or is nowhere"


def without_encoding(tree: ast.Module) -> Iterator[str]:
    """Calls that read or write text in the encoding of the machine, which on Windows is not UTF-8."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        says = {keyword.arg for keyword in call.keywords} & {"encoding", "file"}
        match call.func:
            case ast.Attribute(value=ast.Name(id="formatter")):
                pass  # click's
            case ast.Attribute(attr="read_text" | "write_text" as name) if not says:
                if len(call.args) == (name == "write_text"):
                    yield ast.unparse(call)
            case ast.Name(id="open") if not says:
                if not any(isinstance(each, ast.Constant) and "b" in str(each.value) for each in call.args[1:]):
                    yield ast.unparse(call)


def test_text_is_read_and_written_as_utf_8() -> None:
    assert {name: calls for name, tree in trees().items() if (calls := [*without_encoding(tree)])} == {}
    bad = 'p.read_text()\np.write_text(x)\nopen(p)\nopen(p, "w")\nopen(p, mode)'
    good = 'p.read_text("utf-8")\np.write_text(x, encoding="utf-8")\nopen(p, "rb")\nopen(p, encoding="ascii")'
    assert [len([*without_encoding(ast.parse(source))]) for source in (bad, good)] == [5, 0]


CALLS = """
__name__ = "sdort.test"
import errno, os, threading
from pathlib import Path
from sdort.machine.os_calls import os_calls

folder, file = Path("folder"), Path("file")
folder.mkdir()
file.write_bytes(b"old")
os.symlink("file", "link")

def refused(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"{call.__name__} was not refused")

assert refused(OSError, os_calls.open_file, "link", links=False).errno == errno.ELOOP
assert refused(FileNotFoundError, os_calls.open_file, "none").filename == "none"
refused(FileExistsError, os_calls.open_file, file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
refused(OSError, os_calls.open_file, folder)

for path in (file, folder):
    holder, other = os_calls.open_lock(path), os_calls.open_lock(path)
    os_calls.lock(holder, shared=True)
    os_calls.lock(other, shared=True)
    os.close(other)
    other = os_calls.open_lock(path)
    refused(BlockingIOError, os_calls.lock, other)
    threading.Timer(0.1, os.close, [holder]).start()
    os_calls.lock(other, wait=True)
    os.close(other)
assert os.listdir() == [name for name in os.listdir() if name in ("folder", "file", "link")]

descriptor = os_calls.open_file("new", os.O_RDWR | os.O_CREAT)
os_calls.reserve(descriptor, 8)
threads = [
    threading.Thread(target=os_calls.write_at, args=(descriptor, memoryview(bytes([65 + at])), at)) for at in range(8)
]
for thread in threads: thread.start()
for thread in threads: thread.join()
buffer = memoryview(bytearray(9))
assert (os_calls.read_at(descriptor, 3, 2), os_calls.read_into(descriptor, buffer, 1)) == (b"CDE", 7)
assert bytes(buffer) == b"BCDEFGH\\0\\0"

reader = open(file, "rb")  # as another program has it
refused(PermissionError, os.replace, "new", file)
refused(PermissionError, os_calls.replace, Path("new"), file)
assert file.read_bytes() == b"old"
reader.close()
loaded = os_calls.open_file(file)  # as Windows' loader has a library: it can have another name
os_calls.replace(Path("new"), file)
os.close(loaded)
assert file.read_bytes() == b"ABCDEFGH" and not os_calls.exchange(folder, folder)

for path in (file, Path("/")):
    assert os_calls.why_foreign(os.stat(path), path) is None
assert os_calls.why_foreign(os.stat("/etc"), Path("/etc")).startswith("is outside of your profile, ")
assert os_calls.peak_memory() > 1 << 20 and os_calls.usable_cpus()

from sdort.machine.subprocesses import WorkerError, run_child, run_worker
from subprocess import TimeoutExpired
done = run_child(["sh", "-c", "echo out; echo err >&2; exit 3"])
assert (done.returncode, done.stdout, done.stderr) == (3, "out\\n", "err\\n")
refused(TimeoutExpired, run_child, ["sleep", "60"], timeout=0.3)
assert run_worker("os.path:basename", {"p": "a/b"}) == "b"
assert "no_such" in refused(WorkerError, run_worker, "os.path:no_such", {}).said

from sdort.machine.system import System
from sdort.runtime.availability import amd_device, nvidia_device
assert not amd_device(System(folder)) and not nvidia_device(System(folder))
print("done")
"""


def test_what_windows_calls_do(tmp_path: Path) -> None:
    done = windows.run_code(CALLS, tmp_path)
    assert (done.stdout, done.stderr) == ("done\n", "")


INTERRUPTED = """
import os, signal, sys, threading, time

def interrupt():
    while "sdort.runtime.opener" not in sys.modules:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)

from sdort.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
threading.Thread(target=interrupt, daemon=True).start()
sys.argv = ["sdort", "run", "PIPELINE", "--provider", "cpu", "--prompt", "a", "--steps", "500", "-o", "a.png"]
main()
"""


def test_ctrl_c_ends_a_run(tiny: Tiny, tmp_path: Path) -> None:
    done = windows.run_code(INTERRUPTED.replace("PIPELINE", str(tiny.onnx)), tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "Error: interrupted"), done.stderr
    assert not [*tmp_path.rglob("*.png")]


def test_names_that_windows_keeps_and_paths_that_lead_out_there() -> None:
    code = """
__name__ = "sdort.test"
from pathlib import PureWindowsPath
from sdort.machine.os_calls import os_calls
print(os_calls.__name__, [n for n in ("con", "NUL.png", "Com1.a.b", "com", "con1", "a.con") if os_calls.is_device(n)])
from sdort.pipelines import manifest
manifest.PurePath = PureWindowsPath
print([p for p in ("unet/a.onnx", "a", "..\\\\a", "C:a", "C:/a", "a\\\\b") if manifest.is_inside(p)])
"""
    done = windows.run_code(code, PACKAGE)
    assert done.stdout.splitlines() == [
        "sdort.machine.windows_calls ['con', 'NUL.png', 'Com1.a.b']", "['unet/a.onnx', 'a']"
    ], done.stderr  # fmt: skip


def test_commands_run_with_what_windows_has(tiny: Tiny, tmp_path: Path) -> None:
    cpu = ["--provider", "cpu"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "a", "prompt": "één b"}) + "\n", encoding="utf-8")
    commands: list[list[object]] = [
        ["optimize", tiny.onnx, "fast", *cpu, "--allow-misses"],
        ["optimize", tiny.onnx, "fast", *cpu, "--allow-misses", "--overwrite"],
        ["run", "fast", *cpu, "--prompt", "a b", "--steps", "2", "--seed", "7", "-o", "a.png"],
        ["batch", "fast", *cpu, "--prompts", prompts, "--steps", "1", "--out", "drawn"],
        ["batch", "fast", *cpu, "--prompts", prompts, "--steps", "1", "--out", "drawn"],
        ["verify", "fast", "--against", tiny.onnx, *cpu, "--seeds", "1", "--steps", "1"],
        ["bench", "fast", "--baseline", tiny.onnx, *cpu, "--component", "unet", "--repeat", "2", "--warmup", "1"],
        ["warm", "fast", *cpu],
        ["inspect", "fast"],
        ["fusions"],
        ["add", "fast", "quick"],
        ["list"],
        ["remove", "quick"],
        ["doctor", *cpu],
        ["cache", "list"],
        ["cache", "clean", "temporary"],
        ["cache", "size"],
        ["tuning", "list"],
        ["tuning", "export", "tuned.tar"],
        ["integrate", "--help"],
        ["serve", "--help"],
        ["upscale", "--help"],
        ["export", "demo", "model", "--dry-run"],
        ["ops", "build", "--help"],
    ]  # fmt: skip
    done = windows.run(commands, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").is_file()
    assert "\\u2500" not in done.stdout, "lines of tables are of characters that pipes have"
    assert "één" in (tmp_path / "drawn" / "images.jsonl").read_text(encoding="utf-8")
    assert not [*tmp_path.rglob("?*.lock")], "what marks a folder goes with the process"
