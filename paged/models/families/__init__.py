"""One file a family of models: what its config.json means."""
