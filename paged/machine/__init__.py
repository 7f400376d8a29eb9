"""Facts of this machine that runs depend on, and compilation of its kernels ahead of time."""
