"""What comes too early is found by trying it elsewhere."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.planned.template_advice import (
    SAMPLE_ROWS,
    LineOrder,
    TemplateAdvisor,
    sample_rows,
)
from pagedrun.paged.job.prompts.prompt_config import PromptConfig, PromptTemplate
from pagedrun.paged.text.chat_messages import parse_messages
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams

INSTRUCTIONS = "You are a careful clerk. Sort the text below into one of five drawers. " * 4
Advise = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def advise(make_tokenizer: Callable[..., Path]) -> Advise:
    tokenizer = Tokenizer.from_folder(make_tokenizer())

    def give(rows: list[dict[str, Any]], template: str | None = None, **asked: Any) -> Any:
        show_text = asked.pop("show_text", False)
        compiled = PromptTemplate(template) if template is not None else None
        config = PromptConfig(template=compiled, **asked)
        advisor = TemplateAdvisor(config, SamplingParams(), tokenizer)
        return advisor.advise(rows, show_text=show_text)["found"]

    return give


def table(count: int = 200) -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [
        {
            "date": f"2026-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}",
            "number": index,
            "key": f"k{index * 7}",
            "office": "north",
            "text": "".join(draw.choices("abcdef ", k=30)),
        }
        for index in range(count)
    ]


class TestColumns:
    def test_an_early_column_that_differs(self, advise: Advise) -> None:
        (found,) = advise(table(), "Today is {{ date }}. " + INSTRUCTIONS + "{{ text }}")
        assert found["columns"] == ["date"]
        assert found["position"] == 9
        assert found["varies"] > 0.9
        assert found["saved_share"] > 0.6
        assert "column `date` begins at character 9 and differs in 9" in found["sentence"]

    def test_what_it_promises_is_what_moving_it_gives(
        self, advise: Advise, make_tokenizer: Callable[..., Path]
    ) -> None:
        rows = table()
        template = "Today is {{ date }}. " + INSTRUCTIONS + "{{ text }}"
        (found,) = advise(rows, template, raw=True)

        def num_distinct(texts: list[str]) -> int:
            return len({text[:end] for text in texts for end in range(1, len(text) + 1)})

        before = [f"Today is {row['date']}. {INSTRUCTIONS}{row['text']}" for row in rows]
        after = [f"Today is . {INSTRUCTIONS}{row['text']}\n{row['date']}" for row in rows]
        # The test's tokenizer has a token for each byte.
        assert found["sample_computed_tokens"] == num_distinct(before)
        assert found["sample_saved_tokens"] == num_distinct(before) - num_distinct(after)

    @pytest.mark.parametrize(
        "template",
        [
            INSTRUCTIONS + "{{ date }} {{ text }}",  # behind the instructions already
            "Office {{ office }}. " + INSTRUCTIONS + "{{ text }}",  # the same in every row
            INSTRUCTIONS,  # no column
        ],
    )
    def test_nothing_to_gain(self, advise: Advise, template: str) -> None:
        assert advise(table(), template) == []

    def test_two_early_columns_of_which_neither_helps_alone(self, advise: Advise) -> None:
        template = "{{ number }} of {{ row['key'] }}: " + INSTRUCTIONS + "{{ row.text }}"
        (found,) = advise(table(), template)
        assert found["columns"] == ["number", "key"]
        assert found["saved_share"] > 0.6

    def test_a_column_that_decides_what_is_written_is_left_alone(self, advise: Advise) -> None:
        template = "{% if date %}" + INSTRUCTIONS + "{% endif %}{{ number }}" + "{{ text }}"
        assert all("date" not in found["columns"] for found in advise(table(), template))

    def test_raw_rows_are_weighed_as_raw_ones(self, advise: Advise) -> None:
        """By their own word, or because something is scored behind them."""
        template = "Today is {{ date }}. " + INSTRUCTIONS + "{{ text }}"
        (raw,) = advise(table(), template, raw=True)
        (chat,) = advise(table(), template)
        assert chat["sample_computed_tokens"] > raw["sample_computed_tokens"]
        for own in ({"raw": True}, {"continuations": [" a"]}):
            assert advise([{**row, **own} for row in table()], template) == [raw]
        mixed = [{**row, "raw": row["number"] % 2 == 0} for row in table()]
        (found,) = advise(mixed, template)
        assert found["columns"] == ["date"]
        assert found["sample_computed_tokens"] > raw["sample_computed_tokens"]

    def test_within_a_chat(self, advise: Advise) -> None:
        template = "{{ date }} " + INSTRUCTIONS + "{{ text }}"
        (found,) = advise(table(), template, system="Answer in one word.")
        assert found["columns"] == ["date"]


class TestLines:
    def messages(self, first: str) -> list[dict[str, Any]]:
        return [
            {
                "messages": [
                    {"role": "system", "content": first.format(**row) + INSTRUCTIONS},
                    {"role": "user", "content": row["text"]},
                ]
            }
            for row in table()
        ]

    def test_a_line_that_differs_before_common_text(self, advise: Advise) -> None:
        (found,) = advise(self.messages("Welcome.\nToday is {date}.\n"))
        assert (found["kind"], found["position"]) == ("line", 2)
        assert found["saved_share"] > 0.6
        assert "2026" not in json.dumps(found)

    def test_its_text_is_shown_if_asked_for(self, advise: Advise) -> None:
        (found,) = advise(self.messages("Today is {date}.\n"), show_text=True)
        assert found["text"].startswith("Today is 2026-")

    def test_plain_prompts_in_a_column(self, advise: Advise) -> None:
        rows = [{"body": f"{row['text']}\n{INSTRUCTIONS}"} for row in table()]
        (found,) = advise(rows, field="body")
        assert found["position"] == 1

    def test_nothing_to_gain(self, advise: Advise) -> None:
        assert advise(self.messages("Welcome.\n")) == []
        assert advise([{"prompt_token_ids": [1, 2]}, {"prompt": 3}, {}]) == []

    def test_a_moved_line_is_at_the_end_of_the_last_message(self) -> None:
        order = LineOrder.of(self.messages("One\nTwo\n")[0], None)
        assert order is not None
        assert order.columns()["messages"] == self.messages("One\nTwo\n")[0]["messages"]
        system, user = parse_messages(order.moved(1).columns()["messages"])
        assert system["content"] == "One\n" + INSTRUCTIONS
        assert user["content"].endswith("\nTwo")


def test_a_sample_is_of_the_rows_within_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"number": number}) for number in range(SAMPLE_ROWS * 3)]
    path.write_text("\n".join(["", "no JSON", *lines]))

    def numbers(limit: int | None) -> list[int]:
        engine = EngineConfig(model=tmp_path)
        config = JobConfig(input=str(path), output="x", engine=engine, limit=limit)
        found = [row["number"] for row in sample_rows(config)]
        return [number for number in found if isinstance(number, int)]

    assert numbers(11) == list(range(10))
    found = numbers(None)
    assert SAMPLE_ROWS - 1 <= len(set(found)) == len(found) <= SAMPLE_ROWS
    assert found == sorted(found)
    assert max(found) > SAMPLE_ROWS * 2
    assert found == numbers(None)
