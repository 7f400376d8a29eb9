"""Two outputs compared, row by row."""
