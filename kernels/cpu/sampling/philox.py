"""Counter-based random words, sixty-four counters at a time; the rule is in reference/sample.py."""

from typing import Any

import numpy as np

from pagedrun.kernels.cpu.jit import part

_FACTOR_0 = np.uint64(0xD2511F53)
_FACTOR_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint32(0x9E3779B9)
_WEYL_1 = np.uint32(0xBB67AE85)
_HIGH = np.uint64(32)


@part()
def philox4x32(first: Any, position: Any, row: Any, sample: Any, key: Any, words: Any) -> None:
    """Fill `words` with Philox4x32-10 of counters (first, position, row, sample), (first + 1, ...).

    key: uint32 pair. words: [4, num_counters] uint32, lane by lane: lane l of counter i goes to
    words[l, i].
    """
    for i in range(words.shape[1]):
        c0, c1, c2, c3 = np.uint32(first + np.uint32(i)), position, row, sample
        k0, k1 = key
        for _ in range(10):
            product0 = np.uint64(c0) * _FACTOR_0
            product1 = np.uint64(c2) * _FACTOR_1
            c0 = np.uint32(np.uint32(product1 >> _HIGH) ^ c1 ^ k0)
            c2 = np.uint32(np.uint32(product0 >> _HIGH) ^ c3 ^ k1)
            c1, c3 = np.uint32(product1), np.uint32(product0)
            k0, k1 = np.uint32(k0 + _WEYL_0), np.uint32(k1 + _WEYL_1)
        words[0, i], words[1, i], words[2, i], words[3, i] = c0, c1, c2, c3
