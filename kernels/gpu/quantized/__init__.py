"""Linear layers of quantized weights, whose codes become 16 bits in registers, a tile at a time."""
