"""Speculation: which sequences of a run get drafts, how many, and what becomes of them."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import numpy as np

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.metrics.report_sections import SpeculationFigures
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.speculation.costs import LONGEST, Chances, Rate, RowCosts, best_lengths
from pagedrun.paged.speculation.drafts import (
    GRAMMAR,
    MTP,
    Drafter,
    EarlierAnswer,
    OtherAnswers,
    PromptLookup,
    Proposal,
    RunningAnswer,
    can_draft,
)
from pagedrun.paged.speculation.grammar_drafts import GrammarChoices, GrammarDrafter
from pagedrun.paged.speculation.mtp_drafts import LIKE_MATCHED, MtpDrafter, MtpDrafts
from pagedrun.paged.speculation.verification import Followed
from pagedrun.paged.text.structured_answer import GrammarMatcher
from pagedrun.paged.values.engine_config import AUTO, OFF
from pagedrun.paged.values.request import Request

MOST_AUTO = 15  # drafts of a sequence
# Tokens that an MTP module predicts ahead: further ones, of its own results, are seldom right.
MOST_PREDICTED = 4
LEAST_CHANCE = 0.2  # of a token to be predicted: of it and all before it to be right
KEPT_SECONDS = 0.8  # weight of earlier predictions in the seconds of one
# Above, arithmetic binds wherever weights are in memory; a pass over a disk has room for more.
MAX_RUNNING, MAX_RUNNING_STREAMED = 64, 4096
# An MTP module costs a small part of every step, and saves steps of few sequences: those at the end
# of a run, if it has more.
MAX_FOLLOWED = 4 * MAX_RUNNING  # sequences of a run
MIN_PREDICTABLE = 3  # tokens of an answer: one before a draft, and one behind
# Attempts in vain, one after another, that double the steps until the next one; so often at most.
VAIN_ATTEMPTS, MOST_DOUBLINGS = 4, 5
# Tokens in indexes, about 500 bytes each: of a prompt, of all sequences, and of other answers.
PROMPT_TOKENS, OWN_TOKENS, OTHER_TOKENS = 2**13, 2**17, 2**15
MAX_GROUPS = 1024

MatcherOf = Callable[[int, int], GrammarMatcher | None]
"""Returns the grammar of an answer, by index of its row and sample; see `GrammarMask`."""


def can_speculate(
    network: object,
    specs: Iterable[KVCacheSpec],
    *,
    is_row_invariant: bool,
) -> TypeGuard[DecoderSpec]:
    """Return whether a run may have drafts: wrong ones can be forgotten, and the bytes of a row do
    not depend on the other rows of a step.

    specs: of the KV pools.
    """
    can_forget = not any(spec.is_transient for spec in specs)
    return isinstance(network, DecoderSpec) and can_forget and is_row_invariant


def max_running(asked: str, max_num_seqs: int, *, streams: bool) -> int:
    """Return the largest number of sequences in a step with drafts; see `Speculation.of`."""
    if asked != AUTO:
        return max_num_seqs
    return MAX_RUNNING_STREAMED if streams else MAX_RUNNING


@dataclass(slots=True)
class _Drafting:
    """Drafters of a sequence, the number of its tokens that they have, and their last proposal,
    until its drafts have been verified."""

    drafters: Seq[Drafter]
    rates: tuple[Rate, Rate]  # of its group and its own
    num_indexed: int  # in indexes of its own
    num_tokens: int
    grammar: GrammarDrafter | None  # one of the drafters
    proposal: Proposal | None = None


class Speculation:
    """Drafts of the sequences of a run."""

    def __init__(
        self,
        scheduler: Scheduler,
        matcher_of: MatcherOf,
        most: int,
        max_running: int,
        *,
        adapts: bool,
    ) -> None:
        """most: drafts of a sequence in a step. max_running: no drafts beside more sequences.
        adapts: choose their numbers by costs and chances."""
        self._scheduler = scheduler
        self._matcher_of = matcher_of
        self._choices = GrammarChoices()
        self._most = most
        self._max_running = max_running
        self._costs = RowCosts()
        self._adapts = adapts
        self._chances = Chances()
        self._others = OtherAnswers(OTHER_TOKENS)
        self._mtp: MtpDrafts | None = None
        self._num_predictable = 0  # sequences that an MTP module may predict tokens of
        self._predicting_s: float | None = None  # of a step, None before the second one
        self._num_predictions = 0
        self._last_predicting_s = 0.0
        self._by_uid: dict[int, _Drafting] = {}
        self._drafted: dict[int, _Drafting] = {}  # in the last step, by row index
        self._groups: defaultdict[int, Rate] = defaultdict(Rate)
        self._num_indexed = 0
        self._num_vain = self._num_skipped = 0  # attempts in vain; steps since the last attempt
        # Of the last step: its rows and sequences, and the new tokens of these.
        self._num_rows = self._num_sequences = self._num_stepped = 0
        self._has_prompts = False
        self._saved_s = 0.0
        self._proposed: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._num_tokens = self._num_steps = 0  # of sequences
        self._max_indexed = 0

    @classmethod
    def of(
        cls,
        asked: str,
        scheduler: Scheduler,
        matcher_of: MatcherOf,
        *,
        streams: bool,
    ) -> "Speculation | None":
        """Return the speculation that was asked for, None without any.

        streams: weights are read in each pass, so that a step saved is a pass saved.
        """
        if asked == OFF:
            return None
        adapts = asked == AUTO
        most = MOST_AUTO if adapts else int(asked)
        beside = max_running(asked, scheduler.limits.max_num_seqs, streams=streams)
        return cls(scheduler, matcher_of, most, beside, adapts=adapts)

    @property
    def is_due(self) -> bool:
        """True if the next step may have drafts, or tells costs that are not known yet."""
        if not 0 < len(self._scheduler.running) <= self._max_running:
            return False
        is_known = self._costs.is_known or not self._adapts
        return not is_known or self._num_skipped >= self._num_to_skip

    def use_mtp(self) -> None:
        """Draft by an MTP module that follows each step; `note_predictions` gets its tokens."""
        self._mtp = MtpDrafts()

    @property
    def uses_mtp(self) -> bool:
        """True if an MTP module is to follow each step."""
        return self._mtp is not None

    def note_requests(self, requests: Seq[Request]) -> None:
        """Add requests that are to run. From then on no MTP module drafts if it cannot pay: no
        answer has room for a draft, or all answers together are many."""
        if self._mtp is None or not requests:
            return
        self._num_predictable += sum(
            each.params.num_sequences
            for each in requests
            if can_draft(each) and each.params.max_tokens >= MIN_PREDICTABLE
        )
        most = MAX_FOLLOWED if self._adapts else sys.maxsize
        if not 0 < self._num_predictable <= most:
            self._mtp.clear()
            self._mtp = None

    @property
    def num_predicted(self) -> int:
        """Tokens of each sequence that an MTP module is to predict for the next step; 0 if it will
        have no drafts."""
        if self._mtp is None or not self.is_due or (self._adapts and not self._costs.is_known):
            return 0
        if not self._adapts:
            return self._most
        chance = self._chances.chance(MTP, LIKE_MATCHED, ())
        counts = range(1, MOST_PREDICTED + 1)
        return max((each for each in counts if chance**each >= LEAST_CHANCE), default=1)

    def note_predictions(self, uids: Int64s, drafts: Int64s, seconds: float) -> None:
        """Take what an MTP module has predicted behind a step, and how long that took; see
        `MtpDrafts.note`."""
        assert self._mtp is not None, "there is a module"
        self._mtp.note(uids, drafts)
        self._last_predicting_s = seconds
        self._num_predictions += 1
        if self._predicting_s is not None:
            before = self._predicting_s
            seconds = KEPT_SECONDS * before + (1 - KEPT_SECONDS) * min(seconds, LONGEST * before)
        if self._num_predictions > 1:  # kernels may be compiled in the first
            self._predicting_s = seconds

    def drafts(self, *, knows_tokens: bool) -> dict[int, list[int]]:
        """Return tokens that may follow the newest one of each sequence, by row index.

        knows_tokens: False if a step is in flight; nothing is drafted then.
        """
        running = self._scheduler.running
        self._num_rows = len(running)
        self._drafted.clear()
        if not self._may_pay(len(running)) or not knows_tokens:
            return {}
        uids = {self._uid(each): each for each in running}
        for uid in self._by_uid.keys() - uids.keys():
            self._forget(uid)
        asked = [
            (uid, each)
            for uid, each in uids.items()
            if each.num_output_tokens and can_draft(each.request)
        ]
        drafting = [self._proposed_for(uid, each) for uid, each in asked]
        lengths = [len(each.proposal.tokens) if each.proposal else 0 for each in drafting]
        any_proposed = any(lengths)
        if self._adapts and any_proposed:
            chances = [self._chance(each) for each in drafting]
            is_predicted = any(each.proposal and each.proposal.source == MTP for each in drafting)
            drafting_s = (self._predicting_s or 0.0) if is_predicted else 0.0
            most = len(running) + self._scheduler.room_for_drafts()
            rows = range(len(running), most + 1)
            lengths = best_lengths(lengths, chances, rows, self._costs, drafting_s)
        found: dict[int, list[int]] = {}
        for (_, sequence), each, length in zip(asked, drafting, lengths, strict=True):
            if each.proposal is not None and length:
                each.proposal = each.proposal._replace(tokens=each.proposal.tokens[:length])
                found[sequence.row_index] = each.proposal.tokens
                self._drafted[sequence.row_index] = each
        may_pay = self._adapts and any_proposed and self._costs.best_gain > 1
        self._note_choice(bool(found) or may_pay)
        return found

    def note_step(
        self, num_sequences: int, num_rows: int, followed: Seq[Followed], *, has_prompts: bool
    ) -> None:
        """Count a step that gave a token to so many sequences, and those that followed drafts.

        num_rows: computed tokens, those of prompts, forced ones and drafts included.
        """
        if self._mtp is not None:
            self._mtp.clear()
        self._num_steps += num_sequences
        self._num_sequences = self._num_stepped = num_sequences
        self._num_rows = num_rows if num_sequences else 0
        self._has_prompts = has_prompts
        for each in followed:
            tokens, num_right = each.drafted.tokens, each.num_right
            self._num_stepped += num_right
            drafting = self._drafted[each.drafted.row_index]
            assert drafting.proposal is not None, "it got drafts"
            source, num_own = drafting.proposal.source, drafting.proposal.num_own
            num_own = num_right if num_own is None else min(num_own, num_right)
            self._proposed[source] += len(tokens)
            self._accepted[source] += num_own
            if num_right > num_own:
                self._accepted[GRAMMAR] += num_right - num_own
            self._note_chance(drafting, min(num_right + 1, len(tokens)), num_right)
            drafting.proposal = None
        self._num_tokens += self._num_stepped

    def note_seconds(self, seconds: float, *, is_usual: bool) -> None:
        """Add the duration of the last step; is_usual: others of its shape will take as long."""
        step_s, self._last_predicting_s = seconds - self._last_predicting_s, 0.0
        if not self._num_rows:
            return
        if is_usual and self._has_prompts:
            self._costs.note_prompt(self._num_rows, step_s)
        elif is_usual:
            self._costs.note(self._num_rows, step_s)
        if self._drafted and not self._has_prompts and self._costs.is_known:
            if not is_usual:
                self._costs.note_trial(self._num_rows, step_s)
            plain = float(self._costs.seconds(np.array([self._num_sequences]))[0])
            self._saved_s += plain * self._num_stepped / self._num_sequences - seconds
        self._num_rows = 0

    def note_answer(self, sequence: Sequence, token_ids: Seq[int]) -> None:
        """Add the answer of a sequence that ends; its drafters may have most of it."""
        uid = self._uid(sequence)
        if (drafting := self._by_uid.get(uid)) is not None:
            running, *_ = drafting.drafters
            running.append(token_ids[drafting.num_tokens - sequence.num_prompt_tokens :])
            self._forget(uid)
        elif can_draft(sequence.request):
            self._others.add(list(token_ids))

    @property
    def num_accepted(self) -> int:
        """Right drafts so far."""
        return self._accepted.total()

    @property
    def figures(self) -> SpeculationFigures:
        """The report's `speculation` object."""
        return {
            "proposed": self._proposed.total(),
            "accepted": self._accepted.total(),
            "by_source": dict(self._accepted),
            "tokens_per_step": self._num_tokens / self._num_steps if self._num_steps else 1.0,
            "saved_s": self._saved_s,
            "indexed_tokens": self._max_indexed,
        }

    def _may_pay(self, num_running: int) -> bool:
        """Return whether to look for drafts in this step."""
        if num_running > self._max_running or not num_running:
            return False
        if self._adapts and not self._costs.is_known:
            return False
        self._num_skipped += 1
        return self._num_skipped > self._num_to_skip

    def _note_choice(self, pays: bool) -> None:
        """Wait longer until the next attempt after several without drafts, up to a limit."""
        self._num_skipped = 0
        if self._adapts:
            self._num_vain = 0 if pays else self._num_vain + 1

    @property
    def _num_to_skip(self) -> int:
        """Steps between two attempts."""
        return (1 << min(self._num_vain // VAIN_ATTEMPTS, MOST_DOUBLINGS)) - 1

    def _chance(self, drafting: _Drafting) -> float:
        if drafting.proposal is None:
            return 0.0
        _, source, num_matched, _ = drafting.proposal
        return self._chances.chance(source, num_matched, drafting.rates)

    def _note_chance(self, drafting: _Drafting, num_tried: int, num_right: int) -> None:
        """Count proposed tokens that the answer reached, up to the first wrong one."""
        assert drafting.proposal is not None, "it has proposed them"
        _, source, num_matched, _ = drafting.proposal
        self._chances.note(source, num_matched, drafting.rates, num_tried, num_right)

    def _proposed_for(self, uid: int, sequence: Sequence) -> _Drafting:
        """Return the drafters of a sequence, with the proposal that is expected to save most."""
        drafting = self._by_uid.get(uid)
        if drafting is None:
            drafting = self._by_uid[uid] = self._begun(sequence)
        end = sequence.num_tokens
        new = sequence.token_ids(drafting.num_tokens, end)
        if drafting.proposal is not None:  # not computed as drafts: what became of it is for free
            tokens = drafting.proposal.tokens[: len(new)]
            is_right = [draft == token for draft, token in zip(tokens, new, strict=False)]
            num_right = is_right.index(False) if False in is_right else len(tokens)
            self._note_chance(drafting, min(num_right + 1, len(tokens)), num_right)
        drafting.num_tokens = end
        if drafting.num_indexed:
            drafting.num_indexed += len(new)
            self._num_indexed += len(new)
        most = min(self._most, sequence.request.params.max_tokens - sequence.num_output_tokens - 1)
        drafting.proposal, best = None, 0.0
        for drafter in drafting.drafters:
            drafter.append(new)
            proposal = drafter.propose(most) if most > 0 else None
            if proposal is not None and drafting.grammar not in (None, drafter):
                proposal = drafting.grammar.fitted(proposal, most)
            if proposal is None:
                continue
            _, source, num_matched, _ = proposal
            chance = self._chances.chance(source, num_matched, drafting.rates)
            saved = sum(chance**i for i in range(1, len(proposal.tokens) + 1))
            if saved > best:
                drafting.proposal, best = proposal, saved
        self._max_indexed = max(self._max_indexed, self._num_indexed + self._others.num_tokens)
        return drafting

    def _begun(self, sequence: Sequence) -> _Drafting:
        """Return the drafters of a sequence, which have its prompt."""
        request = sequence.request
        prompt = request.prompt_token_ids[-PROMPT_TOKENS:]
        drafters: list[Drafter] = [RunningAnswer(self._others)]
        if self._mtp is not None:
            drafters.append(MtpDrafter(self._mtp, self._uid(sequence)))
        if request.earlier_token_ids:
            drafters.append(EarlierAnswer(request.earlier_token_ids))
        num_indexed = len(prompt) + len(request.earlier_token_ids)
        if self._num_indexed + num_indexed <= OWN_TOKENS:
            drafters.append(PromptLookup(prompt))
        else:
            num_indexed = 0
        self._num_indexed += num_indexed
        grammar = None
        if request.params.structure is not None:
            sample = int(self._scheduler.table.sample[sequence.row_index])
            matcher = partial(self._matcher_of, request.index, sample)
            drafters.append(grammar := GrammarDrafter(matcher, self._choices))
        if len(self._groups) > MAX_GROUPS:
            self._groups.clear()
        group = self._groups[int(sequence.group)]
        return _Drafting(
            drafters, (group, Rate()), num_indexed, sequence.num_prompt_tokens, grammar
        )

    def _forget(self, uid: int) -> None:
        """Drop the drafters of a sequence."""
        self._num_indexed -= self._by_uid.pop(uid).num_indexed

    def _uid(self, sequence: Sequence) -> int:
        return int(self._scheduler.table.uid[sequence.row_index])
