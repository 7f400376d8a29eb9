"""Products with weights of few bits, which become bfloat16 in the cache, a few at a time."""
