"""Products with weights of few bits, which become 16 bits in registers, a tile at a time."""
