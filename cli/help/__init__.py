"""What `-h` and `--help` print."""
