#!/usr/bin/env bash
# The main job on a tiny pipeline, on the CPU, on a machine that has only Python: makes an environment, then exports,
# optimizes (fp32 and fp16), runs and benchmarks. It says at the end where the image and the table are.
#
#   scripts/demo.sh [FOLDER]     FOLDER is .demo unless given; running it again uses the same environment
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

demo_environment "$@"

step sdort export demo "$folder/model" --overwrite
step sdort optimize "$folder/model" "$folder/fp32" --provider cpu --overwrite
step sdort optimize "$folder/model" "$folder/fp16" --provider cpu --fp16 --overwrite
step sdort run "$folder/fp32" --provider cpu --prompt "a small red circle left of a large blue square on white" --seed 7 --steps 20 -o "$folder/fp32.png" --overwrite
step sdort run "$folder/fp16" --provider cpu --prompt "a small red circle left of a large blue square on white" --seed 7 --steps 20 -o "$folder/fp16.png" --overwrite
step sdort bench "$folder/fp32" --baseline "$folder/model" --provider cpu --output "$folder/bench.md" --overwrite
cat <<END

Done. The demo pipeline generates coloured shapes; both images show what the
prompt asks for, and are the same to the eye.
  images     $folder/fp32.png  $folder/fp16.png
  benchmark  $folder/bench.md (with memory, errors and versions)
  pipelines  $folder/model (as exported)  $folder/fp32  $folder/fp16 (optimized)

Now with yours, a .safetensors file of Stable Diffusion 1.x, 2.x or XL:
  . $folder/venv/bin/activate
  sdort add ~/Downloads/dreamshaper.safetensors dreamshaper
  sdort run dreamshaper --prompt "a lighthouse at dusk"
END
