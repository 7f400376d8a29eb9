"""What users of other programs type, and what it is called here."""
