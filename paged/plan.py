"""Plan: the order in which requests run, and what sharing prefixes can save at best.

Sorting the prompts token by token is a depth-first walk of their prefix tree: rows that share a
prefix become neighbours, so each prefix is computed once and used while it is there.
"""

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pagedrun.paged.block_pool import BlockKey
from pagedrun.paged.request import Request
from pagedrun.paged.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Plan:
    """Sequences in run order, and figures that hold for a pool that never evicts.

    `achievable_hit_tokens` counts prompt tokens that need not be computed; `num_shared_blocks`
    the distinct blocks that more than one request holds; `num_private_blocks` those that each
    sequence needs for itself at its full length, in run order.
    """

    sequences: tuple[Sequence, ...]
    achievable_hit_tokens: int
    num_shared_blocks: int
    num_private_blocks: tuple[int, ...]

    @classmethod
    def build(cls, requests: Seq[Request], block_size: int, *, prefix_caching: bool) -> "Plan":
        """Order the requests and walk them once with an unlimited cache."""
        ordered = sorted(requests, key=lambda r: (_sort_key(r.prompt_token_ids), r.index))
        sequences: list[Sequence] = []
        private: list[int] = []
        seen: set[bytes] = set()
        shared: set[bytes] = set()
        hit_tokens = 0
        for request in ordered:
            prompt = request.prompt_token_ids
            keys = BlockKey.chain(prompt, block_size) if prefix_caching else []
            num_hits = 0
            for key in keys:
                if key.digest not in seen:
                    break
                shared.add(key.digest)
                num_hits += 1
            seen.update(key.digest for key in keys[num_hits:])
            hit_tokens += min(num_hits * block_size, len(prompt) - 1)
            sequence = Sequence.start(request, keys)
            full = -(-sequence.max_num_tokens // block_size)
            prompt_blocks = len(prompt) // block_size
            own = (full - prompt_blocks) * request.params.n + prompt_blocks - num_hits
            sequences.append(sequence)
            private.append(own)
        return cls(tuple(sequences), hit_tokens, len(shared), tuple(private))

    def num_blocks_needed(self, max_num_seqs: int) -> int:
        """Return how many blocks let `max_num_seqs` of the largest requests run at once while
        every shared prefix stays cached. An upper bound: fewer may do."""
        largest = sorted(self.num_private_blocks, reverse=True)[:max_num_seqs]
        # Admission keeps a block free for each running sequence.
        return self.num_shared_blocks + sum(largest) + min(max_num_seqs, len(largest))


def _sort_key(token_ids: Seq[int]) -> bytes:
    """Return bytes that compare as the token lists do: big-endian, fixed width."""
    ids = array("i", token_ids)
    ids.byteswap()
    return ids.tobytes()
