"""Pairs of a query and a document as a model reads them: two texts, or one of a prompt."""

from collections.abc import Sequence

from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.models.sentence_folder import PairForm
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import ModelError, RowError
from pagedrun.paged.values.pooling import PairOrder, PoolingParams

RERANK_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
RERANK_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

Given = str | tuple[str, str] | tuple[int, ...]
"""A text, a pair of texts, or token ids."""


def pair_texts(
    query: str, documents: Sequence[str], spec: PooledModelSpec, params: PoolingParams
) -> list[Given]:
    """Return a query with each document: pairs, or texts of the prompt of Qwen3-Reranker."""
    if spec.saved.pairs is not PairForm.QWEN3:
        return [(query, each) for each in documents]
    about = f"<Instruct>: {params.instruction}\n"
    if params.pair_order is PairOrder.DOCUMENT:
        return [f"{about}<Document>: {each}\n<Query>: {query}" for each in documents]
    return [f"{about}<Query>: {query}\n<Document>: {each}" for each in documents]


class PairTemplate:
    """Chat template of a folder, which renders messages of the roles `query` and `document`.

    `ending`: tokens behind the texts, found as by sentence-transformers: those that two renderings
    have in common at their ends. A pair that is cut keeps them. Raises `ModelError` for a template
    that fails, or leaves out one of the texts.
    """

    def __init__(self, tokenizer: Tokenizer, spec: PooledModelSpec) -> None:
        self._tokenizer = tokenizer
        self._spec = spec
        try:
            first, *others = (
                self.render(*pair)
                for pair in (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))
            )
            ends = [self.render(each, each) for each in ("0", "1 2 3 4")]
        except RowError as error:
            raise ModelError(f"{spec.folder}: {error}") from error
        if first in others:
            raise ModelError(
                f"{spec.folder}: its chat template does not render messages of the roles query and "
                "document, by which it would read pairs; pass a folder with a template for them"
            )
        one, other = tokenizer.encode_batch(ends, False)
        common = 0
        while common < min(len(one), len(other)) and one[-1 - common] == other[-1 - common]:
            common += 1
        self.ending = tuple(one[len(one) - common :])

    def render(self, query: str, document: str) -> str:
        """Return the text of a pair; raises `RowError` for one that the template fails on."""
        saved = self._spec.saved
        return self._tokenizer.render_pair(
            *(query, document, self._spec.prompt, saved.template_variables, saved.has_parts)
        )
