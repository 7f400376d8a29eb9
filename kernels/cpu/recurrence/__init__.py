"""What recurrent layers compute."""
