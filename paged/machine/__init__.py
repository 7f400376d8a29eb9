"""What this machine is and has, as far as a run depends on it; and its kernels, compiled ahead."""
