#!/usr/bin/env bash
# The demo pipeline through what people do with images, on the CPU: image to image, inpainting, a LoRA, a
# ControlNet. The demo's judge looks at every image, and a wrong one ends the tour. docs/guide/tour.md shows them.
#
#   scripts/tour.sh [FOLDER]     FOLDER is .demo unless given; the environment that demo.sh made there is used again
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

demo_environment "$@"
mkdir -p "$folder/tour"
tour=$folder/tour

# draw NAME PROMPT OPTIONS...: NAME.png of the optimized pipeline
draw() {
    step sdort run "$tour/fast" --provider cpu --prompt "$2" --seed 7 --steps 20 --guidance-scale 5 \
        -o "$tour/$1.png" --overwrite "${@:3}"
}

# judge NAME PROMPT OPTIONS...: ends the tour if NAME.png is not what the prompt asks for
judge() {
    python scripts/tour_images.py judge "$tour/$1.png" "${@:2}"
}

step sdort export demo "$tour/model" --control --overwrite
step sdort optimize "$tour/model" "$tour/fast" --provider cpu --fp16 --overwrite
step sdort export demo-control "$tour/control" --overwrite
step sdort optimize "$tour/control" "$tour/edges" --provider cpu --fp16 --overwrite

scene="a small red circle left of a large blue square on white"
draw start "$scene"
judge start "$scene"

# Image to image: other colours at the same places.
scene="a small orange circle left of a large green square on white"
draw image "$scene" --init-image "$tour/start.png" --strength 0.7
judge image "$scene" --like "$tour/start.png"

# Inpainting: a star where the mask is white, and the circle as it is.
scene="a small red circle left of a large yellow star on white"
python scripts/tour_images.py mask 28,0,64,64 "$tour/mask.png"
draw inpainted "$scene" --init-image "$tour/start.png" --mask "$tour/mask.png" --strength 1
judge inpainted "$scene"

# A LoRA while the pipeline runs, at half of its strength and at all of it: chalk on a blackboard.
scene="a small red circle left of a large blue square on white"
draw chalk-half "$scene" --lora demo:0.5
draw chalk "$scene" --lora demo
judge chalk "a small white circle left of a large white square on black"

# A ControlNet: the places of the first image by its edges, with another seed and nothing else of it.
scene="a small yellow circle left of a large black square on beige"
python scripts/tour_images.py edges "$tour/start.png" "$tour/edges.png"
draw controlled "$scene" --seed 100 --control "$tour/edges:$tour/edges.png"
judge controlled "$scene" --like "$tour/start.png"

python scripts/tour_images.py sheet "$tour/tour.png" \
    "$tour"/{start,image,mask,inpainted,chalk-half,chalk,edges,controlled}.png
printf '\nDone. All images side by side: %s\n' "$tour/tour.png"
