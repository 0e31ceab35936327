# Sourced by demo.sh, tour.sh and test.sh: makes a Python environment with sdort in it.
#
# pip's own settings apply (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, pip.conf).

# The newest Python that can make environments: $PYTHON if set, else python3.14 down to python3.10, else python3.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3.10 python3}; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    echo "No Python 3.10 or newer that has venv and pip was found (tried: ${PYTHON:-python3.14 ... python3})." >&2
    echo "Install one (on Debian and Ubuntu also python3-venv), or name it: PYTHON=/path/to/python $0" >&2
    return 1
}

# cpu_torch FOLDER: PyTorch's own CPU build, as on Linux the package index's brings 2.7 GB of CUDA libraries. Where pip's
# variables say where to look, what is found there.
cpu_torch() {
    [ -z "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}${PIP_FIND_LINKS:-}" ] || return 0
    "$1/bin/python" -m pip install --disable-pip-version-check --constraint constraints.txt \
        --index-url https://download.pytorch.org/whl/cpu torch ||
        echo "==> environment: PyTorch's index of CPU builds did not answer; the package index's build follows" >&2
}

# make_environment FOLDER EXTRAS: an editable install of this checkout with the tested versions. One that is there
# already is used again, and brought up to date when what it was made from has changed.
make_environment() {
    local folder=$1 extras=$2 python wanted
    python=$(find_python)
    wanted="$("$python" --version) [$extras] $(cat constraints.txt pyproject.toml | cksum)"
    if [ "$(cat "$folder/made-from" 2>/dev/null)" = "$wanted" ]; then
        echo "==> environment: $folder is up to date"
        return
    fi
    echo "==> environment: installing into $folder ($("$python" --version), extras $extras); the first time takes minutes"
    if [ "$("$folder/bin/python" --version 2>/dev/null)" != "$("$python" --version)" ]; then
        "$python" -m venv --clear "$folder"
    fi
    case ,$extras, in *,torch,*) cpu_torch "$folder" ;; esac
    "$folder/bin/python" -m pip install --disable-pip-version-check --constraint constraints.txt --editable ".[$extras]"
    printf '%s\n' "$wanted" >"$folder/made-from"
}

# demo_environment [FOLDER]: goes to the checkout, sets folder to FOLDER (.demo unless given), and puts first in PATH an
# environment in it that runs on the CPU.
demo_environment() {
    folder=.demo
    if [ $# -gt 0 ]; then
        mkdir -p "$1"
        folder=$(cd "$1" && pwd)
    fi
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    mkdir -p "$folder"
    make_environment "$folder/venv" cpu,torch,export
    PATH="$(cd "$folder/venv/bin" && pwd):$PATH"
}

# need_native_tools: what the tests compile custom operators with, and the browser that shows the reports' pages. clang,
# lld and llvm make and read machine code for AMD GPUs; none of ROCm is needed. Without a font, a browser shows boxes.
# mingw compiles the library for Windows, and Wine runs it (150 MB to download, 1.1 GB installed, 15 s in all).
# Installed where apt-get and root rights are there, told otherwise.
need_native_tools() {
    local missing=()
    command -v cmake >/dev/null || missing+=(cmake)
    command -v ninja >/dev/null || missing+=(ninja-build)
    command -v c++ >/dev/null || missing+=(g++)
    command -v clang++-19 >/dev/null || missing+=(clang-19)
    command -v ld.lld-19 >/dev/null || missing+=(lld-19)
    command -v llvm-readelf-19 >/dev/null || missing+=(llvm-19)
    command -v x86_64-w64-mingw32-g++-posix >/dev/null || missing+=(g++-mingw-w64-x86-64-posix)
    command -v wine64 >/dev/null || [ -x /usr/lib/wine/wine64 ] || missing+=(wine64)
    command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core)
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "The tests need these packages (Debian's names): ${missing[*]}" >&2
        return 1
    fi
    echo "==> tools: installing ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }
}

# step COMMAND...: the command as a person would type it, then what it prints.
step() {
    local word
    printf '\n==>'
    for word; do
        case $word in
            *' '*) printf ' "%s"' "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$@"
}
