"""Groups of layers: their block tables and pools, and what a window gives back."""
