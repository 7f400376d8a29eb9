"""Texts of a task as token ids: with prompts and special tokens, cut, or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagedrun.paged.execution.pooling.pairs import (
    RERANK_PREFIX,
    RERANK_SUFFIX,
    Given,
    PairTemplate,
)
from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.models.sentence_folder import Lowering, PairForm
from pagedrun.paged.text.prompt import Overlong, require_unicode
from pagedrun.paged.text.prompt_encoder import EncodedPrompt, check_length
from pagedrun.paged.text.tokenizer import EncodedText, Tokenizer
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.pooling import PooledText
from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Longest text in tokens, number of token ids, and treatment of longer texts.

    in_chunks: they are cut into several texts, whatever `on_overlong` is.
    """

    max_length: int
    vocab_size: int
    on_overlong: Overlong = Overlong.ERROR
    in_chunks: bool = False


class PooledTextEncoder:
    """Encodes the texts of rows as requests; never raises for their contents.

    `has_types`: the model has a second token type, for the second text of a pair.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        spec: PooledModelSpec,
        limits: TextLimits,
    ) -> None:
        self._tokenizer = tokenizer
        self._spec = spec
        self._limits = limits
        self._known: dict[int, int] = {}  # one integer object for each id
        types = getattr(spec.config.network.embedding, "types", None)
        self._has_types = types is not None and types.shape[0] > 1 and spec.saved.with_types
        if spec.saved.lowering is Lowering.TOKENIZER:
            tokenizer.lower_texts()
        self._around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._template: PairTemplate | None = None
        if spec.saved.pairs is PairForm.QWEN3:
            before, after = tokenizer.encode_batch([RERANK_PREFIX, RERANK_SUFFIX], False)
            self._around = tuple(before), tuple(after)
        elif spec.saved.pairs is PairForm.TEMPLATE:
            self._template = PairTemplate(tokenizer, spec)
        around = max(tokenizer.num_special_tokens(of_pair=each) for each in (False, True))
        self._most = limits.max_length - sum(map(len, self._around))
        self._may_cut = limits.in_chunks or limits.on_overlong is not Overlong.ERROR
        self._cuts = self._may_cut and self._most > around and self._template is None
        self._num_skipped = 0 if spec.pooler.with_prompt else self._prompt_length()

    def _prompt_length(self) -> int:
        """Return the tokens of the prompt that poolings leave out, as sentence-transformers does:
        those of the prompt alone, without a special one at the end."""
        prompt = self._lowered(self._spec.prompt)
        if not prompt:
            return 0
        ids = self._tokenizer.encode_pairs([prompt], add_special_tokens=True)[0].ids
        return len(ids) - (ids[-1] in self._tokenizer.special_ids)

    def requests(
        self, indices: Sequence[int], rows: Sequence[Sequence[Given] | RowError]
    ) -> list[EncodedPrompt]:
        """Return the encoded rows; an error in place of texts is kept."""
        flat: list[tuple[int, int, Given]] = []  # row, part, text
        num_parts: dict[int, int] = {}
        results: list[EncodedPrompt | RowError | None] = [None] * len(rows)
        for number, row in enumerate(rows):
            if isinstance(row, RowError):
                results[number] = row
                continue
            short: list[Given] = []
            try:
                for each in row:
                    short.append(self._checked(each))
            except RowError as error:
                results[number] = _of_part(error, len(short), len(row))
                continue
            flat += [(number, part, each) for part, each in enumerate(short)]
            num_parts[number] = len(short)
        encoded = self._encoded([each for _, _, each in flat])
        texts: dict[int, list[PooledText]] = {}
        num_cut: dict[int, int] = {}
        for (number, part, _), pieces in zip(flat, encoded, strict=True):
            if isinstance(pieces, RowError):
                results[number] = results[number] or _of_part(pieces, part, num_parts[number])
                continue
            own = texts.setdefault(number, [])
            own += [piece._replace(part=part) for piece in pieces.texts]
            num_cut[number] = num_cut.get(number, 0) + pieces.num_cut
        return [
            self._request(index, results[number], texts.get(number, []), num_cut.get(number, 0))
            for number, index in enumerate(indices)
        ]

    def _request(
        self,
        index: int,
        result: EncodedPrompt | RowError | None,
        texts: list[PooledText],
        num_cut: int,
    ) -> EncodedPrompt:
        if isinstance(result, RowError):
            return EncodedPrompt(result)
        count = sum(len(each.token_ids) for each in texts)
        return EncodedPrompt(Request.pooling(index, tuple(texts)), count, num_cut)

    def _checked(self, given: Given) -> Given:
        """Return a text as it is encoded: with the prompt; `RowError` if it is far too long."""
        if isinstance(given, tuple) and not isinstance(given[0], str):
            return given
        texts = (given,) if isinstance(given, str) else given
        ready = []
        for each in texts:
            assert isinstance(each, str)
            require_unicode(each)
            most = self._limits.max_length
            check_length(each, "the text", most, self._tokenizer, param="text", cuts=self._may_cut)
            ready.append(each)
        if self._template is not None:
            query, document = map(self._lowered, ready)
            return self._template.render(query, document)
        first = self._lowered(self._spec.prompt + ready[0])
        return first if len(ready) == 1 else (first, self._lowered(ready[1]))

    def _lowered(self, text: str) -> str:
        return text.lower() if self._spec.saved.lowering is Lowering.TEXT else text

    @property
    def _adds_special(self) -> bool:
        """True if the tokenizer adds special tokens, which prompts of pairs have in their text."""
        return self._spec.saved.pairs is PairForm.TEXTS

    def _encoded(self, texts: list[Given]) -> "list[_Pieces | RowError]":
        """Return the tokens of each text, in one call of the tokenizer."""
        plain: list[str | tuple[str, str]] = []
        for each in texts:
            if isinstance(each, str) or (each and isinstance(each[0], str)):
                plain.append(each)
        special = self._adds_special
        found = iter(self._ids(plain, special))
        results: list[_Pieces | RowError] = []
        for each in texts:
            try:
                if isinstance(each, str) or isinstance(each[0], str):
                    results.append(self._pieces(each, next(found)))
                else:
                    results.append(self._given_ids(each))
            except RowError as error:
                results.append(error)
        return results

    def _ids(self, texts: list[str | tuple[str, str]], special: bool) -> list[EncodedText]:
        """Return the tokens of texts, in pieces of what fits if they may be cut.

        None of a text that the tokenizer fails on.
        """
        limits = self._limits
        is_left = limits.on_overlong is Overlong.TRUNCATE_LEFT and not limits.in_chunks
        try:
            return self._tokenizer.encode_pairs(
                texts,
                add_special_tokens=special,
                max_tokens=self._most if self._cuts else None,
                side="left" if is_left else "right",
            )
        except RowError:
            if len(texts) == 1:
                return [EncodedText([], 0, [])]
            return [self._ids([text], special)[0] for text in texts]

    def _pieces(self, text: "str | tuple[str, str]", encoded: EncodedText) -> "_Pieces":
        """Return the pieces of a text: one, or its chunks."""
        before, after = self._around
        ids, num_first, rest = encoded
        if not ids:
            raise RowError("empty_prompt", "the text has no tokens", param="text")
        self._require_known(ids, *rest)
        if not rest and len(ids) <= self._most:
            whole = self._text((*before, *ids, *after), num_first)
            return _Pieces((self._behind_prompt(whole),))
        if self._limits.in_chunks and isinstance(text, str) and self._cuts:
            first, *others = (self._text(each, len(each)) for each in (ids, *rest))
            return _Pieces((self._behind_prompt(first), *others))
        if self._template is not None and self._limits.on_overlong is not Overlong.ERROR:
            return self._cut_in_template(ids, self._template.ending)
        if self._limits.on_overlong is not Overlong.ERROR and not self._cuts:
            raise self._no_room()
        length = self._length(text, encoded)
        if self._limits.on_overlong is Overlong.ERROR:
            raise RowError(
                "prompt_too_long",
                f"the text has {length + len(before) + len(after)} tokens, but the limit is "
                f"{self._limits.max_length}; {option('on_overlong')} {self._side_of_folder} cuts "
                "it",
                param="text",
            )
        kept = self._text((*before, *ids, *after), num_first)
        return _Pieces((self._behind_prompt(kept),), length - len(ids))

    @property
    def _side_of_folder(self) -> Overlong:
        is_left = self._tokenizer.truncation_side == "left"
        return Overlong.TRUNCATE_LEFT if is_left else Overlong.TRUNCATE_RIGHT

    def _behind_prompt(self, text: PooledText) -> PooledText:
        """Return a text whose prompt poolings leave out; `RowError` if nothing else is left."""
        if self._num_skipped >= len(text.token_ids):
            raise self._no_room()
        return text._replace(num_skipped=self._num_skipped)

    def _cut_in_template(self, ids: Sequence[int], ending: tuple[int, ...]) -> "_Pieces":
        """Return the tokens of a pair without those before the ending of the template."""
        if self._limits.on_overlong is Overlong.TRUNCATE_LEFT:
            raise RowError(
                "prompt_too_long",
                f"the pair has {len(ids)} tokens, but the limit is {self._limits.max_length}; a "
                f"pair in a chat template is cut by {option('on_overlong')} truncate-right",
                param="text",
            )
        if self._most <= len(ending):
            raise self._no_room()
        kept = (*ids[: self._most - len(ending)], *ending)
        return _Pieces((self._text(kept, len(kept)),), len(ids) - self._most)

    def _no_room(self) -> RowError:
        return RowError(
            "prompt_too_long",
            f"a limit of {self._limits.max_length} tokens leaves no room for a text between the "
            "special tokens and prompts around it",
            param="text",
        )

    def _require_known(self, *pieces: Sequence[int]) -> None:
        """Raise `RowError` for a token that the model has no vector for."""
        size = self._limits.vocab_size
        if self._tokenizer.num_ids > size and max(map(max, pieces)) >= size:
            raise RowError(
                "token_id_out_of_range",
                f"the text has a token whose id is outside the model's vocabulary, 0 to {size - 1}",
                param="text",
            )

    def _length(self, text: "str | tuple[str, str]", encoded: EncodedText) -> int:
        """Return the number of tokens of a text that is not cut."""
        special = self._adds_special
        if isinstance(text, str):
            around = self._tokenizer.num_special_tokens(of_pair=False) if special else 0
            return len(encoded.ids) + sum(len(each) - around for each in encoded.rest)
        # Pieces of a pair are pairs of pieces.
        [whole] = self._tokenizer.encode_pairs([text], add_special_tokens=special)
        return len(whole.ids)

    def _text(self, ids: Sequence[int], num_first: int) -> PooledText:
        known = self._known.setdefault
        token_ids = tuple(map(known, ids, ids))
        return PooledText(token_ids, num_first if self._has_types else len(token_ids), 0)

    def _given_ids(self, ids: tuple[int, ...]) -> "_Pieces":
        limit, size = self._limits.max_length, self._limits.vocab_size
        if min(ids) < 0 or max(ids) >= size:
            raise RowError(
                "token_id_out_of_range",
                f"prompt_token_ids has an id outside the model's vocabulary, 0 to {size - 1}",
                param="prompt_token_ids",
            )
        mode = self._limits.on_overlong
        if len(ids) > limit and mode is Overlong.ERROR:
            raise RowError(
                "prompt_too_long",
                f"the text has {len(ids)} tokens, but the limit is {limit}",
                param="prompt_token_ids",
            )
        kept = ids[-limit:] if mode is Overlong.TRUNCATE_LEFT else ids[:limit]
        return _Pieces((self._text(kept, len(kept)),), len(ids) - len(kept))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Encoded pieces of a text, and the tokens that were cut."""

    texts: tuple[PooledText, ...]
    num_cut: int = 0


def _of_part(error: RowError, part: int, num_parts: int) -> RowError:
    """Return the error of a text, with its index among several of a row."""
    if num_parts == 1:
        return error
    return RowError(error.code, f"at index {part}: {error.marked}", param=error.param)
