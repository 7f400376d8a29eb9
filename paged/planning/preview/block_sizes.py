"""BlockSizes: what other block sizes would make of the same rows.

Small blocks share prefixes to the last tokens and leave little empty; they make long block tables
and many keys. Everything follows from what neighbours in the run order have in common.
"""

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.planning.preview.forecast_sections import BlockSizeFigures
from pagedrun.paged.planning.preview.prefix_reads import common_with_previous
from pagedrun.paged.planning.tree.prefix_tree import PrefixTree

CANDIDATES = (8, 16, 32, 64, 128, 256)
# A larger block is taken where it costs no more than this share of tokens to compute, prompts and
# answers, and of memory.
TOLERANCE = 0.05

Int64s = NDArray[np.int64]


class BlockSizes:
    """Gathers the figures over a file's windows."""

    def __init__(self, block_size: int, *, prefix_caching: bool) -> None:
        """Compare `block_size`, the one in force, with the usual ones."""
        self._sizes = sorted({*CANDIDATES, block_size})
        self._prefix_caching = prefix_caching
        self._hit_tokens = dict.fromkeys(self._sizes, 0)
        self._prompt_tokens = 0
        self._common = np.zeros(0, dtype=np.int32)

    def add(self, tree: PrefixTree, num_copied_tokens: int) -> None:
        """Count a window's rows; duplicates, not in the tree, have `num_copied_tokens`."""
        self._prompt_tokens += int(tree.num_tokens.sum()) + num_copied_tokens
        common = tree.common if self._prefix_caching else np.zeros_like(tree.common)
        self._common = np.concatenate([self._common, common])
        for size in self._sizes:
            hits = np.minimum(common.astype(np.int64) // size * size, tree.num_tokens - 1)
            self._hit_tokens[size] += int(hits.sum()) + num_copied_tokens

    def figures(self, at_peak: Int64s, specs: Seq[KVCacheSpec]) -> list[BlockSizeFigures]:
        """Return the figures, smallest blocks first; `at_peak` is `Simulation.at_peak`.

        specs: of the groups of layers; the blocks are those of the first.
        """
        tokens = at_peak[:, 1]
        common = self._common_at_peak(at_peak)
        found: list[BlockSizeFigures] = []
        for size in self._sizes:
            blocks = _num_blocks(tokens, common, size, None)
            peak_bytes = sum(
                _num_blocks(tokens, common, size, spec.window) * size * spec.bytes_per_token
                for spec in specs
            )
            shared_tokens = int((common // size * size).sum())
            stored = int(tokens.sum()) - shared_tokens
            found.append(
                {
                    "block_size": size,
                    "hit_tokens": self._hit_tokens[size],
                    "computed_tokens": self._prompt_tokens - self._hit_tokens[size],
                    "peak_blocks": blocks,
                    "peak_bytes": peak_bytes,
                    "tail_waste": 1.0 - stored / (blocks * size) if blocks else 0.0,
                }
            )
        return found

    def _common_at_peak(self, at_peak: Int64s) -> Int64s:
        """Return what each row at the peak has in common with the one before, [num_running]."""
        places, tokens, prompts = at_peak.T
        common = prompts.copy()  # samples of one row are side by side and share its prompt
        unique, first = np.unique(places, return_index=True)
        common[first[:1]] = 0
        common[first[1:]] = common_with_previous(self._common, unique)
        return np.asarray(np.minimum(common, tokens))


def _num_blocks(tokens: Int64s, common: Int64s, size: int, window: int | None) -> int:
    """Return how many blocks sequences of so many tokens hold of which the next one sees a window.

    common: what each has in common with the one before. A block of it counts once as far as it
    lies in both windows.
    """
    first = np.zeros_like(tokens)
    if window is not None:
        first = np.maximum(tokens - window + 1, 0) // size
    before = np.append(first[:1], first[:-1])
    shared = np.maximum(common // size - np.maximum(first, before), 0)
    return int((-(-tokens // size) - first - shared).sum())


def best_block_size(figures: list[BlockSizeFigures], generated_tokens: int) -> BlockSizeFigures:
    """Return the largest block that computes and holds hardly more than the best one does.

    Answers of `generated_tokens` are computed whatever the block size.
    """
    least_computed = min(each["computed_tokens"] for each in figures) + generated_tokens
    least_bytes = min(each["peak_bytes"] for each in figures)
    good = [
        each
        for each in figures
        if each["computed_tokens"] + generated_tokens <= least_computed * (1 + TOLERANCE)
        and each["peak_bytes"] <= least_bytes * (1 + TOLERANCE)
    ]
    fallback = min(figures, key=lambda each: (each["peak_bytes"], each["computed_tokens"]))
    return max(good, key=lambda each: each["block_size"], default=fallback)
