"""A UNet small enough for tests of the denoising loop."""

from __future__ import annotations

UNET = """<ir_version: 8, opset_import: ["": 17]>
g ({io}[{n}, 4, H, W] sample, {clock} timestep, {io}[{n}, T, 6] encoder_hidden_states{more})
=> ({io}[{n}, 4, H, W] out) {{
    axes = Constant <value_ints = [1, 2, 3]> ()
    text = ReduceMean <axes = [1, 2], keepdims = 0> (encoder_hidden_states)
    each = Unsqueeze (text, axes)
    with_text = Add (sample, each)
    clock = Cast <to = {to}> (timestep)
    column = Constant <value_ints = [-1, 1, 1, 1]> ()
    time = Reshape (clock, column)
    timed = Add (with_text, time)
    {last}
}}"""
