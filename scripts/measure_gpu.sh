#!/usr/bin/env bash
# Every table that a GPU is asked for, most wanted first, AMD's and NVIDIA's: each step has a log and a limit of time,
# and one that fails leaves the others.
#
#   scripts/measure_gpu.sh cuda|rocm|cpu [STEP]...     all steps, or these (peers: all whose name begins so)
#
# Nothing is downloaded: models have the released architectures and random weights. The Python that runs (PYTHON, python3)
# has this checkout, onnxruntime-gpu or onnxruntime-rocm, torch, diffusers and transformers; peft for the LoRA's row.
# Settings: OUT (logs and JSON, ./measured), WORK (models, up to 60 GB, OUT/work), MINUTES (limit of a step, 10).
# cpu tries all of it in minutes with tiny models, without a GPU; its times say nothing.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

provider=${1:-}
case $provider in
    cuda | rocm) family=sd15 backend=inductor size=512 large=1024x1024 steps=20 repeat=30 ;;
    cpu) family=tiny backend=aot_eager size=64 large=128x128 steps=2 repeat=5 ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
        exit 2
        ;;
esac
shift
wanted=("$@")
python=${PYTHON:-python3}
out=$(mkdir -p "${OUT:-measured}" && cd "${OUT:-measured}" && pwd) || exit 2
work=${WORK:-$out/work}
mkdir -p "$work" || exit 2
fast=$work/diffusers-$family-$provider
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
known=() ran=() failed=()

# measure STEP COMMAND...: run it if it is wanted, into OUT/STEP.log.
measure() {
    local name=$1 each chosen=$((${#wanted[@]} == 0)) status begun=$SECONDS
    shift
    if [ "$listing" ]; then
        known+=("$name")
        return
    fi
    for each in ${wanted[@]+"${wanted[@]}"}; do
        [[ $name == "$each" || $name == "$each"-* ]] && chosen=1
    done
    [ "$name" = build ] && chosen=1 # what all others measure
    [ "$chosen" = 1 ] || return 0
    printf '\n==> %s\n' "$name"
    ran+=("$name")
    timeout --kill-after=20 "${MINUTES:-10}m" "$@" 2>&1 | tee "$out/$name.log"
    status=${PIPESTATUS[0]}
    echo "==> $name: $((SECONDS - begun)) s"
    [ "$status" = 0 ] && return
    [ "$status" = 124 ] && status="stopped after ${MINUTES:-10} minutes" || status="exit code $status"
    failed+=("$name: $status, see $out/$name.log")
}

# gpu_only: whether there is a GPU, said where there is none.
gpu_only() {
    [ "$provider" != cpu ] && return
    echo "this step times kernels of a GPU: there is nothing to measure on the CPU"
    return 1
}

# benchmark STEP FAMILY ARGUMENTS...: rows of scripts/gpu_benchmark.py; on the CPU of a tiny family.
benchmark() {
    local family=$2
    if [ "$provider" = cpu ]; then
        case $family in
            sd35-*) family=tiny-sd35 ;;
            flux-*) family=tiny-flux ;;
            z-image) family=tiny-z-image ;;
            *) family=tiny ;;
        esac
    fi
    "$python" scripts/gpu_benchmark.py --work "$work" --provider "$provider" --family "$family" --repeat "$repeat" \
        --json "$out/$1.json" "${@:3}"
}

# optimized: make $fast, the pipeline that the diffusers step draws with too, as sdort exports and optimizes it; once.
optimized() {
    [ -d "$fast" ] && return
    "$python" -c 'import sys; sys.path.insert(0, "scripts")
from diffusers_benchmark import arguments, checkpoint_of, optimized
args = arguments()
optimized(checkpoint_of(args), args)' --work "$work" --provider "$provider" --family "$family"
}

# library: the operators for this GPU's vendor, which are built once.
library() {
    local kinds=(--no-hip --no-cuda)
    [ "$provider" = cuda ] && kinds=(--no-hip --cuda)
    [ "$provider" = rocm ] && kinds=(--hip --no-cuda)
    "$python" -m sdort ops build "${kinds[@]}"
}

attention() {
    gpu_only || return 0
    local library
    library=$("$python" -c 'from sdort.operator_library.library import resolve; print(resolve("on"))') || return
    "$python" scripts/ops_benchmark.py --library "$library" --provider "$provider" --operator MultiHeadAttention \
        --json "$out/attention.json" --markdown "$out/attention.md"
}

torch_overhead() {
    optimized && "$python" scripts/torch_overhead.py "$fast" --provider "$provider" --side "$((size / 8))"
}

torch_operators() {
    "$python" scripts/torch_operators_benchmark.py --family "$family" --size "$size" --backend "$backend" \
        --models "$1" --json "$out/operators-$1.json"
}

cold() {
    local graph=--graph processes=3
    [ "$provider" = cpu ] && graph= processes=1
    optimized && "$python" scripts/cold_start.py "$fast" --provider "$provider" --steps 4 --processes $processes $graph \
        --json "$out/cold.json"
}

kernels() {
    gpu_only || return 0
    optimized || return
    local component
    for component in unet vae_decoder; do
        "$python" scripts/gpu_kernels.py "$fast" --component "$component" --provider "$provider" \
            --batch "$([ $component = unet ] && echo 2 || echo 1)" --json "$out/kernels-$component.json" || return
    done
}

drawing() {
    "$python" scripts/diffusers_benchmark.py --work "$work" --provider "$provider" --family "$family" --size "$size" \
        --steps "$steps" --json "$out/diffusers.json"
}

layouts() {
    local small_nets=()
    [ "$provider" = cpu ] && small_nets=(--size 32 --scale 16)
    "$python" scripts/layout_benchmark.py --work "$work" --provider "$provider" "${small_nets[@]}" --json "$out/layouts.json"
}
export -f gpu_only benchmark optimized library attention torch_overhead torch_operators cold kernels drawing layouts
export provider family backend size steps repeat python out work fast

call() { # STEP FUNCTION ARGUMENTS...: a function in a process of its own, which a limit can end
    measure "$1" bash -c '"$@"' measure "${@:2}"
}

small=${size}x$size
steps() {
    local each sizes=512x512,768x768,1024x1024
    call build library
    call attention attention
    call peers-sd1 benchmark peers-sd1 sd15 --components unet --batch 2,16 --size "$small"
    call peers-vae benchmark peers-vae sd15 --components vae_decoder --batch 1 --size "$small,$large"
    call peers-sdxl benchmark peers-sdxl sdxl --components unet --batch 2 --size "$large" --engines sdort,torch,compile
    for each in sd35-medium z-image; do
        call "transformers-$each" benchmark "transformers-$each" "$each" --components transformer --batch 1 --size "$large" \
            --engines sdort,torch,compile
    done
    call torch torch_overhead
    call operators-unet torch_operators unet
    call operators-vae torch_operators vae
    call operators-lora torch_operators lora
    call diffusers drawing
    call cold cold
    call ablation-unet benchmark ablation-unet sd15 --components unet --batch 2 --size "$small" --engines sdort --ablation
    call ablation-vae benchmark ablation-vae sd15 --components vae_decoder --batch 1 --size "$small" --engines sdort --ablation
    call kernels kernels
    call layouts layouts
    [ "$provider" = cpu ] && sizes=64x64,128x128
    for each in sd15 sd21 sdxl; do
        call "sizes-$each" benchmark "sizes-$each" "$each" --components unet --batch 1,2,8,16 --size "$sizes" --engines sdort
    done
    call sizes-vae benchmark sizes-vae sd15 --components vae_decoder --batch 1,2 --size "$sizes" --engines sdort
    # ONNX Runtime's optimizer takes many minutes and much memory for SDXL's UNet: last.
    call optimizer-sdxl benchmark optimizer-sdxl sdxl --components unet --batch 2 --size "$large" --engines sdort,ort
}

listing=1
steps
for each in ${wanted[@]+"${wanted[@]}"}; do
    if [[ " ${known[*]} " != *" $each "* && " ${known[*]}" != *" $each-"* ]]; then
        echo "there is no step $each; steps: ${known[*]}" >&2
        exit 2
    fi
done
packages=$(
    "$python" -c 'import importlib.util as u
print(*[name for name in ("torch", "diffusers", "transformers", "onnxruntime", "onnx", "click") if not u.find_spec(name)])'
) || exit 2
if [ "$packages" ]; then
    echo "$python lacks: $packages. Install sdort for $provider (docs/guide/install.md), or name another Python in PYTHON" >&2
    exit 2
fi
listing=
steps

printf '\n%s of %s steps measured what they should; logs and JSON are in %s.\n' \
    "$((${#ran[@]} - ${#failed[@]}))" "${#ran[@]}" "$out"
[ ${#failed[@]} -eq 0 ] && exit 0
printf 'failed: %s\n' "${failed[@]}" >&2
exit 1
