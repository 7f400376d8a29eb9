"""A finished run read back from its report and its snapshot."""
