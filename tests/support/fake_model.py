"""A model that keeps in each slot what a real one would depend on.

A slot holds (position, a digest of every token up to it). Before a token counts as computed, the
fake reads the whole context back through the block table: a block shared wrongly, copied late,
swapped to the wrong place or given away too early does not read back as the sequence's own tokens.
"""

from collections.abc import Iterable

from pagedrun.paged.cache.block_pool import BlockPool, TransferKind
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.values.request import Request
from tests.support.step import Step

EOS = 0
VOCAB = 7
START = 0  # the digest of no tokens

Slot = tuple[int, int]  # position, digest of the tokens up to and including it


def digest(before: int, token: int) -> int:
    return hash((before, token))


def digests(token_ids: Iterable[int]) -> list[int]:
    """The digest at each position."""
    found = [START]
    for token in token_ids:
        found.append(digest(found[-1], token))
    return found[1:]


def next_token(context: int, sample: int) -> int:
    """What the fake model says after a context; the samples of a request differ."""
    return hash((context, sample)) % VOCAB


def answer(request: Request, sample: int) -> tuple[int, ...]:
    """What a sample must come to, without any engine."""
    context = digests(request.prompt_token_ids)[-1]
    output: list[int] = []
    while not is_done(request, output):
        output.append(next_token(context, sample))
        context = digest(context, output[-1])
    return tuple(output)


def is_done(request: Request, output: list[int]) -> bool:
    params = request.params
    stopped = bool(output) and output[-1] == EOS and not params.ignore_eos
    return stopped or len(output) == params.max_tokens


class RecordingPool(BlockPool):
    """Remembers which blocks came off the free list since it was last asked."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.taken: set[int] = set()

    def _take_free(self) -> int:
        block_id = super()._take_free()
        self.taken.add(block_id)
        return block_id


class FakeModel:
    """KV memory of one group of layers as dictionaries, and a forward pass that checks what it
    reads: of each token all before it, or those in its window."""

    def __init__(self, pool: RecordingPool, group: int = 0, window: int | None = None) -> None:
        self.pool = pool
        self.group = group
        self.window = window
        self.blocks: dict[int, list[Slot | None]] = {}
        self.host: dict[int, list[Slot | None]] = {}
        self.computed_tokens = 0
        self.written_tokens = 0
        self.moves: dict[TransferKind, int] = dict.fromkeys(TransferKind, 0)

    def run(self, step: Step) -> list[int]:
        """Return a token for each draw."""
        self._transfer(step)
        self._write(step)
        ids = step.input.input_ids.tolist()
        for row, chunk in enumerate(step.chunks):
            sequence = chunk.sequence
            tokens = chunk.tokens
            first = 0 if self.window is None else max(chunk.start - self.window + 1, 0)
            for position, expected in list(enumerate(digests(tokens)))[first:]:
                found = self._slot(sequence, position)
                assert found == (position, expected), (
                    f"position {position} of chunk {chunk.start}..{chunk.end} reads {found}"
                )
            tables, place = sequence.table.kv_groups[self.group], sequence.row_index
            begin, end = int(tables.firsts[place]), int(tables.ends[place])
            given = step.input.block_tables[self.group][row].tolist()
            assert given[begin:end] == tables.held(place)
            assert not any(given[:begin])
            assert ids[: chunk.end - chunk.start] == tokens[chunk.start :]
            del ids[: chunk.end - chunk.start]
        assert not ids
        self.computed_tokens += step.input.num_tokens
        draws = step.input.draws
        wanted = [
            (row, sample)
            for row, chunk in enumerate(step.chunks)
            if chunk.samples
            for sample in chunk.sequence.pending_samples
        ]
        assert wanted == list(zip(draws.chunk.tolist(), draws.sample.tolist(), strict=True))
        contexts = {row: digests(chunk.tokens)[-1] for row, chunk in enumerate(step.chunks)}
        return [next_token(contexts[row], sample) for row, sample in wanted]

    def _transfer(self, step: Step) -> None:
        size = self.pool.block_size
        unwritten: list[Slot | None] = [None] * size
        filled = set()
        for each in step.input.transfers:
            if each.group != self.group:
                continue
            self.moves[each.kind] += 1
            source = self.host if each.kind is TransferKind.SWAP_IN else self.blocks
            target = self.host if each.kind is TransferKind.SWAP_OUT else self.blocks
            target[each.target] = list(source[each.source])
            if target is self.blocks:
                filled.add(each.target)
        # What a block held in its last life must not pass for its new content.
        for block_id in self.pool.taken - filled:
            self.blocks[block_id] = list(unwritten)
        self.pool.taken.clear()

    def _write(self, step: Step) -> None:
        size = self.pool.block_size
        written = set()
        for chunk in step.chunks:
            tables, at = chunk.sequence.table.kv_groups[self.group], chunk.sequence.row_index
            content = digests(chunk.tokens)
            for position in range(max(chunk.start, chunk.store_from), chunk.end):
                place = tables.block(at, position // size), position % size
                assert place not in written, "two chunks write one slot"
                written.add(place)
                self.blocks[place[0]][place[1]] = (position, content[position])
        self.written_tokens += len(written)

    def _slot(self, sequence: Sequence, position: int) -> Slot | None:
        tables = sequence.table.kv_groups[self.group]
        block_id = tables.block(sequence.row_index, position // self.pool.block_size)
        assert block_id >= 0, f"the block of position {position} was given back"
        return self.blocks[block_id][position % self.pool.block_size]
