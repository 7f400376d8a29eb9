"""Whole runs over the same rows, by pagedrun and by what it is compared with."""
