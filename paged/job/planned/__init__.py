"""What a run would be, found without running it, and how long it would take."""
