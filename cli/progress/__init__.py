"""Progress on stderr while a job runs."""
