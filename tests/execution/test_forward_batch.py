"""Steps laid out for the model: by hand, and any step against a plain loop over its tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.attention_inputs import AttentionInputs
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.forward_batch import forward_batch
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from pagedrun.paged.models.model import NO_SLOT, ForwardBatch
from pagedrun.paged.scheduling.step_input import StepInput
from tests.support.made_step import MadeChunk, made_sequence, made_step

FULL = KVCacheSpec(num_layers=2, num_kv_heads=1, head_dim=8, dtype="float32")
SLIDING = replace(FULL, window=50)


DEVICE = Device(torch.device("cpu"), Backend(), async_scheduling=False)
SHAPE = AttentionShape(1, 1, 8, torch.float32, torch.float32)


def lay_out(
    step: StepInput, block_size: int, specs: list[KVCacheSpec], *, share: bool = True
) -> tuple[ForwardBatch, tuple[AttentionInputs, ...]]:
    shapes, sharing = [SHAPE] * len(specs), PrefixSharing(share=share)
    return forward_batch(step, block_size, specs, shapes, sharing, DEVICE)


def build(chunks: list[MadeChunk], block_size: int = 4) -> tuple[ForwardBatch, AttentionInputs]:
    batch, (attention,) = lay_out(made_step(*chunks), block_size, [FULL])
    return batch, attention


def test_a_whole_prompt() -> None:
    batch, attention = build([MadeChunk([10, 11, 12, 13, 14], [], [7, 3], 0, 5)])
    assert batch.input_ids.tolist() == [10, 11, 12, 13, 14]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4]
    assert batch.groups[0].slots.tolist() == [28, 29, 30, 31, 12]
    assert attention.block_tables.tolist() == [[7, 3]]
    assert batch.num_prefill_tokens == 5
    assert batch.logits_rows.tolist() == [4]
    assert attention.prefill is not None
    assert attention.prefill.chunk_starts.tolist() == [0, 5]
    assert attention.prefill.table_rows.tolist() == [0]
    assert attention.prefill.first_positions.tolist() == [0]
    assert attention.decode is None


def test_each_group_of_layers_has_tables_and_slots_of_its_own() -> None:
    step = made_step(MadeChunk([10, 11, 12, 13, 14], [], [7, 3], 3, 5))
    step = replace(step, block_tables=(*step.block_tables, np.array([[0, 6]], dtype=np.int32)))
    batch, (full, sliding) = lay_out(step, 4, [FULL, SLIDING])
    assert [group.slots.tolist() for group in batch.groups] == [[31, 12], [3, 24]]
    assert full.block_tables.tolist() == [[7, 3]]
    assert sliding.block_tables.tolist() == [[0, 6]]


def test_decode_alone() -> None:
    batch, attention = build(
        [MadeChunk([1, 2], [50], [5], 2, 3), MadeChunk([1], [60, 61, 62, 63], [6, 8], 4, 5)]
    )
    assert batch.input_ids.tolist() == [50, 63]
    assert batch.positions.tolist() == [2, 4]
    assert batch.groups[0].slots.tolist() == [22, 32]
    assert batch.num_prefill_tokens == 0
    assert attention.prefill is None
    assert attention.decode is not None
    assert attention.decode.table_rows.tolist() == [0, 1]
    assert attention.decode.context_lens.tolist() == [3, 5]
    assert batch.logits_rows.tolist() == [0, 1]


def test_decode_prefill_and_replay_in_one_step() -> None:
    """All prompt tokens come first, also those of a chunk that crosses the prompt's end."""
    decode = MadeChunk([1, 2, 3], [40], [9], 3, 4)
    replay = MadeChunk([20, 21, 22], [30, 31], [2, 5], 1, 5)
    unfinished = MadeChunk([60, 61, 62, 63, 64, 65], [], [4, 6], 2, 5)
    batch, attention = build([decode, replay, unfinished])
    assert batch.input_ids.tolist() == [21, 22, 62, 63, 64, 40, 30, 31]
    assert batch.positions.tolist() == [1, 2, 2, 3, 4, 3, 3, 4]
    assert batch.groups[0].slots.tolist() == [9, 10, 18, 19, 24, 39, 11, 20]
    assert attention.block_tables.tolist() == [[9, 0], [2, 5], [4, 6]]
    assert batch.num_prefill_tokens == 5
    assert attention.prefill is not None
    assert attention.prefill.chunk_starts.tolist() == [0, 2, 5]
    assert attention.prefill.table_rows.tolist() == [1, 2]
    assert attention.prefill.first_positions.tolist() == [1, 2]
    assert attention.decode is not None
    assert attention.decode.table_rows.tolist() == [0, 1, 1]
    assert attention.decode.context_lens.tolist() == [4, 4, 5]
    # In the order of the chunks, not of the tokens; the unfinished prompt samples nothing.
    assert batch.logits_rows.tolist() == [5, 7]


def test_tokens_pass_a_state_in_the_order_of_their_sequence() -> None:
    """Where the batch has prompt tokens first, also those of a chunk with both kinds."""
    step = made_step(
        MadeChunk([1, 2, 3], [40], [9], 3, 4),
        MadeChunk([20, 21, 22], [30, 31], [2, 5], 1, 5),
        MadeChunk([60, 61, 62, 63, 64, 65], [], [4, 6], 2, 5),
    )
    step = replace(step, read_slots=np.array([8, -1, 3]), write_slots=np.array([8, 0, 5]))
    batch, _ = lay_out(step, 4, [FULL])
    states = batch.states
    assert states is not None
    passed = [batch.input_ids[chunk].tolist() for chunk in states.chunks()]
    assert passed == [[40], [21, 22, 30, 31], [62, 63, 64]]
    assert states.read_slots.tolist() == [8, -1, 3]
    assert [each.tolist() for each in states.writes()] == [[8], [-1, -1, -1, 0], [-1, -1, 5]]
    tensors = (states.tokens, states.chunk_starts, states.read_slots, states.write_slots)
    assert {each.dtype for each in tensors} == {torch.int32}
    assert build([MadeChunk([1, 2], [], [5], 0, 2)])[0].states is None


def test_drafts_go_on_in_the_chunk_of_their_sequence() -> None:
    """But in a piece that begins with a draft, where they read what the piece before wrote."""
    step = made_step(
        MadeChunk([1, 2, 3], [40], [9, 1], 3, 4),
        MadeChunk([20, 21], [30], [2], 2, 3),
        MadeChunk([60, 61, 62, 63], [], [4], 0, 3),
        MadeChunk([20, 21], [30, 31], [2], 3, 4),
        MadeChunk([1, 2, 3], [40, 41], [9, 1], 4, 5),
        MadeChunk([1, 2, 3], [40, 41, 42], [9, 1], 5, 6),
    )
    step = replace(
        step,
        uids=np.array([0, 1, 2, -2, -3, -4]),
        read_slots=np.array([8, 3, -1, 6, 8, 0]),
        write_slots=np.array([8, 6, 5, 7, 0, 1]),
    )

    def walks(each: StepInput) -> list[tuple[list[int], int, list[int]]]:
        batch, _ = lay_out(each, 4, [FULL])
        states = batch.states
        assert states is not None
        tokens = [batch.input_ids[chunk].tolist() for chunk in states.chunks()]
        writes = [slots.tolist() for slots in states.writes()]
        return list(zip(tokens, states.read_slots.tolist(), writes, strict=True))

    prompt = ([60, 61, 62], -1, [-1, -1, 5])
    assert walks(step) == [([40, 41, 42], 8, [8, 0, 1]), ([30, 31], 3, [6, 7]), prompt]
    first, second = step.pieces(6)
    assert walks(first) == [([40], 8, [8]), ([30, 31], 3, [6, 7]), prompt]
    assert walks(second) == [([41, 42], 8, [0, 1])]


def test_what_is_stored_already_gets_no_slot() -> None:
    found_whole = MadeChunk([1, 2, 3, 4], [], [8], 3, 4, store_from=4)
    half = MadeChunk([5, 6, 7, 8, 9, 10], [], [8, 1], 2, 6, store_from=4)
    batch, _ = build([found_whole, half])
    assert batch.groups[0].slots.tolist() == [NO_SLOT, NO_SLOT, NO_SLOT, 4, 5]
    assert batch.logits_rows.tolist() == [0, 4]


def test_a_replay_that_starts_behind_the_prompt() -> None:
    batch, attention = build([MadeChunk([1, 2, 3], [40, 41, 42, 43], [9, 2], 4, 6)])
    assert batch.num_prefill_tokens == 0
    assert batch.input_ids.tolist() == [41, 42]
    assert attention.decode is not None
    assert attention.decode.context_lens.tolist() == [5, 6]
    assert batch.logits_rows.tolist() == []
    assert batch.logits_rows.dtype == torch.int64


def test_dtypes_and_shapes() -> None:
    batch, attention = build(
        [MadeChunk([1, 2], [3], [2], 1, 3), MadeChunk([1], [], [3, 4, 5], 0, 1)]
    )
    assert attention.prefill is not None
    assert attention.decode is not None
    wide = (batch.input_ids, batch.positions, batch.groups[0].slots, batch.logits_rows)
    assert {tensor.dtype for tensor in wide} == {torch.int64}
    narrow = (
        attention.block_tables,
        attention.prefill.chunk_starts,
        attention.prefill.table_rows,
        attention.prefill.first_positions,
        attention.decode.table_rows,
        attention.decode.context_lens,
    )
    assert {tensor.dtype for tensor in narrow} == {torch.int32}
    assert attention.block_tables.shape == (2, 3)
    assert all(tensor.is_contiguous() for tensor in (*wide, *narrow))


def test_a_slot_beyond_int32() -> None:
    """A block id fits into int32; a slot in a large pool does not."""
    block = 2**31 - 1
    batch, _ = build([MadeChunk([1, 2], [], [block], 0, 2)], block_size=16)
    assert batch.groups[0].slots.tolist() == [block * 16, block * 16 + 1]


@st.composite
def chunks(draw: st.DrawFn) -> MadeChunk:
    prompt = draw(st.lists(st.integers(0, 99), min_size=1, max_size=9))
    output = draw(st.lists(st.integers(100, 199), max_size=6))
    total = len(prompt) + len(output)
    start = draw(st.integers(0, total - 1))
    end = draw(st.integers(start + 1, total))
    table = draw(st.lists(st.integers(0, 40), min_size=total, max_size=total, unique=True))
    return MadeChunk(prompt, output, table, start, end, draw(st.integers(start, end)))


@given(given_chunks=st.lists(chunks(), min_size=1, max_size=6), size=st.sampled_from([1, 2, 3, 4]))
@settings(max_examples=150, deadline=None)
def test_any_batch_holds_each_token_once(given_chunks: list[MadeChunk], size: int) -> None:
    batch, attention = build(given_chunks, size)
    expected: dict[bool, list[tuple[int, int, int, int]]] = {True: [], False: []}
    for row, each in enumerate(given_chunks):
        tokens = [*each.prompt, *each.output]
        for position in range(each.start, each.end):
            slot = each.blocks[position // size] * size + position % size
            stored = position < each.stored
            is_prompt = position < len(each.prompt)
            expected[is_prompt].append(
                (row, tokens[position], position, NO_SLOT if stored else slot)
            )
    ordered = [*expected[True], *expected[False]]
    assert batch.input_ids.tolist() == [token for _, token, _, _ in ordered]
    assert batch.positions.tolist() == [position for _, _, position, _ in ordered]
    assert batch.groups[0].slots.tolist() == [slot for *_, slot in ordered]
    assert batch.num_prefill_tokens == len(expected[True])
    places = {(row, position): place for place, (row, _, position, _) in enumerate(ordered)}
    assert batch.logits_rows.tolist() == [
        places[row, each.end - 1] for row, each in enumerate(given_chunks) if each.samples
    ]

    queries = []
    if attention.prefill is not None:
        starts = attention.prefill.chunk_starts.tolist()
        pieces = zip(
            attention.prefill.table_rows,
            attention.prefill.first_positions,
            strict=True,
        )
        for index, (row_id, first) in enumerate(pieces):
            length = starts[index + 1] - starts[index]
            assert length > 0
            queries += [(int(row_id), int(first) + offset) for offset in range(length)]
        assert starts[-1] == batch.num_prefill_tokens
    if attention.decode is not None:
        rows, lens = (
            attention.decode.table_rows.tolist(),
            attention.decode.context_lens.tolist(),
        )
        queries += [(row, length - 1) for row, length in zip(rows, lens, strict=True)]
    assert queries == [(row, position) for row, _, position, _ in ordered]
    for row, each in enumerate(given_chunks):
        assert attention.block_tables[row, : len(each.blocks)].tolist() == each.blocks


@given(data=st.data(), prompt=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_token_ids_of_any_range(data: st.DataObject, prompt: list[int]) -> None:
    output = data.draw(st.lists(st.integers(0, 2**31 - 1), max_size=5))
    everything = prompt + output
    start = data.draw(st.integers(0, len(everything)))
    end = data.draw(st.integers(start, len(everything)))
    sequence = made_sequence(prompt, output)
    assert sequence.token_ids(start, end) == everything[start:end]


@pytest.mark.parametrize(
    ("num_prompt", "num_output", "start", "end", "read", "windowed"),
    [
        (8, 0, 0, 8, 8, 8),  # a prompt at once reads its context once
        (8, 0, 4, 8, 8, 4 + 3 - 1),  # and so does a later chunk of it
        (8, 0, 7, 8, 8, 3),
        (8, 1, 8, 9, 9, 3),  # a generated token reads all before it and itself
        (8, 3, 8, 11, 9 + 10 + 11, 3 * 3),  # replayed ones each their own
        (8, 3, 2, 11, 8 + 9 + 10 + 11, 8 + 3 * 3),  # a chunk over the prompt's end
        (1, 1, 1, 2, 2, 2),
    ],
)
def test_tokens_read(
    num_prompt: int, num_output: int, start: int, end: int, read: int, windowed: int
) -> None:
    _, attention = build([MadeChunk([1] * num_prompt, [2] * num_output, [0, 1, 2], start, end)])
    assert attention.tokens_read(None) == (read, read)
    assert attention.tokens_read(3) == (windowed, windowed)


def test_rows_that_decode_together_read_their_shared_partitions_once() -> None:
    prompt = [1] * 2 * PARTITION_TOKENS
    length = len(prompt)
    chunks = [
        MadeChunk(
            prompt,
            [2],
            [0, 1, own],
            length,
            length + 1,
            num_read_once_tokens=PARTITION_TOKENS + 3,
        )
        for own in (5, 6, 7)
    ]
    apart = 3 * (len(prompt) + 1)
    _, together = build(chunks, block_size=PARTITION_TOKENS)
    assert together.tokens_read(None) == (apart - 2 * PARTITION_TOKENS, apart)
    assert together.tokens_read(50) == (150, 150)
    step = made_step(*chunks)
    _, (alone,) = lay_out(step, PARTITION_TOKENS, [FULL], share=False)
    assert alone.tokens_read(None) == (apart, apart)


def reads_together(attention: AttentionInputs) -> bool:
    rows = attention.decode
    assert rows is not None
    return rows.groups is not None


def test_rows_read_nothing_together_behind_a_window() -> None:
    """The first group's tables say who shares what; another's hold other blocks there, or none."""
    length = PARTITION_TOKENS
    rows = [
        MadeChunk([1] * length, [2], [0, own], length, length + 1, num_read_once_tokens=length)
        for own in (5, 6)
    ]
    step = made_step(*rows)
    step = replace(step, block_tables=step.block_tables * 3)
    _, attention = lay_out(step, PARTITION_TOKENS, [FULL, SLIDING, FULL])
    assert [reads_together(each) for each in attention] == [True, False, True]
    only_windows = [replace(FULL, num_layers=0), SLIDING, SLIDING]
    _, attention = lay_out(step, PARTITION_TOKENS, only_windows)
    assert not any(map(reads_together, attention))
