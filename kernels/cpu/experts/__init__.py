"""Mixtures of experts; see `pagedrun.kernels.reference.experts`."""
