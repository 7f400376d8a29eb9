"""The tree of common prefixes, the order to walk it, and what follows from it."""
