"""The process around the kernels: threads, control groups, where compiled code is kept.

No kernel, and outside the digests that key compiled code and stored prefixes.
"""
