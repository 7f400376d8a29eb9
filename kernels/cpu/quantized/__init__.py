"""Linear layers of quantized weights, whose codes become bfloat16 in the cache."""
