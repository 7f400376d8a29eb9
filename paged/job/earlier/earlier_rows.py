"""EarlierRows: the output of an earlier run, for a new one to take answers from."""

import os
from dataclasses import dataclass
from pathlib import Path

from pagedrun.paged.job.config import DIGESTS_SUFFIX
from pagedrun.paged.job.earlier.questions import Questions
from pagedrun.paged.job.earlier.row_digests import line_digest, read_digests
from pagedrun.paged.job.earlier.saved_answer import SavedAnswer
from pagedrun.paged.job.output.saved_row import SavedRow
from pagedrun.paged.job.progress.listener import JobListener
from pagedrun.paged.values.errors import EngineError, UsageError, option
from pagedrun.paged.values.request import Completion, FinishReason, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.paged.values.vote import Ballot


@dataclass(frozen=True, slots=True)
class EarlierRow:
    """A row that asked the same; implements `EarlierAnswer`."""

    rows: "EarlierRows"
    question: bytes
    num_read_once_tokens: int
    is_whole: bool
    token_ids: tuple[int, ...]

    def completion(self, request: Request) -> Completion:
        """Return what answers `request`: the answer is read again, as a window has many.

        Raises `EngineError` if the output has changed since the row was found.
        """
        saved = self.rows.read(self.question)
        if saved is None or not is_whole(saved, request):
            raise EngineError(
                f"{self.rows.path} was changed while its rows were copied; run it again with an "
                f"output that is not being written, or without {option('from')}"
            )
        vote = request.params.vote
        texts = (output.text for output in saved.outputs)
        return Completion(
            request,
            saved.outputs,
            saved.num_cached_tokens,
            vote=None if vote is None else Ballot.decided(vote, request.params.n, texts),
            prompt_logprobs=saved.prompt_logprobs,
            scores=saved.scores,
            num_read_once_tokens=self.num_read_once_tokens,
            is_copied=True,
        )


class EarlierRows:
    """The rows of an output by their questions; implements `EarlierAnswers`.

    `num_changed` are the lines that are not as a run wrote them. Answers are read when they are
    asked for; any thread may ask.
    """

    def __init__(self, path: Path, questions: Questions, vocab_size: int) -> None:
        """Read which row is where; raises `UsageError` if output or digests cannot be read."""
        self.path = path
        self.num_rows = 0
        self.num_changed = 0
        self._questions = questions
        self._vocab_size = vocab_size
        self._places: dict[bytes, tuple[int, int]] = {}  # offset and length of its line
        digests = _digests(path)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            with open(path, "rb") as file:
                offset = 0
                for line in file:
                    self._take(line, offset, digests.get(line_digest(line)))
                    offset += len(line)
        except OSError as error:
            raise UsageError(
                f"{option('from')} {path} cannot be read ({error.strerror}); name the output of a "
                "run of pagedrun generate"
            ) from error

    def warn_of_changes(self, listener: JobListener) -> None:
        """Tell how many lines cannot be used, if some cannot."""
        if self.num_changed:
            listener.on_warning(
                f"{self.num_changed:,} of {self.num_rows:,} lines of {self.path} have changed "
                "since its run; their rows are computed"
            )

    def find(self, request: Request, num_read_once_tokens: int) -> EarlierRow | None:
        """Return the row that asked the same, if its answer is of use."""
        question = self._questions.digest(request, num_read_once_tokens)
        saved = self.read(question)
        if saved is None or saved.largest_id() >= self._vocab_size:
            return None
        if is_whole(saved, request):
            return EarlierRow(self, question, num_read_once_tokens, True, ())
        if not _can_go_on(saved, request.params):
            return None
        begun = saved.outputs[0].token_ids
        return EarlierRow(self, question, num_read_once_tokens, False, begun)

    def read(self, question: bytes) -> SavedAnswer | None:
        """Return the answer to a question, by its digest."""
        place = self._places.get(question)
        if place is None:
            return None
        offset, num_bytes = place
        return SavedAnswer.parse(os.pread(self._descriptor, num_bytes, offset))

    def close(self) -> None:
        """Read no more."""
        os.close(self._descriptor)

    def _take(self, line: bytes, offset: int, question: bytes | None) -> None:
        if not line.endswith(b"\n"):
            return  # of a run that goes on, or was killed
        self.num_rows += 1
        if question is not None:
            self._places.setdefault(question, (offset, len(line)))
            return
        row = SavedRow.parse(line)
        self.num_changed += row is None or not row.has_failed


def is_whole(saved: SavedAnswer, request: Request) -> bool:
    """Return whether a new run would answer a request of the same question just so."""
    params = request.params
    if (saved.prompt_logprobs is None) != (params.prompt_logprobs is None):
        return False
    if request.continuations:
        return not saved.outputs and len(saved.scores) == params.n
    if saved.scores or len(saved.outputs) != _num_outputs(saved, params):
        return False
    return all(
        output.index == index
        and (output.logprobs is None) == (params.logprobs is None)
        and (params.has_beams or _ends_at(output.finish_reason, len(output.token_ids), params))
        for index, output in enumerate(saved.outputs)
    )


def _num_outputs(saved: SavedAnswer, params: SamplingParams) -> int:
    if params.vote is None:
        return params.n
    texts = (output.text for output in saved.outputs)
    return Ballot.decided(params.vote, params.n, texts).drawn


def _ends_at(reason: FinishReason, num_tokens: int, params: SamplingParams) -> bool:
    """Return whether an answer ends there whatever came before: cut at the limit, or before it."""
    if reason is FinishReason.LENGTH:
        return num_tokens == params.max_tokens
    return reason is FinishReason.STOP and num_tokens <= params.max_tokens


def _can_go_on(saved: SavedAnswer, params: SamplingParams) -> bool:
    """Return whether an answer was cut by a limit that is higher now, and nothing but its tokens
    is needed to go on: those of one sample, without scores.

    The samples of a greedy request are the same.
    """
    if params.has_beams or params.vote is not None or not saved.outputs or saved.scores:
        return False
    if params.logprobs is not None or params.prompt_logprobs is not None:
        return False
    if params.structure is not None or params.thinking_budget is not None:
        return False
    first = saved.outputs[0]
    is_cut = first.finish_reason is FinishReason.LENGTH
    is_single = params.n == 1 or params.is_greedy
    return is_cut and is_single and 0 < len(first.token_ids) < params.max_tokens


def _digests(path: Path) -> dict[bytes, bytes]:
    beside = path.with_name(path.name + DIGESTS_SUFFIX)
    try:
        return read_digests(beside)
    except OSError as error:
        raise UsageError(
            f"{option('from')}: {beside} cannot be read ({error.strerror}); it is written "
            f"beside each output and identifies the rows of {path}; leave out "
            f"{option('from')} to compute all rows"
        ) from error
