"""TrialProcess: compiles a structure first where it can do no harm.

Some structures take hours to compile, or all memory, and nothing can end a compilation but the end
of its process. So each is compiled in one that has little of both before it is compiled in ours.
"""

import json
import subprocess
import sys
import weakref
from collections.abc import Sequence as Seq
from contextlib import suppress

from pagedrun.paged.text.grammar.compiler import GrammarCompiler, refused
from pagedrun.paged.values.errors import EngineError, RowError
from pagedrun.paged.values.structure import Structure

MAX_SECONDS = 10  # of processor time, for one structure
MAX_BYTES = 8 << 30  # of address space
READY = "ready"


class TrialProcess:
    """A process that compiles what it is given, begun when there is something; for one thread."""

    def __init__(self, compiler: GrammarCompiler, max_seconds: int = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._compiler = compiler
        self._process: subprocess.Popen[str] | None = None

    def check(self, structure: Structure) -> None:
        """Raise `RowError` if the structure cannot be compiled, or not with that little."""
        if self._process is None:
            self._process = self._begin()
        answer = _ask(self._process, [structure.field, structure.text])
        if answer is None:
            self._process.wait()
            self._process = None
            raise refused(
                structure.field,
                f"it takes more than {self._max_seconds} s of processor time, or more than "
                f"{MAX_BYTES >> 30} GiB of memory",
            )
        if answer:
            code, message = answer
            raise RowError(code, message, param=structure.field)

    def _begin(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "pagedrun.paged.text.grammar.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            start_new_session=True,  # an interrupt is for us to handle
        )
        weakref.finalize(self, _end, process)
        compiler = self._compiler
        words = compiler.tokenizer
        about = [
            *(words.to_json(), words.eos_token_id),
            *(compiler.vocab_size, compiler.eos_token_ids, self._max_seconds),
        ]
        if _ask(process, about) != [READY]:
            raise EngineError("the process that compiles grammars on trial does not start")
        return process


def _ask(process: "subprocess.Popen[str]", question: Seq[object]) -> list[str] | None:
    """Return the answer to a question, None if the process ended over it."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        return None
    answer: list[str] | None = json.loads(line) if line else None
    return answer


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not written when it ended
                pipe.close()
    process.wait()
