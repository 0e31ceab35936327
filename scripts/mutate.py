"""Plant faults in one module, run its tests on each, and print those that no test sees (docs/mutation.md).

    .test-venv/bin/python scripts/mutate.py sdort/onnx_io/wire.py --tests tests/onnx_io/test_wire.py --sample 60

cosmic-ray finds the places and plants the faults, in a copy of the tree; it lives in an environment of its own.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from measuring import Arguments

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / ".mutation-venv"
PACKAGES = ("fusions", "custom_ops")
"""Folders that are packages of sdort once it is installed."""
CONFIG = """
[cosmic-ray]
module-path = {modules}
timeout = {timeout}
excluded-modules = []
test-command = {command}
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = {excluded}
"""
EXCLUDED = [
    # Of a comparison its neighbours and its opposite are enough, of arithmetic one other operator; | is in types.
    "core/ReplaceComparisonOperator_(Eq|NotEq|Lt|LtE|Gt|GtE)_(Is|IsNot)",
    "core/ReplaceComparisonOperator_(Lt|LtE)_(Gt|Eq|NotEq)",
    "core/ReplaceComparisonOperator_(Gt|GtE)_(Lt|Eq|NotEq)",
    "core/ReplaceComparisonOperator_(Eq|NotEq)_(Lt|LtE|Gt|GtE)",
    "core/ReplaceBinaryOperator_(?!Add_Sub|Sub_Add|Mul_Add|FloorDiv_Mul|Div_Mul|Mod_Sub|Pow_Mul|.Shift_Add|BitAnd_Add).*",
]


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("modules", nargs="+", help="files of sdort/ or fusions/, as seen from the checkout")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest runs: files, or tests in them")
    parser.add_argument("--sample", type=int, default=0, help="try so many of the faults only, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice (0)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds after which tests count as failed (120)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sdort-mutation-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        command = [sys.executable, "-m", "pytest", "-x", "-q", *args.tests]
        if run(command, tree).returncode:
            sys.exit("The tests fail as they are, without any fault.")
        session = Path(folder) / "session.sqlite"
        config = Path(folder) / "config.toml"
        values = {
            "modules": args.modules,
            "timeout": args.timeout,
            "command": shlex.join(command),
            "excluded": EXCLUDED,
        }
        config.write_text(CONFIG.format(**{name: json.dumps(value) for name, value in values.items()}))
        for step in (["cosmic-ray", "init", config, session], ["cr-filter-operators", session, config]):
            subprocess.run([tool(str(step[0])), *map(str, step[1:])], cwd=tree, check=True)
        choose(session, args.sample, args.seed)
        run([str(tool("cosmic-ray")), "exec", str(config), str(session)], tree).check_returncode()
        report(session)


def tool(name: str) -> Path:
    """A command of cosmic-ray, which is installed by the first call."""
    if not (TOOL / "bin" / name).exists():
        venv.create(TOOL, clear=True, with_pip=True)
        pip = [str(TOOL / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), "cosmic-ray"], check=True)
    return TOOL / "bin" / name


def copy_tree(tree: Path) -> None:
    """The files that git knows or would add, laid out as an installed sdort."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, stdout=-1
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    for name in PACKAGES:
        (tree / "sdort" / name).symlink_to(tree / name)


def run(command: list[str], tree: Path) -> subprocess.CompletedProcess[bytes]:
    """Run it on the copy; compiled modules are not kept, since two faults may be one second apart."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(["nice", *command], cwd=tree, env=environment, check=False)


def choose(session: Path, sample: int, seed: int) -> None:
    """Leave ``sample`` of the faults to be tried; 0 leaves all."""
    with sqlite3.connect(session) as database:
        todo = [job for (job,) in database.execute(
            "SELECT job_id FROM mutation_specs WHERE job_id NOT IN (SELECT job_id FROM work_results) "
            "ORDER BY module_path, start_pos_row, start_pos_col, operator_name, occurrence"
        )]  # fmt: skip
        random.Random(seed).shuffle(todo)
        for job in todo[sample:] if sample else ():
            database.execute("INSERT INTO work_results (worker_outcome, job_id) VALUES ('SKIPPED', ?)", [job])


def report(session: Path) -> None:
    """Print the faults that no test saw, and the score."""
    with sqlite3.connect(session) as database:
        rows = database.execute(
            "SELECT test_outcome, diff FROM work_results WHERE worker_outcome != 'SKIPPED' ORDER BY diff"
        ).fetchall()
    survivors = [diff for outcome, diff in rows if outcome == "SURVIVED"]
    print("\n\n".join(filter(None, survivors)))
    caught = len(rows) - len(survivors)
    print(f"\n{caught} of {len(rows)} faults were seen ({100 * caught / max(len(rows), 1):.0f} %)")


if __name__ == "__main__":
    main()
