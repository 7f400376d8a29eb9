"""StepInput: cut in two, a step computes and draws what it did whole."""

import pickle
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.scheduling.sequence_table import NO_SCORES, UNKNOWN_TOKEN
from pagedrun.paged.scheduling.step_input import StepInput
from tests.support.made_step import MadeChunk, made_step


@st.composite
def chunks(draw: st.DrawFn) -> MadeChunk:
    prompt: list[int] = draw(st.lists(st.integers(0, 99), min_size=1, max_size=9))
    output: list[int] = draw(st.lists(st.integers(100, 199), max_size=4))
    is_unknown: bool = draw(st.booleans())
    if output and is_unknown:
        output[-1] = UNKNOWN_TOKEN
    start = draw(st.integers(0, len(prompt) + len(output) - 1))
    end = draw(st.integers(start + 1, len(prompt) + len(output)))
    if UNKNOWN_TOKEN in output[: end - len(prompt)] and end < len(prompt) + len(output):
        end -= 1
    store_from = draw(st.integers(start, end))
    early = (("min_tokens", 3), ("max_tokens", 9)) if draw(st.booleans()) else ()
    # What is replayed is known: nothing is scored by a token that is not.
    known = UNKNOWN_TOKEN not in output
    score_from = draw(st.integers(0, end)) if known and draw(st.booleans()) else NO_SCORES
    return MadeChunk(prompt, output, range(20), start, end, store_from, score_from, params=early)


def tokens_of(step: StepInput) -> list[tuple[int, int, int, bool]]:
    """Row, position, id and whether it is stored, of every token in order."""
    found, ids = [], iter(step.input_ids.tolist())
    for row, start, end, stored in zip(
        step.rows.tolist(), step.starts.tolist(), step.ends.tolist(), step.store_from, strict=True
    ):
        found += [(row, position, next(ids), position >= stored) for position in range(start, end)]
    return found


def targets_of(step: StepInput) -> list[tuple[int, int, int]]:
    """Row, position and target of every position whose next token is scored, in order."""
    found, targets = [], iter(step.targets.tolist())
    counts = zip(step.rows.tolist(), step.first_scored, step.num_scored, strict=True)
    for row, first, count in counts:
        found += [(row, int(first) + place, next(targets)) for place in range(count)]
    assert next(targets, None) is None
    return found


def draws_of(step: StepInput) -> list[tuple[int, int, int, tuple[int, ...] | None]]:
    """Row, position and seed of every draw in order, and what it may not draw."""
    draws = step.draws
    rows = step.rows[draws.chunk]
    assert np.array_equal(rows, draws.row)
    assert (step.samples[draws.chunk]).all()
    stops = [draws.stop_token_ids.get(index) for index in range(len(draws))]
    columns = (rows.tolist(), draws.position.tolist(), draws.seed.tolist(), stops)
    return list(zip(*columns, strict=True))


def last_states(*steps: StepInput) -> dict[int, int]:
    """What each row's slot comes to if a state counts the tokens that passed it."""
    slots: dict[int, int] = {}
    found: dict[int, int] = {}
    for step in steps:
        read = [0 if slot < 0 else slots.get(slot, slot) for slot in step.read_slots.tolist()]
        lengths = (step.ends - step.starts).tolist()
        for row, slot, state, length in zip(
            step.rows.tolist(), step.write_slots.tolist(), read, lengths, strict=True
        ):
            found[row] = slots[slot] = state + length
    return found


PIECE_SIZES = st.integers(1, 40)


@given(
    given_chunks=st.lists(chunks(), min_size=1, max_size=6),
    seed=st.integers(0, 9),
    size=PIECE_SIZES,
)
def test_a_piece_reads_the_states_that_the_one_before_wrote(
    given_chunks: list[MadeChunk], seed: int, size: int
) -> None:
    """In place, from zeros, and from a slot that others read too: which none of them writes."""
    pick = np.random.default_rng(seed)
    count = len(given_chunks)
    writes = 100 + np.arange(count)
    reads = np.where(pick.random(count) < 0.5, writes, pick.choice([-1, 7], count))
    whole = replace(made_step(*given_chunks), read_slots=reads, write_slots=writes)
    assert last_states(*whole.pieces(size)) == last_states(whole)


@given(given_chunks=st.lists(chunks(), min_size=1, max_size=6), size=PIECE_SIZES)
def test_pieces_are_the_whole(given_chunks: list[MadeChunk], size: int) -> None:
    whole = made_step(*given_chunks)
    pieces = whole.pieces(size)
    *full, last = [each.num_tokens for each in pieces]
    assert set(full) <= {size}
    assert 0 < last <= size
    for of in (tokens_of, draws_of, targets_of):
        assert [each for piece in pieces for each in of(piece)] == list(of(whole))
    assert [each for piece in pieces for each in piece.sources] == whole.sources.tolist()
    assert sum(piece.num_samples for piece in pieces) == whole.num_samples


@given(given_chunks=st.lists(chunks(), min_size=1, max_size=6), data=st.data())
def test_a_split_loses_nothing_and_keeps_the_order(
    given_chunks: list[MadeChunk], data: st.DataObject
) -> None:
    whole = made_step(*given_chunks)
    chosen = np.array([data.draw(st.booleans()) for _ in given_chunks])
    chosen[0] = True
    taken, rest = whole.split(chosen)
    parts = [taken] if rest is None else [taken, rest]
    assert (rest is None) == chosen.all()
    for of in (tokens_of, draws_of, targets_of):
        found = [each for part in parts for each in of(part)]
        in_order = sorted(found, key=lambda each: each[0])  # by row, which is the chunk here
        assert in_order == of(whole)
    unknown = np.flatnonzero(whole.input_ids == UNKNOWN_TOKEN)
    assert sorted(s for part in parts for s in part.sources.tolist()) == sorted(whole.sources)
    assert sum(len(part.sources) for part in parts) == len(unknown)


def test_a_step_can_be_sent_to_another_process() -> None:
    step = made_step(MadeChunk([1, 2, 3], [4], [7], 3, 4))
    sent = pickle.loads(pickle.dumps(step))
    assert tokens_of(sent) == tokens_of(step)
    assert draws_of(sent) == draws_of(step)


def test_what_follows_a_token_is_scored_where_it_is_known() -> None:
    prompt, output = [10, 11, 12, 13], [20, 21]
    step = made_step(
        MadeChunk(prompt, output, range(9), 1, 3, score_from=0),
        MadeChunk(prompt, output, range(9), 1, 6, score_from=3),
        MadeChunk(prompt, output, range(9), 0, 3, score_from=3),
        MadeChunk(prompt, output, range(9), 0, 6),
    )
    assert targets_of(step) == [(0, 1, 12), (0, 2, 13), (1, 3, 20), (1, 4, 21)]
