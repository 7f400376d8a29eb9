"""Mixtures of experts: who computes what, the products, and the sum."""
