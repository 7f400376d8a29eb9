"""AccuracyOptions: the flags of `pagedrun bench accuracy` about text and comparison."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.paged.values.engine_config import DTYPES
from pagedrun.paged.values.flags import Flag, Form
from pagedrun.paged.values.rules import one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyOptions:
    """What is scored and answered, and with what it is compared."""

    model: Annotated[
        str | None,
        Flag(
            "Model folder, GGUF file, or hub id org/name.",
            Heading.MODEL,
            "NAME",
            default="none, required",
            form=Form.MODEL,
        ),
    ] = None
    text: Annotated[
        Path | None,
        Flag(
            "Text to score and to continue: a text file, or prompts as rows in .jsonl.",
            Heading.ROWS,
            "FILE",
            default="none, required",
        ),
    ] = None
    chunk: Annotated[
        int | None,
        Flag(
            "Tokens per chunk; each chunk is scored in one pass.",
            Heading.ROWS,
            "N",
            default="--max-model-len, at most 2048",
            low=2,
        ),
    ] = None
    stride: Annotated[
        int | None,
        Flag(
            "Tokens from the beginning of a chunk to that of the next; fewer give each "
            "token more context.",
            Heading.ROWS,
            "N",
            default="a chunk's",
            low=1,
        ),
    ] = None
    max_chunks: Annotated[
        int | None,
        Flag("Chunks to score, from the first.", Heading.ROWS, "N", default="all", low=1),
    ] = None
    num_prompts: Annotated[
        int,
        Flag(
            "Prompts to answer greedily: rows, or pieces of a text.",
            Heading.ROWS,
            "N",
            low=1,
            declared=("--prompts",),
        ),
    ] = 64
    output: Annotated[int, Flag("Tokens per answer.", Heading.ROWS, "N", low=1)] = 32
    against: Annotated[
        str | None,
        Flag(
            "Model folder, GGUF file or hub id to compare with.",
            Heading.COMPARED,
            "NAME",
            default="the same model",
            form=Form.MODEL,
        ),
    ] = None
    against_dtype: Annotated[
        str | None,
        Flag(
            "Number format of the model to compare with.",
            Heading.COMPARED,
            "FORMAT",
            default="the same",
            rule=one_of(DTYPES),
        ),
    ] = None
    near_tie: Annotated[
        float,
        Flag(
            "A first difference is a near tie if the most likely token leads the second by "
            "less than this in log-probability.",
            Heading.COMPARED,
            "X",
            low=0.0,
        ),
    ] = 0.1
