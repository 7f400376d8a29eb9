"""Results of benchmarks as tables."""
