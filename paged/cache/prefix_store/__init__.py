"""Prefix store: keys and values of shared prefixes, kept in a folder between runs."""
