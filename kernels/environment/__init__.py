"""Process environment of the kernels: threads, control groups, folders of compiled code.

No kernel, and outside the digests that key compiled code and stored prefixes.
"""
