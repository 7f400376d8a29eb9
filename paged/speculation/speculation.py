"""Speculation: which sequences of a run get drafts, how many, and what becomes of them."""

from dataclasses import dataclass, field

from pagedrun.paged.metrics.report_sections import SpeculationFigures
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.step_input import Drafted
from pagedrun.paged.speculation.drafts import Drafter, PromptLookup
from pagedrun.paged.values.engine_config import AUTO, OFF
from pagedrun.paged.values.sampling_params import SamplingParams

PROMPT_LOOKUP = "prompt_lookup"
AUTO_TOKENS, AUTO_SEQUENCES = 4, 1


@dataclass(slots=True)
class _Drafted:
    """Drafter of a sequence, the tokens that it has got, and those that it proposed last."""

    drafter: Drafter
    num_tokens: int = 0
    num_proposed: int = 0


@dataclass(slots=True)
class Speculation:
    """Drafts of the sequences of a run.

    most: drafts of a sequence in a step. max_running: no drafts beside more sequences, since a
    step of many rows is bound by arithmetic.
    """

    scheduler: Scheduler
    most: int
    max_running: int
    proposed: int = 0
    accepted: int = 0
    num_tokens: int = 0
    num_steps: int = 0  # of sequences
    _by_uid: dict[int, _Drafted | None] = field(default_factory=dict)

    @classmethod
    def of(cls, asked: str, scheduler: Scheduler) -> "Speculation | None":
        """Return the speculation that was asked for, None without any."""
        if asked == OFF:
            return None
        if asked == AUTO:
            return cls(scheduler, AUTO_TOKENS, AUTO_SEQUENCES)
        return cls(scheduler, int(asked), scheduler.limits.max_num_seqs)

    def drafts(self) -> dict[int, list[int]]:
        """Return tokens that may follow the newest one of each sequence, by row index."""
        running = self.scheduler.running
        if len(running) > self.max_running:
            return {}
        for uid in self._by_uid.keys() - set(map(self._uid, running)):
            del self._by_uid[uid]
        found = {each.row_index: self._proposed(each) for each in running}
        known = {row_index: tokens for row_index, tokens in found.items() if tokens is not None}
        if not any(known.values()):
            return {}
        # All of them have as many: steps of one shape are replayed.
        return {
            each.row_index: _filled(known[each.row_index], min(self.most, _num_left(each)))
            for each in running
            if each.row_index in known
        }

    def note_step(self, num_sequences: int) -> None:
        """Count a step that gave a token to so many sequences."""
        self.num_steps += num_sequences
        self.num_tokens += num_sequences

    def note(self, drafted: Drafted, num_accepted: int) -> None:
        """Count the drafts of a sequence in a step; the tokens that fill them up are none."""
        of_sequence = self._by_uid[drafted.uid]
        assert of_sequence is not None, "it got drafts"
        num_proposed = min(of_sequence.num_proposed, len(drafted.tokens))
        self.proposed += num_proposed
        self.accepted += min(num_accepted, num_proposed)
        self.num_tokens += num_accepted

    @property
    def figures(self) -> SpeculationFigures:
        """The report's `speculation` object."""
        return {
            "proposed": self.proposed,
            "accepted": self.accepted,
            "by_source": {PROMPT_LOOKUP: self.accepted},
            "tokens_per_step": self.num_tokens / self.num_steps if self.num_steps else 1.0,
        }

    def _proposed(self, sequence: Sequence) -> list[int] | None:
        """Return the drafts of a sequence, None if it gets none whatever its text is."""
        uid, left = self._uid(sequence), _num_left(sequence)
        if uid not in self._by_uid:
            can_draft = _draws_alone(sequence.request.params)
            self._by_uid[uid] = _Drafted(PromptLookup()) if can_draft else None
        drafted, end = self._by_uid[uid], sequence.num_tokens
        if drafted is None or not sequence.num_output_tokens or not left:
            return None
        drafted.drafter.append(sequence.token_ids(drafted.num_tokens, end))
        drafted.num_tokens = end
        proposed = drafted.drafter.propose(min(self.most, left))
        drafted.num_proposed = len(proposed)
        return proposed

    def _uid(self, sequence: Sequence) -> int:
        return int(self.scheduler.table.uid[sequence.row_index])


def _num_left(sequence: Sequence) -> int:
    """Return the number of tokens that may follow the next one."""
    return max(sequence.request.params.max_tokens - sequence.num_output_tokens - 1, 0)


def _filled(tokens: list[int], count: int) -> list[int]:
    """Return `count` tokens: the given ones, then any."""
    return tokens + [0] * (count - len(tokens))


# Rules for a draw that depend on the tokens before it, and figures for which the host waits.
_FOLLOWING = (
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words"),
    *("thinking_budget", "logprobs", "prompt_logprobs", "beam_width"),
)
_PLAIN = SamplingParams()


def _draws_alone(params: SamplingParams) -> bool:
    """Return whether the logits of a token are all that its draw depends on."""
    is_plain = all(getattr(params, name) == getattr(_PLAIN, name) for name in _FOLLOWING)
    return is_plain and params.structure is None
