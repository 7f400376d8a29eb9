"""The result of `bench accuracy` as tables."""

from typing import TYPE_CHECKING

from pagedrun.cli.bench.sheets.sheet import Sheet
from pagedrun.cli.bench.sheets.spread_text import NOTHING
from pagedrun.cli.terminal.units import show_size

if TYPE_CHECKING:
    from pagedrun.paged.bench.accuracy.accuracy_figures import AccuracyBenchFigures


def accuracy_sheets(result: "AccuracyBenchFigures") -> list[Sheet]:
    """Return the tables: how well each foretells the text, and how far they agree."""
    return [_perplexities(result), _agreement(result)]


def describe_ways(result: "AccuracyBenchFigures") -> str:
    """Return what is compared with what, in a line."""
    measured, reference = result["measured"], result["reference"]
    return (
        f"{measured['name']} ({measured['dtype']}) against {reference['name']} "
        f"({reference['dtype']})"
    )


def describe_text(result: "AccuracyBenchFigures") -> str:
    """Return the text in a line."""
    text = result["text"]
    return (
        f"{text['name']}, {text['tokens']:,} tokens in {text['chunks']:,} chunks of "
        f"{text['chunk']:,} that begin {text['stride']:,} apart; {text['prompts']:,} prompts, "
        f"{text['output']:,} tokens out, greedy"
    )


def _perplexities(result: "AccuracyBenchFigures") -> Sheet:
    ways = (result["measured"], result["reference"])
    rows = [
        ("perplexity", *(_perplexity(way["perplexity"]) for way in ways)),
        ("mean log-probability", *(f"{way['mean_logprob']:.5f}" for way in ways)),
        ("weights in memory", *(show_size(way["weight_bytes"]) for way in ways)),
    ]
    return Sheet(
        "The text",
        ("", *(way["name"] for way in ways)),
        rows,
        f"Of {result['text']['scored_tokens']:,} scored tokens. Perplexities are "
        "comparable for models with the same vocabulary, in chunks of the same length.",
    )


def _agreement(result: "AccuracyBenchFigures") -> Sheet:
    scores, answers = result["scores"], result["answers"]
    differences = answers["prompts"] - answers["same"]
    rows = [
        ("identical answers", *_share(answers["same"], answers["prompts"])),
        (
            "tokens before the first difference",
            *_share(answers["positions_before"], answers["positions"]),
        ),
        ("first differences that are near ties", *_share(answers["near_ties"], differences)),
        (
            "positions with the same most likely token",
            *_share(scores["same_top"], scores["tokens"]),
        ),
        ("log-probability difference, mean", f"{scores['mean_difference']:.5f}", ""),
        ("log-probability difference, maximum", f"{scores['largest_difference']:.5f}", ""),
    ]
    return Sheet(
        "Agreement",
        ("", "", "share"),
        rows,
        "Near tie: the reference's most likely token leads its second by less than "
        f"{answers['near_tie']:g} in log-probability.",
    )


def _perplexity(perplexity: float | None) -> str:
    return NOTHING if perplexity is None else f"{perplexity:,.4f}"


def _share(part: int, whole: int) -> tuple[str, str]:
    return f"{part:,} of {whole:,}", f"{part / whole:.1%}" if whole else NOTHING
