"""What becomes of output rows at the end of a job: which of their keys, in which kind of file."""
