"""RowDigests: what each line of an output answers, beside the output, for later runs to find."""

import errno
import os
import stat
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, cast

from pagedrun.paged.files.atomic import PRIVATE_MODE
from pagedrun.paged.job.earlier.questions import DIGEST_BYTES, Questions
from pagedrun.paged.job.progress.listener import JobListener
from pagedrun.paged.values.request import Completion

RECORD_BYTES = 2 * DIGEST_BYTES
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def line_digest(line: bytes) -> bytes:
    """Return the digest by which a line of an output is known, its newline included."""
    return blake2b(line, digest_size=DIGEST_BYTES).digest()


def read_digests(path: Path) -> dict[bytes, bytes]:
    """Return the question of each line, by the digests of both. Raises `OSError`."""
    data = path.read_bytes()
    ends = range(RECORD_BYTES, len(data) + 1, RECORD_BYTES)
    records = (data[end - RECORD_BYTES : end] for end in ends)
    return {record[:DIGEST_BYTES]: record[DIGEST_BYTES:] for record in records}


class RowDigests:
    """Appends a record for each line: its digest, then that of its question.

    Rows without a record are computed anew by later runs, so a failure to write costs no more than
    that, and a warning.
    """

    def __init__(self, path: Path | None, questions: Questions, listener: JobListener) -> None:
        """Nothing is written where `path` is None."""
        self._path = path
        self._questions = questions
        self._listener = listener
        self._file: BinaryIO | None = None

    def begin(self, *, keep: bool) -> None:
        """Open the file; `keep` the whole records that an earlier run of the same job has left."""
        if self._path is None:
            return
        try:
            descriptor = os.open(self._path, _FLAGS, PRIVATE_MODE)
            self._file = cast(BinaryIO, os.fdopen(descriptor, "ab", buffering=0))
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            size = status.st_size - status.st_size % RECORD_BYTES
            os.ftruncate(descriptor, size if keep else 0)
        except OSError as error:
            self._give_up(error)

    def note(self, line: bytes, completion: Completion) -> None:
        """Add what a line answers, unless it is an error."""
        if self._file is None or completion.error is not None:
            return
        question = self._questions.digest(completion.request, completion.num_read_once_tokens)
        try:
            if self._file.write(line_digest(line) + question) != RECORD_BYTES:
                raise OSError(errno.ENOSPC, "no room")
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write no more."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _give_up(self, error: OSError) -> None:
        self._listener.on_warning(
            f"{self._path} cannot be written ({error.strerror}): a later run with --from "
            "will recompute these rows"
        )
        self.close()
