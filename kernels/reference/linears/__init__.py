"""Linear layers: of floats, and of int8 with rows quantised for them."""
