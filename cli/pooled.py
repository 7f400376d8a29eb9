"""`pagedrun embed`, `rerank` and `classify`: jobs whose rows get vectors, scores or labels."""

import typer

from pagedrun.cli import exits
from pagedrun.cli.generate import run
from pagedrun.cli.help import PanelCommand
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.pooled_flags import CLASSIFY, EMBED, RERANK
from pagedrun.paged.values.pooling import Task

_EXIT_STATUS = """Exit status: 0 all rows ok, 1 engine failure, 2 refused, 3 some rows failed, \
4 stopped early, 130 interrupted by SIGINT, 143 by SIGTERM, 129 by SIGHUP: resumable, like 1 and 4.
"""
EMBED_HELP = f"""Compute a vector for the text of every row of INPUT.

A row has a column "text" or "prompt" (a line of a .txt file), "prompt_token_ids", or the column \
of --prompt-field; other columns and ids come back as in generate. Rows of OpenAI batch files for \
/v1/embeddings are answered in OpenAI's format, in JSONL. Models are encoders (BERT, RoBERTa, \
XLM-R, DistilBERT, ModernBERT), decoders such as Qwen3-Embedding, and folders of \
sentence-transformers, with their pooling, prompts and lengths.

Output: .jsonl, .jsonl.gz, .parquet (a column `embedding` of lists of fixed size, with the input's \
columns), or .npy (row i of the array is row i of the input; a failed row is NaN).

Examples:

  pagedrun embed texts.jsonl -o vectors.parquet --model ./all-MiniLM-L6-v2
  pagedrun embed texts.jsonl -o vectors.npy --model ./model --prompt-name document --resume
  pagedrun embed texts.txt -o vectors.jsonl --model ./model --pooling mean --normalize
  pagedrun embed books.jsonl -o vectors.npy --model ./model --chunks mean

{_EXIT_STATUS}"""
RERANK_HELP = f"""Score the documents of every row's query, best first.

A row has a "query" and a list of "documents", or one "document". Models are cross-encoders for \
sequence classification with one label (such as bge-reranker and ms-marco-MiniLM), and \
Qwen3-Reranker, whose prompts share the tokens of a query, or of a document.

Examples:

  pagedrun rerank pairs.jsonl -o ranked.jsonl --model ./bge-reranker-base --top-n 10
  pagedrun rerank pairs.jsonl -o ranked.jsonl --model ./Qwen3-Reranker-0.6B --pair-order document

{_EXIT_STATUS}"""
CLASSIFY_HELP = f"""Give the text of every row a label, and a probability for each label.

A row has a column "text" or "prompt", optionally with a second text in "text_pair", or the column \
of --prompt-field. Models are those for sequence classification.

Examples:

  pagedrun classify reviews.csv -o labels.csv --prompt-field review --model ./sentiment
  pagedrun classify texts.jsonl -o labels.jsonl --model ./toxicity

{_EXIT_STATUS}"""


def _run(context: typer.Context, given: TypedValues, flags: Flags, task: Task) -> None:
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.settings import Settings

    guard = context.obj
    with exits.boundary(guard):
        settings = Settings.of(given, {each.name for each in flags}, of_recipe=flags)
        with settings.named():
            raise typer.Exit(run(settings, guard, task))


def _embed(context: typer.Context, given: TypedValues) -> None:
    """Compute a vector for the text of every row of INPUT."""
    _run(context, given, EMBED, Task.EMBED)


def _rerank(context: typer.Context, given: TypedValues) -> None:
    """Score the documents of every row's query, best first."""
    _run(context, given, RERANK, Task.RERANK)


def _classify(context: typer.Context, given: TypedValues) -> None:
    """Give the text of every row a label, and a probability for each label."""
    _run(context, given, CLASSIFY, Task.CLASSIFY)


embed = EMBED.command(_embed)
rerank = RERANK.command(_rerank)
classify = CLASSIFY.command(_classify)


_DAILY = ("output", "model", "limit", "resume", "overwrite")


class EmbedCommand(PanelCommand):
    """Typer command of `embed`."""

    daily = (
        *_DAILY,
        *("prompt_field", "pooling", "normalize", "dimensions", "prompt_name", "chunks", "quiet"),
    )


class RerankCommand(PanelCommand):
    """Typer command of `rerank`."""

    daily = (*_DAILY, "top_n", "pair_order", "quiet")


class ClassifyCommand(PanelCommand):
    """Typer command of `classify`."""

    daily = (*_DAILY, "prompt_field", "quiet")
