"""Reports and forecasts as text: sections of figures, and the tree of shared prefixes."""
