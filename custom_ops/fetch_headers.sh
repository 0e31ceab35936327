#!/usr/bin/env bash
# Unpacks ONNX Runtime's C API headers (API 21) from Debian trixie's libonnxruntime-dev into FOLDER; installs nothing.
#
#   custom_ops/fetch_headers.sh FOLDER
#
# The mirror is the one in this machine's own apt configuration. APT downloads into a state of its own, so neither
# the system's package lists nor its installed packages change, and no root rights are needed.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
command -v apt-get >/dev/null || {
    echo "$0: there is no apt-get here; pass -DSDORT_ORT_INCLUDE=<folder with onnxruntime_c_api.h> to CMake instead" >&2
    exit 1
}
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' |
    awk '$2 !~ /security/ { print $1; exit }')
[ -n "$mirror" ] || { echo "$0: apt names no mirror; see /etc/apt/sources.list" >&2; exit 1; }
mkdir -p "$work"/{lists/partial,cache/archives/partial}
keys=/usr/share/keyrings/debian-archive-keyring.gpg
option=$([ -f "$keys" ] && echo "[signed-by=$keys]" || true)
echo "deb $option $mirror trixie main" >"$work/sources.list"
apt=(apt-get -q -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=)
"${apt[@]}" update >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
(cd "$work" && "${apt[@]}" download libonnxruntime-dev >>"$work/log" 2>&1) || { cat "$work/log" >&2; exit 1; }
dpkg -x "$work"/libonnxruntime-dev_*.deb "$work/package"
header=$(find "$work/package" -name onnxruntime_c_api.h)
cp "$(dirname "$header")"/*.h "$out/"
echo "ONNX Runtime headers: $out"
