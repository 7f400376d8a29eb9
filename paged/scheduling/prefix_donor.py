"""Which running sequence has a block that begins as another prompt's next block does."""

from collections.abc import Sequence as Seq
from typing import NamedTuple

from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.written_blocks import WrittenBlocks

# How many of the youngest sequences are looked at: the plan puts those that have most in common
# next to each other.
MAX_DONORS = 8


class Donor(NamedTuple):
    """Who has a block whose first tokens are wanted, and how many of them there are."""

    place: int
    num_tokens: int


def find_donor(
    running: Seq[Sequence],
    prompt: tuple[int, ...],
    hits: Seq[int],
    block_size: int,
    written: WrittenBlocks,
) -> Donor | None:
    """Return the best block to copy for the tokens after the `hits`, or `None`.

    A donor holds the same leading blocks, and what follows in its prompt begins alike. What the
    coming step writes (`written`) is not there before it and cannot be copied. The last token of a
    prompt is computed in any case, so it is not looked for.
    """
    begin = len(hits) * block_size
    wanted = prompt[begin : min(begin + block_size, len(prompt) - 1)]
    best: Donor | None = None
    for sequence in running[-MAX_DONORS:] if wanted else ():
        if sequence.request.prompt_token_ids[begin : begin + 1] != wanted[:1]:
            continue  # as most are; cheaper to see than what the sequence holds
        if sequence.num_blocks <= len(hits) or (hits and sequence.block(len(hits) - 1) != hits[-1]):
            continue
        block_id = sequence.block(len(hits))
        stored = min(written.first_offset(block_id, block_size), sequence.num_stored_tokens - begin)
        given = sequence.request.prompt_token_ids[begin : begin + max(stored, 0)]
        num_tokens = _num_common(wanted, given)
        if num_tokens > (best.num_tokens if best else 0):
            best = Donor(sequence.place, num_tokens)
    return best


def _num_common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    """Return the length of the common prefix."""
    count = 0
    for a, b in zip(one, two, strict=False):
        if a != b:
            break
        count += 1
    return count
