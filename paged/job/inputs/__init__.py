"""Inputs: one reader for each kind of input, all of them a `RowSource`."""
