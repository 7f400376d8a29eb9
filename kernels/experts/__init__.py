"""Mixtures of experts: who is chosen, which rows go where, and their linear layers."""
