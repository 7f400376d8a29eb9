"""`pagedrun plan` as a user meets it."""

import json
from functools import partial
from io import StringIO
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from pagedrun.cli.report.plan_report import draw_forecast
from pagedrun.paged.planning.forecast_sections import PlanReport
from pagedrun.recipes.demo import demo_prompts_path
from tests.cli.light_command import light_command
from tests.support.command import Command


@pytest.fixture
def run(pagedrun: Command) -> Command:
    return partial(pagedrun, "plan")


def test_help_imports_nothing_heavy() -> None:
    out = light_command("plan", "--help")
    assert "--simulate-rows" in out


@pytest.mark.heavy("the whole command in a process of its own")
def test_tables_go_to_stderr_and_data_to_stdout(run: Command) -> None:
    status, out, err = run(str(demo_prompts_path()), "--limit", "60")
    assert (status, out) == (0, "")
    for title in ("Rows", "Tokens", "Shared prefixes", "KV memory", "Block sizes for this file"):
        assert title in err
    status, out, err = run(str(demo_prompts_path()), "--limit", "60", "--json", "--quiet")
    assert (status, err) == (0, "")
    forecast = json.loads(out)
    assert forecast["rows"]["total"] == 60
    assert forecast["tokens"]["computed"] < forecast["tokens"]["prompt"] / 4


def test_flags_reach_the_plan(run: Command) -> None:
    _, out, _ = run(
        *(str(demo_prompts_path()), "--limit", "40", "--json", "--quiet", "--max-tokens", "10"),
        *("--block-size", "32", "--num-blocks", "77", "--dtype", "float32", "--max-num-seqs", "5"),
        *("--no-prefix-caching", "--simulate-rows", "30", "--n", "2"),
    )
    forecast = json.loads(out)
    assert forecast["tokens"]["generated"] == 40 * 2 * 10
    assert (forecast["kv"]["block_size"], forecast["kv"]["num_blocks"]) == (32, 77)
    assert forecast["kv"]["dtype"] == "float32"
    assert forecast["steps"]["max_running"] == 5
    assert forecast["rows"]["simulated"] == 30
    # Greedy samples of one row are copies; the prompt itself is computed for each row.
    assert forecast["tokens"]["computed"] == forecast["tokens"]["prompt"]


def test_steps_with_drafts_are_estimated_from_answers(pagedrun: Command, tmp_path: Path) -> None:
    rows, old = (str(demo_prompts_path()), "--model", "demo"), str(tmp_path / "old.jsonl")
    assert pagedrun("generate", *rows, "--limit", "12", "-o", old, "--quiet")[0] == 0
    flags = ("--limit", "40", "--max-num-seqs", "1", "--speculate", "4", "--answers", old)
    status, out, err = pagedrun("plan", *rows, *flags, "--json")
    steps = json.loads(out)["steps"]
    assert (status, steps["drafts"]["rows"]) == (0, 12)
    assert 0 < steps["drafts"]["count"] < steps["count"]
    shown = " ".join(err.split())
    assert f"tokens a step {steps['drafts']['tokens_per_step']:.2f}" in shown
    assert f"of {steps['count']:,} without drafts; estimated from answers to 12 rows" in shown
    status, _, err = pagedrun("plan", *rows, "--answers", str(tmp_path / "none.jsonl"))
    assert status == 2
    assert "--answers" in err.splitlines()[-1]
    assert "--limit 50" in err.splitlines()[-1]


@pytest.mark.heavy("the whole command, once for each number of replicas")
def test_replicas_are_planned_for(run: Command) -> None:
    """One computes nothing again; several share prefixes that are in the file only once."""
    rows = (str(demo_prompts_path()), "--json", "--quiet", "--simulate-rows", "10")
    (_, alone, _), (_, four, _) = run(*rows, "--replicas", "1"), run(*rows, "--replicas", "4")
    forecast, replicas = json.loads(alone), json.loads(alone)["replicas"]
    assert (replicas["count"], replicas["split_prefix_tokens"]) == (1, 0)
    one = replicas["computed_at_most"]
    assert forecast["tokens"]["computed"] <= one <= forecast["tokens"]["prompt"]
    assert replicas["expected_efficiency"] == 1
    replicas = json.loads(four)["replicas"]
    assert replicas["units"] >= 4
    again = replicas["split_prefix_tokens"]
    assert 0 < again <= 3 * forecast["tree"]["distinct_tokens"]
    assert replicas["computed_at_most"] == one + again
    assert 0.5 < replicas["expected_efficiency"] < 1
    _, out, err = run(str(demo_prompts_path()), "--limit", "200", "--replicas", "4")
    assert out == ""
    assert "With 4 replicas" in err
    assert "replicas" not in json.loads(run(*rows)[1])


@pytest.mark.parametrize(
    ("lines", "flags"),
    [
        ([], []),
        (['{"id": 1, "prompt": "a"}', '{"id": 1, "prompt": "b"}'], []),
        (['{"prompt": "a"}'], ["--block-size", "0"]),
        (['{"prompt": "a"}'], ["--prompt-template", "{{"]),
        (['{"prompt": "a"}'], ["--model", "no/such folder"]),
    ],
)
def test_what_is_refused_exits_2(
    run: Command, tmp_path: Path, lines: list[str], flags: list[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    status, out, err = run(str(path), "--model", "demo", *flags)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("Error: ")
    assert "--model is missing" not in err


def test_rows_that_a_run_would_refuse_are_counted_by_code(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = ['{"prompt": "who?"}', '{"prompt": ""}', "{", '{"prompt": "' + "long " * 3000 + '"}']
    path.write_text("\n".join(rows))
    status, _, err = run(str(path), "--model", "demo")
    assert status == 0
    for code in ("empty_prompt", "invalid_json_line", "prompt_too_long"):
        assert code in err


def test_all_samples_of_rows_that_vote_are_counted_and_it_is_told(
    run: Command, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    voting = {"n": 8, "vote": "(a|b)", "temperature": 1}
    rows = [{"prompt": "who?", **voting}, {"prompt": "what?", **voting}, {"prompt": "when?"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, out, err = run(str(path), "--model", "demo", "--max-tokens", "10", "--json")
    forecast = json.loads(out)
    assert (forecast["tokens"]["generated"], forecast["voting"]) == (2 * 8 * 10 + 10, 2)
    assert "all samples of 2 rows that vote, of which a run draws fewer" in " ".join(err.split())


def test_advice_is_told(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"date": f"{day}", "q": "who?"}) + "\n" for day in range(99))
    )
    template = "On {{ date }}: " + "Answer from the staff directory in one short sentence. " * 3
    _, _, err = run(str(path), "--model", "demo", "--prompt-template", template + "{{ q }}")
    assert "column `date` begins at character 3 and differs in 99% of rows" in " ".join(err.split())


class TestDrawing:
    @pytest.fixture
    def forecast(self, run: Command) -> PlanReport:
        _, out, _ = run(str(demo_prompts_path()), "--json", "--quiet", "--show-text")
        return cast(PlanReport, json.loads(out))

    @staticmethod
    def draw(forecast: PlanReport, width: int) -> list[str]:
        stream = StringIO()
        draw_forecast(forecast, Console(file=stream, width=width, markup=False, emoji=False))
        return stream.getvalue().splitlines()

    @pytest.mark.parametrize("width", [80, 140])
    def test_no_line_is_wider_than_the_terminal(self, forecast: PlanReport, width: int) -> None:
        lines = self.draw(forecast, width)
        assert max(map(len, lines)) <= width
        assert any("█" in line for line in lines)
        assert any("706 tokens × 68 rows" in line for line in lines)

    def test_text_of_the_file_is_made_safe(self, forecast: PlanReport) -> None:
        forecast["tree"]["top_prefixes"][0]["text"] = "\x1b[2J[/red]\u202e"
        shown = "\n".join(self.draw(forecast, 140))
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "\\x1b[2J[/red]\\u202e" in shown

    def test_a_prefix_hangs_from_the_one_it_continues(self, forecast: PlanReport) -> None:
        lines = self.draw(forecast, 140)
        (around,) = [i for i, line in enumerate(lines) if "21 tokens × 120 rows" in line]
        (inside,) = [i for i, line in enumerate(lines) if "706 tokens × 68 rows" in line]
        assert around < inside
        assert lines[inside].index("706") > lines[around].index("21")
