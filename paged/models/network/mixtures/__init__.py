"""Mixtures of experts, as values."""
