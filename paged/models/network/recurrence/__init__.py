"""What recurrent layers consist of, as values."""
