"""What fp16 can hold and what it cannot: measured on the graph itself, described by structure, kept in fp32."""
