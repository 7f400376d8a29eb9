"""The unit in which attention reads keys and values.

A context is cut into partitions of `PARTITION_TOKENS`, counted from token 0 whatever the batch,
the chunk or the block size. Each partition gives a partial result (max, sum, output) and the
partials merge in ascending order, so a row's bytes do not depend on who else is in the batch.
"""

PARTITION_TOKENS = 128
