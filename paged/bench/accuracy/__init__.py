"""What a way of running a model changes in its answers, compared with another way."""
