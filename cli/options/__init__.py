"""Settings from flags, recipes and defaults, and job configurations from settings."""
