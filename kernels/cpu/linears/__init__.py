"""Linear layers whose rows keep their bits, whatever the number of rows: three ways to compute."""
