"""Answers reused from the output of an earlier run (`--from`).

A digest of each row's request is kept beside the output. A row with the digest of an earlier one
gets its answer, and an answer that was cut by a lower `max_tokens` is continued. Of other rows the
earlier answer at the same index becomes a draft.
"""

import errno
import os
import re
import stat
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, cast

from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.files.atomic import PRIVATE_MODE, replace_file
from pagedrun.paged.job.config import DIGESTS_SUFFIX, MANIFEST_SUFFIX, JobConfig
from pagedrun.paged.job.output.line_digests import (
    DIGEST_BYTES,
    NO_LINES,
    NO_REQUEST,
    RECORD_BYTES,
    RecordedLines,
    line_digest,
    num_recorded_bytes,
    read_digests,
)
from pagedrun.paged.job.output.manifest import Manifest, read_manifest, with_prompt_time
from pagedrun.paged.job.output.saved_rows import FinishedRows, SavedAnswer, SavedRow
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.job.resume import differing_parameters
from pagedrun.paged.text.channels import has_channels
from pagedrun.paged.text.reasoning import AUTO, ReasoningTags
from pagedrun.paged.values.engine_config import OFF
from pagedrun.paged.values.errors import EngineError, UsageError, option
from pagedrun.paged.values.request import Completion, FinishReason, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.paged.values.vote import Ballot


@dataclass(frozen=True, slots=True)
class EarlierRow:
    """Row with an equal request in an earlier output; implements `EarlierAnswer`."""

    rows: "EarlierRows"
    question: bytes
    num_read_once_tokens: int
    is_whole: bool
    token_ids: tuple[int, ...]

    def completion(self, request: Request) -> Completion:
        """Return the completion of `request`, read again from the file since a window has many.

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


class RequestDigests:
    """Digests of a run's requests.

    Of the chat template only its reasoning markers are included: its other effects are in the
    prompts.
    """

    def __init__(self, chat_template: str | None) -> None:
        thoughts = ReasoningTags.of(AUTO, chat_template), has_channels(chat_template)
        self._thoughts = repr(thoughts).encode()

    def digest(self, request: Request, num_read_once_tokens: int) -> bytes:
        """Return a digest of everything that determines the bytes of an answer except the model.

        It includes the number of prompt partitions read together with other rows and, for a sampled
        request, its index, which keys the random stream; see `SamplingParams`. The length limit is
        not included except with beams: the answer itself shows it.
        """
        asked = (
            None if request.params.is_greedy else request.index,
            num_read_once_tokens // PARTITION_TOKENS,
            request.bad_words_ids,
            request.continuations,
        )
        digest = blake2b(digest_size=DIGEST_BYTES)
        for part in (
            array("i", request.prompt_token_ids).tobytes(),
            _settings(request.params),
            _bytes(asked),
            self._thoughts,
        ):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()


_INDEX = re.compile(rb'\{"index": ?([0-9]{1,9})\b')  # the first key of a row


class EarlierRows:
    """Rows of an output by request digest; implements `EarlierAnswers`.

    `num_changed` counts lines modified since the run wrote them. Answers are read on demand;
    thread-safe.
    """

    def __init__(
        self, path: Path, questions: RequestDigests, vocab_size: int, *, drafts: bool = True
    ) -> None:
        """Index the output; raises `UsageError` if output or digests cannot be read.

        drafts: rows are asked for by their index, too.
        """
        self.path = path
        self.num_rows = 0
        self.num_changed = 0
        self._questions = questions
        self._vocab_size = vocab_size
        self._places: dict[bytes, tuple[int, int]] = {}  # offset and length of its line
        self._by_index: dict[int, tuple[int, int]] | None = {} if drafts else None
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
        """Warn of lines that cannot be used, if any."""
        if self.num_changed:
            listener.on_warning(
                f"{self.num_changed:,} of {self.num_rows:,} lines of {self.path} have changed "
                "since its run; their rows are computed"
            )

    def find(self, request: Request, num_read_once_tokens: int) -> EarlierRow | None:
        """Return the row with an equal request, None without a usable answer."""
        question = self._questions.digest(request, num_read_once_tokens)
        saved = self.read(question)
        if saved is None or saved.largest_id() >= self._vocab_size:
            return None
        if is_whole(saved, request):
            return EarlierRow(self, question, num_read_once_tokens, True, ())
        if not _can_continue(saved, request.params):
            return None
        begun = saved.outputs[0].token_ids
        return EarlierRow(self, question, num_read_once_tokens, False, begun)

    def read(self, question: bytes) -> SavedAnswer | None:
        """Return the answer to a request, by its digest."""
        return self._read(self._places.get(question))

    def tokens_at(self, index: int) -> tuple[int, ...]:
        """Return the tokens of the first answer of a row, none without a valid one."""
        saved = None if self._by_index is None else self._read(self._by_index.get(index))
        if saved is None or not saved.outputs or saved.largest_id() >= self._vocab_size:
            return ()
        return saved.outputs[0].token_ids

    def close(self) -> None:
        """Close the output."""
        os.close(self._descriptor)

    def _read(self, place: tuple[int, int] | None) -> SavedAnswer | None:
        if place is None:
            return None
        offset, num_bytes = place
        return SavedAnswer.parse(os.pread(self._descriptor, num_bytes, offset))

    def _take(self, line: bytes, offset: int, question: bytes | None) -> None:
        if not line.endswith(b"\n"):
            return  # of a killed or running job
        self.num_rows += 1
        found = None if self._by_index is None else _INDEX.match(line)  # without parsing the line
        if found is not None and self._by_index is not None:
            self._by_index.setdefault(int(found[1]), (offset, len(line)))
        if question is not None:
            self._places.setdefault(question, (offset, len(line)))
            return
        row = SavedRow.parse(line)
        self.num_changed += row is None or not row.has_failed


def is_whole(saved: SavedAnswer, request: Request) -> bool:
    """Return true if a new run would give this same answer to a request with an equal digest."""
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
    """Return true if an answer ends there under these limits: cut at the limit, or stopped before
    it.
    """
    if reason is FinishReason.LENGTH:
        return num_tokens == params.max_tokens
    return reason is FinishReason.STOP and num_tokens <= params.max_tokens


def _can_continue(saved: SavedAnswer, params: SamplingParams) -> bool:
    """Return true if an answer was cut by a lower limit and can be continued from its tokens alone.

    That needs one sample without scores; the samples of a greedy request are equal.
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


def with_earlier_prompt_time(config: JobConfig) -> JobConfig:
    """Return the job with the prompt time of the run of `from_output`, if any."""
    old = config.from_output
    return with_prompt_time(
        config, None if old is None else old.with_name(old.name + MANIFEST_SUFFIX)
    )


def open_earlier(
    config: JobConfig,
    manifest: Manifest,
    questions: RequestDigests,
    vocab_size: int,
    listener: JobListener,
) -> EarlierRows | None:
    """Return the reusable rows of `from_output`, None without it.

    Raises `UsageError` if they cannot be used.
    """
    if config.from_output is None:
        return None
    check_same_computation(manifest, config.from_output)
    drafts = config.engine.speculate != OFF
    rows = EarlierRows(config.from_output, questions, vocab_size, drafts=drafts)
    rows.warn_of_changes(listener)
    return rows


# Parameters that change bytes and are neither in a request digest nor under `arithmetic`.
_DECIDING = ("dtype", "quantization", "kv_cache_dtype", "reproducible")


def check_same_computation(new: Manifest, output: Path) -> None:
    """Raise `UsageError` unless the run of `output` computes rows as `new` does."""
    try:
        old = read_manifest(output.with_name(output.name + MANIFEST_SUFFIX))
    except UsageError as error:
        raise _refused(f"{error.marked}, so the settings of {output} are unknown") from error
    if old.version != new.version:
        raise _refused(
            f"{output} was computed by pagedrun {old.version}, and this is {new.version}"
        )
    models = [(each.model.config_json_sha256, each.model.files_sha256) for each in (old, new)]
    if models[0] != models[1]:
        raise _refused(
            f"{output} was computed with another model, other weights or another tokenizer "
            f"({old.model.path}, now {new.model.path})"
        )
    differences = differing_parameters(old, new, _DECIDING)
    for name in sorted({*old.arithmetic, *new.arithmetic}):
        before, now = old.arithmetic.get(name), new.arithmetic.get(name)
        if before != now:
            differences.append(f"{name.replace('_', ' ')} ({before}, now {now})")
    if differences:
        raise _refused(f"{output} was computed with another {', another '.join(differences)}")


def _refused(why: str) -> UsageError:
    return UsageError(f"{option('from')}: {why}; leave out {option('from')} to compute all rows")


_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class RowDigests:
    """Appends a record for each line: its digest and that of its request.

    Rows without a record are recomputed by later runs, so a failed write costs a warning and no
    answer. Errors and requests for vectors, scores and labels have no digest of their request.
    `lines` is the sum of all lines of the output.
    """

    def __init__(self, path: Path | None, questions: RequestDigests, listener: JobListener) -> None:
        """path: None to write nothing."""
        self._path = path
        self._questions = questions
        self._listener = listener
        self._file: BinaryIO | None = None
        self.lines = NO_LINES

    def begin(self, finished: FinishedRows, read: Callable[[int, int], bytes]) -> None:
        """Open the file, with records of the `finished` lines and of no other.

        read: returns the bytes of a line by its offset and size.
        """
        self.lines = finished.line_sum
        if self._path is None:
            return
        try:
            if finished.recorded is not None and finished.recorded.num_missing:
                self._forget_missing(self._path, finished.recorded)
            descriptor = os.open(self._path, _FLAGS, PRIVATE_MODE)
            self._file = cast(BinaryIO, os.fdopen(descriptor, "ab", buffering=0))
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            data = b"" if finished.recorded is None else self._path.read_bytes()
            os.ftruncate(descriptor, num_recorded_bytes(data))
            for _, *span in finished.without_record:
                self._append(line_digest(read(*span)) + NO_REQUEST)
            os.fsync(descriptor)  # what was cut must not come back between new records
        except OSError as error:
            self._give_up(error)

    def note(self, line: bytes, completion: Completion | None) -> None:
        """Append the record of a line; completion: None for an invalid row."""
        if self._path is None:
            return
        digest, question = line_digest(line), NO_REQUEST
        self.lines = self.lines.plus(digest)
        if self._file is None:
            return
        if completion is not None and completion.error is None and completion.pooled is None:
            question = self._questions.digest(completion.request, completion.num_read_once_tokens)
        try:
            self._append(digest + question)
        except OSError as error:
            self._give_up(error)

    def _append(self, record: bytes) -> None:
        assert self._file is not None, "it is open"
        if self._file.write(record) != RECORD_BYTES:
            raise OSError(errno.ENOSPC, "no room")

    def _forget_missing(self, path: Path, recorded: RecordedLines) -> None:
        """Remove the records of lines that are no longer there, such as errors tried again.

        Beside lines that a killed run did not record, they would look like those of changed lines.
        """
        try:
            replace_file(path, [recorded.found_records(path)])
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def sync(self) -> None:
        """Wait until the records are on disk."""
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                self._give_up(error)

    def remove(self) -> None:
        """Close and remove the file: its lines are no longer there."""
        self.close()
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _give_up(self, error: OSError) -> None:
        self._listener.on_warning(
            f"{self._path} cannot be written ({error.strerror}): a later run with --from or "
            "--resume will recompute these rows"
        )
        self.close()


_OF_RANDOM_CHOICES = frozenset({"seed", "top_p", "top_k", "min_p"})


@lru_cache(maxsize=64)  # most rows have equal parameters
def _settings(params: SamplingParams) -> bytes:
    ignored = set() if params.has_beams else {"max_tokens"}
    if params.is_greedy:
        ignored |= _OF_RANDOM_CHOICES
    names = [each.name for each in fields(params) if each.name not in ignored]
    return _bytes([(name, getattr(params, name)) for name in names])


def _bytes(value: object) -> bytes:
    return repr(value).encode("utf-8", "backslashreplace")
