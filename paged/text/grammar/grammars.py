"""Grammars: those compiled last, shared by the rows that ask for the same."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.text.grammar.compiler import CompiledGrammar, GrammarCompiler, Words
from pagedrun.paged.text.grammar.trial_process import MAX_SECONDS, TrialProcess
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.structure import Structure

MAX_KEPT = 256


class Grammars:
    """Compiles in threads, and keeps the `max_kept` grammars that were asked for last.

    What takes more than `max_seconds` of a processor is refused, see `TrialProcess`.
    Any thread may ask.
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
        """Return the grammar of a structure, which is compiled by now or will be soon.

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
        """Compile a structure that a process of this thread's own has survived."""
        self.compiler.begin(structure.field)
        if not hasattr(self._of_thread, "trial"):
            self._of_thread.trial = TrialProcess(self.compiler, self._max_seconds)
        self._of_thread.trial.check(structure)
        return self.compiler.compile(structure)

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Return those that no answer can have, and why; all are compiled to know."""
        grammars = {each: self.compiled(each) for each in dict.fromkeys(structures)}
        errors = ((each, grammar.exception()) for each, grammar in grammars.items())
        return {each: _as_row_error(error) for each, error in errors if error is not None}


def _as_row_error(error: BaseException) -> RowError:
    if not isinstance(error, RowError):
        raise error
    return error
