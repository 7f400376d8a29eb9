"""Beam search: the choice of beams, and the sequences that compute them together."""
