"""The results of all parts as a page of Markdown."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any


def as_markdown(
    date: str, machine: Mapping[str, Any], names: Seq[str], parts: Mapping[str, Any]
) -> str:
    """Return the page; `parts` are the results of those that were run, of all `names`."""
    versions = ", ".join(f"{name} {each}" for name, each in machine["versions"].items() if each)
    facts = ", ".join(f"{key} {value}" for key, value in (machine["gpu_before"] or {}).items())
    lines = [
        f"# {machine['gpu']}, {date}",
        "",
        f"- machine: {machine['processor']}, {machine['threads']} threads",
        f"- GPU: {facts or machine['gpu']}",
        f"- versions: python {machine['python']}, {versions}",
        "- command: `python benchmarks/gpu.py`, one part at a time or all",
        "",
    ]
    for name in names:
        lines += [f"# Part {name}", "", *_part_lines(parts.get(name))]
    return "\n".join(lines)


def _part_lines(part: Mapping[str, Any] | None) -> list[str]:
    if part is None:
        return ["Not run.", ""]
    lines = [f"Began {part['began']}, {part['seconds']:.0f} s. {part['about']}", ""]
    if "failed" in part:
        lines += [f"**It {part['failed']}; what was done before is here.**", ""]
    for step in part["steps"]:
        lines += _step_lines(step)
    return lines


def _step_lines(step: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    result = step.get("result")
    if isinstance(result, dict) and "bench" in result:
        lines += _bench_lines(step["name"], result)
    else:
        lines += [f"## {step['name']}", "", f"- command: `{step['command']}`", ""]
        if isinstance(result, dict) and "table" in result:
            lines += [*result["table"], ""]
        tests = step.get("tests") or (result if isinstance(result, dict) else {})
        if "passed" in tests:
            lines += _test_lines(tests)
    if "failed" in step:
        lines += [f"**Failed: {step['failed']}.**", "", *_quoted(step.get("said", ()))]
    return lines


def _bench_lines(name: str, plain: Mapping[str, Any]) -> list[str]:
    """Return what a benchmark prints, as Markdown."""
    from pagedrun.cli.bench.app import VIEWS
    from pagedrun.cli.bench.session import markdown
    from pagedrun.paged.bench.result import Measured, Result

    result: Result[Measured] = Result.of_dict(dict(plain))
    view = VIEWS[result.frame["bench"]]()
    return [markdown(name, view.lines(result), view.sheets(result.figures)), ""]


def _test_lines(tests: Mapping[str, Any]) -> list[str]:
    counts = ", ".join(f"{tests[key]} {key}" for key in ("passed", "failed", "errors"))
    lines = [f"{counts}, {tests['skipped']} skipped.", ""]
    for failure in tests["failures"]:
        lines += [f"- {failure['name']}", "", *_quoted(failure["said"])]
    return lines


def _quoted(said: Seq[str]) -> list[str]:
    return ["```", *(line.replace("```", "'''") for line in said), "```", ""]
