#!/usr/bin/env bash
# Plays the owner of a Radeon who has ROCm's torch: from git clone to the first image, in a home and an environment of
# their own. It counts commands, MB, seconds and words, and ends with an error if the torch that was there is not as it
# was, if a CUDA library came, or if it took more than three commands.
#
#   scripts/first_image.sh [FOLDER]            FOLDER is a temporary one unless given, and must not exist
#   scripts/first_image.sh --resolve [FOLDER]  only asks pip what it would install, which takes half a minute
#
#   FLAVOUR=migraphx  the extra to install (rocm unless set; a GPU's ONNX Runtime draws on the CPU where there is none)
#   CHECKPOINT=FILE   what to draw with (the demo's, in the clone, unless set)
#   PYTHON=python3.12 which Python
#
# The stand-in is PyTorch's CPU build under the version of the build for ROCm; pip's own settings apply, as in demo.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

resolve=
if [ "${1:-}" = --resolve ]; then
    resolve=yes
    shift
fi
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=${1:-$(mktemp -d)/first-image}
mkdir -p "$(dirname "$work")" && mkdir "$work"
work=$(cd "$work" && pwd)
flavour=${FLAVOUR:-rocm}
torch=$(sed -n 's/^torch==//p' "$checkout/constraints.txt")
python=$(find_python)

# clean COMMAND...: in an environment that has nothing but a PATH, a home, and what pip is told of the network.
clean() {
    local settings=() name
    for name in $(compgen -e | grep -E '^(PIP_|SSL_CERT|REQUESTS_CA|[a-z]*_proxy|[A-Z]*_PROXY)' || true); do
        settings+=("$name=${!name}")
    done
    env -i "${settings[@]}" PATH="$work/venv/bin:/usr/local/bin:/usr/bin:/bin" HOME="$work/home" LANG=C.UTF-8 \
        PIP_DISABLE_PIP_VERSION_CHECK=1 "$@"
}

# stand_in: a torch in the environment, as pip left it, that calls itself the build for ROCm.
stand_in() {
    if [ -n "$resolve" ]; then
        mkdir -p "$site/torch" "$site/torch-$torch.dist-info"
        touch "$site/torch/__init__.py"
        printf 'Metadata-Version: 2.1\nName: torch\nVersion: %s\n' "$torch" >"$site/torch-$torch.dist-info/METADATA"
        printf 'torch/__init__.py,,\ntorch-%s.dist-info/METADATA,,\ntorch-%s.dist-info/RECORD,,\n' "$torch" "$torch" \
            >"$site/torch-$torch.dist-info/RECORD"
        echo pip >"$site/torch-$torch.dist-info/INSTALLER"
    else
        local index=()
        [ -n "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}${PIP_FIND_LINKS:-}" ] ||
            index=(--index-url https://download.pytorch.org/whl/cpu)
        clean python -m pip install -q "torch==$torch" "${index[@]}"
    fi
    local before after="$site/torch-$torch+rocm7.2.dist-info"
    before=$(echo "$site/torch-$torch"*.dist-info)
    mv "$before" "$after"
    sed -i "s/^Version: .*/Version: $torch+rocm7.2/" "$after/METADATA"
    sed -i "s|^$(basename "$before")/|$(basename "$after")/|" "$after/RECORD"
}

# torch_state: changes with every file of torch.
torch_state() { (cd "$site" && find torch torch-*.dist-info -type f -not -name '*.pyc' -printf '%p %s %T@\n' | sort | sha256sum); }

commands=0 words=0 seconds=0
# typed COMMAND...: a command as the owner types it, counted and timed; what it prints is shown and counted.
typed() {
    local began=$SECONDS code=0
    printf '\n$ %s\n' "$*"
    clean "$@" 2>&1 | tee "$work/said" || code=$?
    commands=$((commands + 1)) seconds=$((seconds + SECONDS - began))
    [ "$1" = pip ] || words=$((words + $(wc -w <"$work/said")))
    return "$code"
}

echo "==> an environment with a stand-in for ROCm's torch: $work/venv"
mkdir "$work/home"
"$python" -m venv "$work/venv"
site=$(clean python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
stand_in
before=$(torch_state)
size_before=$(du -sm "$site" | cut -f1)
cd "$work"

typed git clone -q "$checkout" sdort
cd sdort
if [ -n "$resolve" ]; then
    typed pip install -q --dry-run --report ../report.json -c constraints.txt ".[$flavour,export]"
else
    typed pip install --progress-bar off --report ../report.json -c constraints.txt ".[$flavour,export]"
fi

# What pip chose, and its MB: of files from an index by what pip says, of others by the files.
clean python - "$work/report.json" "$work/said" <<'END'
import json, os, re, sys
from urllib.parse import unquote, urlparse
packages = json.load(open(sys.argv[1]))["install"]
names = sorted(f"{each['metadata']['name']} {each['metadata']['version']}" for each in packages)
# nvidia-ml-py is one Python file, which asks NVIDIA's driver where there is one.
bad = [name for name in names if re.match(r"torch|triton|cuda|nvidia-(?!ml-py )", name, re.I)]
units = {"kB": 1e-3, "MB": 1, "GB": 1e3, "bytes": 1e-6}
said = re.findall(r"(?:Downloading|Using cached) \S+ \(([\d.]+) (\w+)\)", open(sys.argv[2]).read())
paths = [unquote(urlparse(each["download_info"]["url"]).path) for each in packages
         if each["download_info"]["url"].startswith("file:")]
mb = sum(float(n) * units[unit] for n, unit in said) + sum(os.path.getsize(p) / 1e6 for p in paths if os.path.isfile(p))
print(f"\n==> {len(names)} packages: {', '.join(names)}")
open("../mb", "w").write(f"{mb:.0f}")
if bad:
    sys.exit(f"these replace torch or are CUDA's: {', '.join(bad)}")
END
if [ "$(torch_state)" != "$before" ]; then
    echo "the torch that was there is not as it was" >&2
    exit 1
fi
if [ -n "$resolve" ]; then
    echo "==> torch $torch+rocm7.2 stays as it is, and no CUDA library comes"
    exit
fi

checkpoint=${CHECKPOINT:-sdort/demo/model}
prompt="a small red circle left of a large blue square on white"
if ! typed sdort run "$checkpoint" --prompt "$prompt" --seed 7 --steps 20 -o ../first.png; then
    commands=$((commands - 1))
    typed sdort export "$checkpoint" ../model
    typed sdort optimize ../model ../fast
    typed sdort run ../fast --prompt "$prompt" --seed 7 --steps 20 -o ../first.png
fi
[ -s ../first.png ]
if [ "$(torch_state)" != "$before" ]; then
    echo "the torch that was there is not as it was" >&2
    exit 1
fi
cat <<END

==> $work/first.png
commands        $commands (clone, install, draw)
downloaded      $(cat ../mb) MB
installed       $(($(du -sm "$site" | cut -f1) - size_before)) MB
seconds         $seconds
words printed   $words, without pip's
END
if [ "$commands" -gt 3 ]; then
    echo "more than three commands" >&2
    exit 1
fi
