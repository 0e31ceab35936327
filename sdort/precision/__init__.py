"""Mixed precision: measured ranges, the nodes that fp16 cannot hold, and plans that keep these in fp32."""
