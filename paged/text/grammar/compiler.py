"""GrammarCompiler: from what the user wrote to what says which tokens may come next."""

import threading
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.structure import Structure

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

TokenMask = NDArray[np.int32]
"""[ceil(vocab_size / 32)] int32: bit i of word w allows token 32 w + i."""

# Between the parts of JSON: nothing, a space, or one new line with its indentation. Without an end,
# some models write nothing else. A schema's own `x-guidance` may say otherwise.
_WHITESPACE = {"whitespace_pattern": r" |\n[ \t]{0,32}"}
# What a grammar may cost. These count work and not time, so that the same rows are refused on
# every machine. The first bounds memory: a state takes about 2 kB.
_LIMITS = {"max_lexer_states": 50_000, "verbose_errors": False}


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar at its beginning, never moved from there; `first_mask` is of the first token."""

    start: "LLMatcher"
    first_mask: TokenMask


class GrammarCompiler:
    """Compiles structures for one tokenizer, whose words are read when the first one is compiled.

    `vocab_size` is the model's, which may be larger than the tokenizer's: ids past its words are
    never allowed. `eos_token_ids` end an answer. Threads may compile at once.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Seq[int]) -> None:
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._eos_token_ids = list(eos_token_ids)
        self._words: LLTokenizer | None = None
        self._lock = threading.Lock()

    @property
    def mask_width(self) -> int:
        """Words of a mask."""
        return -(-self.vocab_size // 32)

    def compile(self, structure: Structure) -> CompiledGrammar:
        """Return a structure's grammar.

        Raises `RowError`, `param` the field: `missing_library` without llguidance,
        `unsupported_tokenizer`, and `invalid_grammar` for what cannot be compiled or is larger
        than the limits.
        """
        llguidance = _imported(structure.field)
        words = self._words_of(llguidance, structure.field)
        try:
            grammar = _source(llguidance, structure)
        except (ValueError, RecursionError) as error:
            raise _refused(structure.field, str(error)) from error
        limits = llguidance.LLParserLimits(**_LIMITS)
        start = llguidance.LLMatcher(words, grammar, log_level=0, limits=limits)
        if start.is_error():
            raise _refused(structure.field, start.get_error())
        first = start.deep_copy()
        mask = compute_mask(first, self.mask_width)
        if not mask.any():
            raise _refused(structure.field, first.get_error() or "no text satisfies it")
        return CompiledGrammar(start, mask)

    def _words_of(self, llguidance: Any, field: str) -> "LLTokenizer":
        with self._lock:
            if self._words is None:
                eos = self._eos_token_ids or self._tokenizer.eos_token_id
                try:
                    self._words = llguidance.LLTokenizer(
                        self._tokenizer.to_json(), n_vocab=self.vocab_size, eos_token=eos
                    )
                except ValueError as error:
                    raise RowError(
                        "unsupported_tokenizer",
                        f"{field} needs a tokenizer whose tokens are known bytes: {error}",
                        param=field,
                    ) from error
            return self._words


def compute_mask(matcher: "LLMatcher", width: int) -> TokenMask:
    """Return what may come next, [width]; all zero, and the matcher in error, if it cannot tell."""
    mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[:width]  # it may have one more
    return np.zeros_like(mask) if matcher.is_error() else mask


def _source(llguidance: Any, structure: Structure) -> str:
    """Return a structure in llguidance's own words."""
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
            f"{field} needs the library llguidance; install it with "
            "pip install 'pagedrun[structured]'",
            param=field,
        ) from error
    return llguidance


def _refused(field: str, reason: str) -> RowError:
    reason = reason.replace("<non-verbose/>", "").strip()
    return RowError("invalid_grammar", f"{field} cannot be compiled: {reason}", param=field)
