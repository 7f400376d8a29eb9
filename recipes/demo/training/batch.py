"""Training batches: directories with many independent questions each, made at token level.

One example is a directory followed by its questions. Each question sees the directory and itself
and takes up positions right after the directory, so that training on many questions at once is
the same as training on as many single-turn chats.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from pagedrun.recipes.demo.training.directory import (
    ANSWERS,
    FIRST_NAMES,
    HEADERS,
    LAST_NAMES,
    QUESTIONS,
    TEAMS,
    Entry,
    EntryTable,
    IntArray,
    sample_entries,
)
from pagedrun.recipes.demo.training.tokenizer import TURN_END, TURN_START, token_id

SHOW_SHARE = 0.3  # of the questions; "Show" has the longest answer, hence the densest targets
OTHER_TOKEN_WEIGHT = 0.3  # of answer tokens that are not a room, phone or team


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Sizes of a batch. `num_position_slots` >= num_entries: the entries are spread at random over
    that many positions, with gaps in their position ids unless both are equal.
    """

    num_directories: int
    num_entries: int
    num_questions: int
    crowded: bool
    num_position_slots: int


@dataclass(frozen=True, slots=True)
class Batch:
    """B directories of D tokens with N entries, and Q questions of T tokens for each of them.

    directory_ids, directory_positions: int64 [B, D].
    question_ids, question_positions, target_ids: int64 [B, Q, T]; the target is the next token.
    loss_weights: float32 [B, Q, T]; 0 where the target is not part of the answer.
    sources: int64 [B, Q, T]; where the target is a fact, the place in the directory to copy it
    from, else -1.
    fact_places: int64 [N, 8]; places in the directory of each entry's facts.
    first_ids, last_ids: int64 [B, N]; each entry's names.
    asked: int64 [B, Q]; the entry that a question is about.
    """

    directory_ids: Tensor
    directory_positions: Tensor
    question_ids: Tensor
    question_positions: Tensor
    target_ids: Tensor
    loss_weights: Tensor
    sources: Tensor
    fact_places: Tensor
    first_ids: Tensor
    last_ids: Tensor
    asked: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes for this batch, padding included."""
        return self.directory_ids.numel() + self.question_ids.numel()


class BatchMaker:
    """Draws batches. Built once per tokenizer; holds every sentence of the task as a template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocabulary = SlotVocabulary.build(tokenizer)
        self._headers = [
            np.array(tokenizer.encode(f"{TURN_START}system\n{header}\n").ids) for header in HEADERS
        ]
        self._entry = Template.compile(tokenizer, ANSWERS["show"] + "\n")
        # The last line has no newline, which makes its last token another one.
        self._last_token = Template.compile(tokenizer, ANSWERS["show"]).codes[-1]
        self._system_end = np.array(tokenizer.encode(f"{TURN_END}\n").ids)
        self._turns = _TurnTable.build(tokenizer)

    def make(self, rng: np.random.Generator, spec: BatchSpec) -> Batch:
        """Draw one batch; it depends on `rng` and `spec` alone."""
        table = sample_entries(rng, spec.num_directories, spec.num_entries, crowded=spec.crowded)
        slot_tokens = self._vocabulary.slot_tokens(table)  # [B, N, NUM_SLOTS]
        header = self._headers[rng.integers(len(self._headers))]
        places = len(header) + np.arange(spec.num_entries * len(self._entry.codes)).reshape(
            spec.num_entries, -1
        )  # [N, entry tokens]: where in the directory each token of each entry is
        directory_ids = self._directory(header, slot_tokens)
        directory_positions = self._positions(rng, spec, len(header), directory_ids.shape[1])

        shape = (spec.num_directories, spec.num_questions)
        asked = _spread(rng, *shape, spec.num_entries)
        turn_ids = rng.choice(self._turns.codes.shape[0], size=shape, p=self._turns.shares)
        asked_tokens = np.take_along_axis(slot_tokens, asked[..., None], axis=1)  # [B, Q, slots]
        ids = fill(self._turns.codes[turn_ids], asked_tokens)  # [B, Q, T + 1]
        target_slots = self._turns.slots[turn_ids][..., 1:]
        is_fact = target_slots >= FIRST_VALUE_SLOT
        slot_places = np.zeros((spec.num_entries, NUM_SLOTS), dtype=np.int64)
        entry_slots = self._entry.slots
        slot_places[:, entry_slots[entry_slots >= 0]] = places[:, entry_slots >= 0]
        sources = slot_places[asked[..., None], np.where(is_fact, target_slots, 0)]
        steps = np.arange(1, ids.shape[-1])
        question_positions = directory_positions[:, -1, None, None] + np.broadcast_to(
            steps, (*shape, len(steps))
        )
        arrays = {
            "directory_ids": directory_ids,
            "directory_positions": directory_positions,
            "question_ids": ids[..., :-1],
            "question_positions": question_positions,
            "target_ids": ids[..., 1:],
            "loss_weights": self._turns.loss_weights[turn_ids][..., 1:],
            "sources": np.where(is_fact, sources, -1),
            "fact_places": slot_places[:, FIRST_VALUE_SLOT:],
            "first_ids": table.first_ids,
            "last_ids": table.last_ids,
            "asked": asked,
        }
        return Batch(
            **{key: torch.from_numpy(np.ascontiguousarray(a)) for key, a in arrays.items()}
        )

    def _directory(self, header: IntArray, slot_tokens: IntArray) -> IntArray:
        """Return the token ids [B, D] of the system turns."""
        num_directories, num_entries, _ = slot_tokens.shape
        codes = np.broadcast_to(
            self._entry.codes, (num_directories, num_entries, len(self._entry.codes))
        )
        entries = fill(codes, slot_tokens)
        entries[:, -1, -1] = self._last_token
        rows = (num_directories, -1)
        return np.concatenate(
            [
                np.broadcast_to(header, (num_directories, len(header))),
                entries.reshape(rows),
                np.broadcast_to(self._system_end, (num_directories, len(self._system_end))),
            ],
            axis=1,
        )

    def _positions(
        self, rng: np.random.Generator, spec: BatchSpec, num_header: int, num_tokens: int
    ) -> IntArray:
        """Return position ids [B, D], with whole entries left out at random before each entry."""
        places = rng.random((spec.num_directories, spec.num_position_slots)).argsort(axis=1)
        places = np.sort(places[:, : spec.num_entries], axis=1)
        num_skipped = places - np.arange(spec.num_entries)  # [B, N], entries left out so far
        entry_length = len(self._entry.codes)
        jumps = np.repeat(num_skipped * entry_length, entry_length, axis=1)
        positions = np.tile(np.arange(num_tokens), (spec.num_directories, 1))
        end = num_header + jumps.shape[1]
        positions[:, num_header:end] += jumps
        positions[:, end:] += jumps[:, -1:]
        return positions


@dataclass(frozen=True, slots=True)
class _TurnTable:
    """Every phrasing with its answer, padded to one length; arrays [num_phrasings, T + 1]."""

    codes: IntArray
    slots: IntArray
    loss_weights: npt.NDArray[np.float32]
    shares: npt.NDArray[np.float64]

    @classmethod
    def build(cls, tokenizer: Tokenizer) -> "_TurnTable":
        prompts, answers, shares = [], [], []
        for kind, questions in QUESTIONS.items():
            share = SHOW_SHARE if kind == "show" else (1 - SHOW_SHARE) / (len(QUESTIONS) - 1)
            answer = Template.compile(tokenizer, ANSWERS[kind] + TURN_END)
            for question in questions:
                opening = f"{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n"
                prompts.append(Template.compile(tokenizer, opening).codes)
                answers.append(answer.codes)
                shares.append(share / len(questions))
        length = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        codes = np.full((len(prompts), length), tokenizer.encode(TURN_END).ids[0], dtype=np.int64)
        in_answer = np.zeros((len(prompts), length), dtype=np.bool_)
        for row, (prompt, answer_codes) in enumerate(zip(prompts, answers, strict=True)):
            end = len(prompt) + len(answer_codes)
            codes[row, :end] = np.concatenate([prompt, answer_codes])
            in_answer[row, len(prompt) : end] = True
        slots = np.where(codes < 0, ~codes, -1)
        weights = np.where(slots >= FIRST_VALUE_SLOT, 1.0, OTHER_TOKEN_WEIGHT) * in_answer
        return cls(codes, slots, weights.astype(np.float32), np.array(shares))


def _spread(
    rng: np.random.Generator, num_directories: int, num_questions: int, num_entries: int
) -> IntArray:
    """Choose the entries to ask about [B, Q]: each of them about equally often."""
    rounds = -(-num_questions // num_entries)
    keys = rng.random((num_directories, rounds, num_entries))
    return keys.argsort(axis=-1).reshape(num_directories, -1)[:, :num_questions]


# Slots: what a blank asks for. A first name is another token at the start of a line than after
# a space. The slots from FIRST_VALUE_SLOT on are the facts that answers copy.
FIRST_SLOT = 0
SPACED_FIRST_SLOT = 1
LAST_SLOT = 2
FIRST_VALUE_SLOT = 3  # 3 room digits, 4 phone digits, the team
NUM_SLOTS = 11

_MARKER = Entry(name=f"{FIRST_NAMES[0]} {LAST_NAMES[0]}", room="123", phone="4567", team=TEAMS[0])
_MARKER_PIECES = (
    FIRST_NAMES[0],
    f" {FIRST_NAMES[0]}",
    f" {LAST_NAMES[0]}",
    *(" 1", "2", "3"),
    *(" 4", "5", "6", "7"),
    f" {TEAMS[0]}",
)


@dataclass(frozen=True, slots=True)
class Template:
    """Token ids int64 [num_tokens]: a token id, or `~slot` (negative) where a blank is."""

    codes: IntArray

    @classmethod
    def compile(cls, tokenizer: Tokenizer, text: str) -> "Template":
        """Build from text with {name}, {room}, {phone} and {team}."""
        slots = {token_id(tokenizer, piece): slot for slot, piece in enumerate(_MARKER_PIECES)}
        ids = tokenizer.encode(_MARKER.fill(text)).ids
        return cls(np.array([~slots[i] if i in slots else i for i in ids], dtype=np.int64))

    @property
    def slots(self) -> IntArray:
        """The slot at each token, -1 where the token is fixed; int64 [num_tokens]."""
        return np.where(self.codes < 0, ~self.codes, -1)


def fill(codes: IntArray, slot_tokens: IntArray) -> IntArray:
    """Return token ids [..., num_tokens] from codes of that shape and slot tokens [..., slots]."""
    filled = np.take_along_axis(slot_tokens, np.where(codes < 0, ~codes, 0), axis=-1)
    return np.where(codes < 0, filled, codes)


@dataclass(frozen=True, slots=True)
class SlotVocabulary:
    """The token ids of everything that may fill a blank; int64 vectors by index or digit."""

    first: IntArray
    spaced_first: IntArray
    last: IntArray
    digit: IntArray
    spaced_digit: IntArray
    team: IntArray

    @classmethod
    def build(cls, tokenizer: Tokenizer) -> "SlotVocabulary":
        """Look every word up in the tokenizer."""

        def lookup(words: list[str]) -> IntArray:
            return np.array([token_id(tokenizer, word) for word in words], dtype=np.int64)

        digits = [str(digit) for digit in range(10)]
        return cls(
            first=lookup(list(FIRST_NAMES)),
            spaced_first=lookup([f" {name}" for name in FIRST_NAMES]),
            last=lookup([f" {name}" for name in LAST_NAMES]),
            digit=lookup(digits),
            # A number never starts with 0; the first entry only keeps digit and index equal.
            spaced_digit=lookup(["0", *(f" {digit}" for digit in digits[1:])]),
            team=lookup([f" {team}" for team in TEAMS]),
        )

    def slot_tokens(self, table: EntryTable) -> IntArray:
        """Return [num_directories, num_entries, NUM_SLOTS]: the token for each blank."""
        return np.concatenate(
            [
                self.first[table.first_ids][..., None],
                self.spaced_first[table.first_ids][..., None],
                self.last[table.last_ids][..., None],
                self.spaced_digit[table.rooms[..., :1]],
                self.digit[table.rooms[..., 1:]],
                self.spaced_digit[table.phones[..., :1]],
                self.digit[table.phones[..., 1:]],
                self.team[table.team_ids][..., None],
            ],
            axis=-1,
        )
