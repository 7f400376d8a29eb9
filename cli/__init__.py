"""What the user types and sees. The only place for Typer and Rich; `--help` imports no torch."""
