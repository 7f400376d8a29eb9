"""GrammarCompiler: from what the user wrote to what says which tokens may come next."""

import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
# every machine. The first bounds memory: a state takes about 2 kB. The second, about a second of
# work in one step, is out of reach of what keeps to the first.
_LIMITS = {"max_lexer_states": 50_000, "step_lexer_fuel": 20_000_000, "verbose_errors": False}


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar at its beginning, never moved from there; `first_mask` is of the first token.

    Copies of `start` share what they find out about the grammar, which is what makes them quick,
    and the limits of it: one may be refused for what others have used up. `fresh` makes one that
    shares nothing.
    """

    start: "LLMatcher"
    first_mask: TokenMask
    fresh: "Callable[[], LLMatcher]"


class Words(Protocol):
    """The part of a tokenizer that grammars need."""

    @property
    def eos_token_id(self) -> int | None:
        """What ends a text, None if nothing does."""

    def to_json(self) -> str:
        """Return how text is cut, as tokenizer.json has it."""


class GrammarCompiler:
    """Compiles structures for one tokenizer, whose words are read when the first one is compiled.

    `vocab_size` is the model's, which may be larger than the tokenizer's: ids past its words are
    never allowed. `eos_token_ids` end an answer. Threads may compile at once.
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
        `unsupported_tokenizer`, and `invalid_grammar` for what cannot be compiled or is larger
        than the limits.
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
        for _ in range(2):  # one that the first use wears out is too large
            first = start.deep_copy()
            mask = compute_mask(first, self.mask_width)
            if not mask.any():
                raise refused(structure.field, _why_not(first))
        return CompiledGrammar(start, mask, fresh)

    def begin(self, field: str) -> "tuple[Any, LLTokenizer]":
        """Import the library, and read the tokenizer's words if nobody has; return both.

        field: what asks for it. Raises `RowError` as `compile` does for lack of either.
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
    """Return what may come next, [width]; all zero, and the matcher in error, if it cannot tell."""
    mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[:width]  # it may have one more
    return np.zeros_like(mask) if matcher.is_error() else mask


def _why_not(start: "LLMatcher") -> str:
    """Return why a matcher at its beginning allows no token."""
    reason = start.get_error()
    return "no text satisfies it" if not reason or reason.startswith("NoExtension") else reason


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
            f"{field} needs the library llguidance: pip install 'llguidance>=1.5'",
            param=field,
        ) from error
    return llguidance


def refused(field: str, reason: str) -> RowError:
    """Return the error of a row whose structure cannot be had."""
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
