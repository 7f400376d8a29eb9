"""Command line: the only package with Typer and Rich. `--help` imports no torch."""
