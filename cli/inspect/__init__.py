"""`pagedrun inspect-cache`: a run's pool, drawn; a prefix store, listed."""
