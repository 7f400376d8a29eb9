"""Values: immutable and picklable requests, parameters, configurations and errors; no torch."""
