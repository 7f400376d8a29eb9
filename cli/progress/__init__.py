"""Progress of running jobs on stderr."""
