"""The flags of `pagedrun bench`: a file a command, and what several share."""
