"""What the host does in a step, measured with kernels that cost nothing."""
