"""Grammars of structured answers: compilation, cache, and trial compilation in a child process.

Some structures take hours or all memory to compile, and only the end of its process stops a
compilation. Each structure is therefore compiled first in a child process with limits of processor
time and memory: `python -m` with the name of this module runs `main`, which reads one structure a
line from standard input.
"""

import json
import math
import resource
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.environment.child_process import end_child, start_child
from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.values.errors import EngineError, RowError
from pagedrun.paged.values.structure import Structure

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

TokenMask = NDArray[np.int32]
"""[ceil(vocab_size / 32)] int32: bit i of word w allows token 32 w + i."""

# White space between the parts of JSON: none, a space, or one newline with its indentation. Without
# a limit, some models write nothing else. A schema's own `x-guidance` may override it.
_WHITESPACE = {"whitespace_pattern": r" |\n[ \t]{0,32}"}
# Limits of a grammar's cost. They count work and not time, so that the same rows are refused on
# every machine. The first bounds memory: a state takes about 2 kB. The second, about a second of
# work in one step, is out of reach of grammars within the first.
_LIMITS = {"max_lexer_states": 50_000, "step_lexer_fuel": 20_000_000, "verbose_errors": False}


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """Grammar at its start, never advanced; `first_mask` allows the first token.

    Copies of `start` share their cache, which makes them fast, and its limits: one may fail for the
    work of others. `fresh` returns a copy that shares nothing.
    """

    start: "LLMatcher"
    first_mask: TokenMask
    fresh: "Callable[[], LLMatcher]"


class Words(Protocol):
    """Part of a tokenizer needed by grammars."""

    @property
    def eos_token_id(self) -> int | None:
        """Token that ends a text, None without one."""

    def to_json(self) -> str:
        """Return the tokenizer as tokenizer.json has it."""


class GrammarCompiler:
    """Compiler of structures for one tokenizer, whose vocabulary is read on first use.

    `vocab_size` is the model's, which may be larger than the tokenizer's: further ids are never
    allowed. `eos_token_ids` end an answer. Thread-safe.
    """

    def __init__(self, tokenizer: Words, vocab_size: int, eos_token_ids: Seq[int]) -> None:
        self.vocab_size = vocab_size
        self.tokenizer = tokenizer
        self.eos_token_ids = list(eos_token_ids)
        self._words: LLTokenizer | None = None
        self._lock = threading.Lock()

    @property
    def mask_width(self) -> int:
        """Words of a mask."""
        return -(-self.vocab_size // 32)

    def compile(self, structure: Structure) -> CompiledGrammar:
        """Return a structure's grammar.

        Raises `RowError`, `param` the field: `missing_library` without llguidance,
        `unsupported_tokenizer`, and `invalid_grammar` for a structure that is invalid or exceeds
        the limits.
        """
        llguidance, words = self.begin(structure.field)
        try:
            grammar = _source(llguidance, structure)
        except (ValueError, RecursionError) as error:
            raise refused(structure.field, str(error)) from error
        limits = llguidance.LLParserLimits(**_LIMITS)
        fresh = partial(llguidance.LLMatcher, words, grammar, log_level=0, limits=limits)
        start = fresh()
        if start.is_error():
            raise refused(structure.field, _why_not(start))
        for _ in range(2):  # a grammar exhausted by its first use is too large
            first = start.deep_copy()
            mask = compute_mask(first, self.mask_width)
            if not mask.any():
                raise refused(structure.field, _why_not(first))
        return CompiledGrammar(start, mask, fresh)

    def begin(self, field: str) -> "tuple[Any, LLTokenizer]":
        """Import the library, and read the tokenizer's vocabulary once; return both.

        field: the field that needs them. Raises `RowError` as `compile` does for lack of either.
        """
        llguidance = _imported(field)
        with self._lock:
            if self._words is None:
                eos = self.eos_token_ids or self.tokenizer.eos_token_id
                try:
                    self._words = llguidance.LLTokenizer(
                        self.tokenizer.to_json(), n_vocab=self.vocab_size, eos_token=eos
                    )
                except ValueError as error:
                    raise RowError(
                        "unsupported_tokenizer",
                        f"{field} needs a tokenizer that gives the bytes of its tokens: {error}",
                        param=field,
                    ) from error
            return llguidance, self._words


def compute_mask(matcher: "LLMatcher", width: int) -> TokenMask:
    """Return the mask of the next token, [width]; all zero, and the matcher in error, if
    it fails.
    """
    mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[:width]  # it may have one more
    return np.zeros_like(mask) if matcher.is_error() else mask


def _why_not(start: "LLMatcher") -> str:
    """Return the error of a matcher that allows no first token."""
    reason = start.get_error()
    return "no text satisfies it" if not reason or reason.startswith("NoExtension") else reason


def _source(llguidance: Any, structure: Structure) -> str:
    """Return a structure in llguidance's own format."""
    if structure.field in ("json_schema", "json_object"):
        source = llguidance.LLMatcher.grammar_from_json_schema(structure.text, defaults=_WHITESPACE)
    else:
        source = llguidance.grammar_from(structure.field, structure.text)
    return str(source)


def _imported(field: str) -> Any:
    try:
        import llguidance  # imported here: few runs need it
    except ImportError as error:
        raise RowError(
            "missing_library",
            f"{field} needs the library llguidance: pip install 'llguidance>=1.5'",
            param=field,
        ) from error
    return llguidance


def refused(field: str, reason: str) -> RowError:
    """Return the error of a row with an invalid structure."""
    reason = reason.replace("<non-verbose/>", "").strip()
    if "coerce_one_of" in reason:
        reason = (
            "the alternatives of oneOf must exclude each other, which cannot be proved "
            "here; use anyOf"
        )
    elif reason.startswith("Unimplemented keys"):
        reason += (
            '; leave them out, or ignore them with "x-guidance": {"lenient": true} in the schema'
        )
    return RowError("invalid_grammar", f"{field} cannot be compiled: {reason}", param=field)


MAX_KEPT = 256

MAX_SECONDS = 10  # of processor time, for one structure


class Grammars:
    """Compiles in threads, and caches the `max_kept` most recently used grammars.

    A compilation of more than `max_seconds` of processor time is refused, see `CompileTrial`.
    Thread-safe.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        max_kept: int = MAX_KEPT,
        max_seconds: int = MAX_SECONDS,
    ) -> None:
        self.compiler = compiler
        self._max_kept = max_kept
        self._max_seconds = max_seconds
        self._kept: OrderedDict[Structure, Future[CompiledGrammar]] = OrderedDict()
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    @classmethod
    def of(cls, tokenizer: Words, vocab_size: int, eos_token_ids: Seq[int]) -> "Grammars":
        """Return the grammars of a model, none of them compiled; see `GrammarCompiler`."""
        return cls(GrammarCompiler(tokenizer, vocab_size, eos_token_ids))

    def compiled(self, structure: Structure) -> Future[CompiledGrammar]:
        """Return the future grammar of a structure, and start its compilation if needed.

        Its result raises `RowError`, see `GrammarCompiler.compile`.
        """
        with self._lock:
            grammar = self._kept.pop(structure, None)
            if grammar is None:
                self._threads = self._threads or ThreadPoolExecutor(cpu_quota(), "grammar")
                grammar = self._threads.submit(self._compiled, structure)
            self._kept[structure] = grammar
            if len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
            return grammar

    def _compiled(self, structure: Structure) -> CompiledGrammar:
        """Compile a structure after a trial in the process of this thread."""
        self.compiler.begin(structure.field)
        if not hasattr(self._of_thread, "trial"):
            self._of_thread.trial = CompileTrial(self.compiler, self._max_seconds)
        self._of_thread.trial.check(structure)
        return self.compiler.compile(structure)

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Return the errors of invalid structures, after compiling all."""
        grammars = {each: self.compiled(each) for each in dict.fromkeys(structures)}
        errors = ((each, grammar.exception()) for each, grammar in grammars.items())
        return {each: _as_row_error(error) for each, error in errors if error is not None}


def _as_row_error(error: BaseException) -> RowError:
    if not isinstance(error, RowError):
        raise error
    return error


MAX_BYTES = 8 << 30  # of address space
READY = "ready"


class CompileTrial:
    """Child process that compiles structures, started on demand; for one thread."""

    def __init__(self, compiler: GrammarCompiler, max_seconds: int = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._compiler = compiler
        self._process: subprocess.Popen[str] | None = None

    def check(self, structure: Structure) -> None:
        """Raise `RowError` if the structure cannot be compiled within the limits."""
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
        process = start_child([sys.executable, "-m", "pagedrun.paged.text.grammar"])
        weakref.finalize(self, end_child, process)
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
    """Return the answer to one line, None if the process ended."""
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


@dataclass(frozen=True, slots=True)
class TokenizerJson:
    """Tokenizer received as JSON."""

    text: str
    eos_token_id: int | None

    def to_json(self) -> str:
        """Return the tokenizer as tokenizer.json has it."""
        return self.text


def main() -> None:
    """Answer every line with a list: empty, or code and message of an error."""
    about = json.loads(sys.stdin.readline())
    text, eos_token_id, vocab_size, eos_token_ids, max_seconds = about
    compiler = GrammarCompiler(TokenizerJson(text, eos_token_id), vocab_size, eos_token_ids)
    compiler.begin("")
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MAX_BYTES)
    _answer([READY])
    for line in sys.stdin:
        last = math.ceil(time.process_time()) + max_seconds
        _limit(resource.RLIMIT_CPU, last)
        try:
            compiler.compile(Structure(*json.loads(line)))
        except RowError as error:
            _answer([error.code, error.marked])
        else:
            _answer([])


def _limit(what: int, most: int) -> None:
    """Limit what this process takes; a hard limit, as a batch system sets it, cannot be raised."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _answer(words: list[str]) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
