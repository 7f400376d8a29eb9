"""Settings of embeddings, reranking and classification, and the texts that they compute.

A model gives hidden states of tokens. A pooling makes one vector of those of a text, and heads make
scores of vectors.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.flags import Flag, Form, Panel, check_fields
from pagedrun.paged.values.rules import one_of

RERANK_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class Task(StrEnum):
    """Kind of result of a text: a vector, a score of a pair, or probabilities of labels."""

    EMBED = "embed"
    RERANK = "rerank"
    CLASSIFY = "classify"


class Pooling(StrEnum):
    """Vector of a text as a function of the hidden states of its tokens.

    The first or the last one, the mean, the largest number of each element, a mean with weights
    1, 2, 3, …, or the sum divided by the square root of the number of tokens.
    """

    CLS = "cls"
    LAST = "last"
    MEAN = "mean"
    MAX = "max"
    WEIGHTED_MEAN = "weighted-mean"
    MEAN_SQRT_LEN = "mean-sqrt-len"


class VectorType(StrEnum):
    """Type of the numbers of a vector in a file: floats, or 8-bit integers times a scale of the
    vector.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"


class PairOrder(StrEnum):
    """Text that begins the prompt of a pair, and whose tokens several pairs share."""

    QUERY = "query"
    DOCUMENT = "document"


class PooledText(NamedTuple):
    """Tokens of a text or of a pair; those from `num_first` on are of the second token type.

    part: index of the text's result among those of its row; several texts of one part, the chunks
    of a long one, are merged. num_skipped: tokens at the beginning that poolings leave out.
    """

    token_ids: tuple[int, ...]
    num_first: int
    part: int
    num_skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """Settings of a task; None where the model folder decides.

    `pooling`: makes the vector of a text. `normalize`: vectors have length 1. `prompt_name` selects
    a prompt of the model folder, and modules if it has routes; `prompt` gives the text of one. It
    begins each text. `dimensions` is the
    number of leading numbers of a vector that are kept. `chunks`: long texts are cut into chunks
    whose vectors are averaged. `instruction` and `pair_order` are those of rerankers with a prompt,
    `top_n` is the number of documents in the output, `vector_type` the type of numbers in it.
    Raises `UsageError` naming the field for a
    value out of range.
    """

    task: Task
    pooling: Annotated[
        Pooling | None,
        Flag(
            "Vector of a text: the hidden state of its first token (cls) or last token (last), or "
            "a function of all of them.",
            Panel.MODEL,
            default="that of the model folder; without one mean, of a decoder last",
        ),
    ] = None
    normalize: Annotated[
        bool | None,
        Flag(
            "Scale vectors to length 1.",
            Panel.MODEL,
            default="as the model folder says",
            declared=("--normalize/--no-normalize",),
        ),
    ] = None
    dimensions: Annotated[
        int | None,
        Flag(
            "Keep the first N numbers of a vector, of models trained for it (Matryoshka).",
            Panel.MODEL,
            "N",
            default="all",
            low=1,
        ),
    ] = None
    prompt_name: Annotated[
        str | None,
        Flag(
            "Prompt of the model folder to put before each text, such as query or document.",
            Panel.PROMPTS,
            "NAME",
            default="the folder's default prompt, usually none",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        Flag(
            "Text to put before each text, text or @file.",
            Panel.PROMPTS,
            "TEXT",
            form=Form.PROSE,
        ),
    ] = None
    chunks: Annotated[
        str | None,
        Flag(
            "mean: cut a text that is too long into chunks, and average their vectors.",
            Panel.PROMPTS,
            "KIND",
            default="off: --on-overlong applies",
            rule=one_of(("mean",)),
        ),
    ] = None
    instruction: Annotated[
        str,
        Flag(
            "Instruction in the prompt of a reranker that is a decoder.",
            Panel.PROMPTS,
            "TEXT",
            form=Form.PROSE,
        ),
    ] = RERANK_INSTRUCTION
    pair_order: Annotated[
        PairOrder,
        Flag(
            "Part of a pair that begins the prompt of a reranker that is a decoder: pairs that "
            "share it compute it once.",
            Panel.PROMPTS,
        ),
    ] = PairOrder.QUERY
    top_n: Annotated[
        int | None,
        Flag(
            "Number of documents of a query in the output.",
            Panel.FILES,
            "N",
            default="all",
            low=1,
        ),
    ] = None

    vector_type: Annotated[
        VectorType,
        Flag(
            "Type of the numbers in .parquet and .npy: float16 takes half the room, int8, with a "
            "scale for each vector, a quarter (.parquet only).",
            Panel.FILES,
        ),
    ] = VectorType.FLOAT32

    def __post_init__(self) -> None:
        kinds = {"pooling": Pooling, "pair_order": PairOrder, "vector_type": VectorType}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if isinstance(value, str):
                if value not in [*kind]:
                    wanted = ", ".join(kind)
                    raise UsageError(f"{option(name)} must be one of {wanted}, not {value!r}")
                object.__setattr__(self, name, kind(value))
        check_fields(self)
