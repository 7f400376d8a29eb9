"""Measuring runs on the machine at hand. Everything comes back as data; `cli` draws it.

Times of what is compared are taken in one process, in turns, so that a busy neighbour disturbs
both alike; nothing is computed from a run that did not happen.
"""
