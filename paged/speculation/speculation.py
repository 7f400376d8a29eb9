"""Speculation: which sequences of a run get drafts, how many, and what becomes of them."""

from dataclasses import dataclass, field

from pagedrun.paged.metrics.report_sections import SpeculationFigures
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.speculation.drafts import Drafter, PromptLookup
from pagedrun.paged.values.engine_config import AUTO, OFF
from pagedrun.paged.values.sampling_params import SamplingParams

PROMPT_LOOKUP = "prompt_lookup"
AUTO_TOKENS, AUTO_SEQUENCES = 4, 1


@dataclass(slots=True)
class _Drafted:
    """Drafter of a sequence, and the tokens that it has got."""

    drafter: Drafter
    num_tokens: int = 0


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
    tokens: int = 0
    steps: int = 0  # of sequences
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
        self.proposed += sum(map(len, known.values()))
        # All of them have as many: steps of one shape are replayed.
        return {
            each.row_index: _filled(known[each.row_index], min(self.most, _num_left(each)))
            for each in running
            if each.row_index in known
        }

    def note(self, num_accepted: int) -> None:
        """Count the accepted drafts of a sequence in a step."""
        self.accepted += num_accepted
        self.tokens += num_accepted

    @property
    def figures(self) -> SpeculationFigures:
        """The report's `speculation` object."""
        return {
            "proposed": self.proposed,
            "accepted": self.accepted,
            "by_source": {PROMPT_LOOKUP: self.accepted},
            "tokens_per_step": self.tokens / self.steps if self.steps else 1.0,
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
        return drafted.drafter.propose(min(self.most, left))

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
