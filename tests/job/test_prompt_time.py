"""The clock of chat templates: one time for all rows of a run, and of those that go on with it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.output.manifest import read_manifest
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.text.prompt import present
from pagedrun.paged.text.prompt_reader import PromptReader
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.prompt_input import ChatMessage
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.jsonl import read_jsonl
from tests.support.scripted_model import ScriptedModel, config_for

EVENING = datetime(2026, 11, 22, 23, 59, 58)
ROWS = [{"messages": [{"role": "user", "content": name}]} for name in "abcd"]


class Dated(ScriptedModel):
    """Writes the time into each prompt, and answers with the prompt."""

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        template_kwargs: object = None,
        *,
        time: datetime | None = None,
    ) -> str:
        assert time is not None
        return f"{time:%m-%d %H:%M}"


def texts(config: JobConfig) -> list[str]:
    run_job(config, open_model=Dated().open())
    return [row["text"] for row in read_jsonl(config.output)]


def job(place: Path, time: datetime = EVENING) -> JobConfig:
    """Return a job whose rows are four windows."""
    return config_for(place, ROWS, prompts=PromptConfig(time=time), window=WindowSize(rows=1))


def recorded(place: Path) -> datetime:
    return read_manifest(place / "out.jsonl.run.json").prompt_time


def test_a_run_records_the_time_that_all_its_rows_were_given(place: Path) -> None:
    assert texts(job(place)) == ["11-22 23:59!"] * 4
    assert recorded(place) == EVENING
    written = json.loads((place / "out.jsonl.run.json").read_text())
    assert written["prompt_time"] == "2026-11-22T23:59:58"


def test_who_goes_on_the_next_day_asks_what_was_asked(place: Path) -> None:
    """And so does who goes on with that, the day after."""
    texts(job(place))
    output = place / "out.jsonl"
    for days in (1, 2):
        lines = output.read_bytes().splitlines(keepends=True)
        output.write_bytes(b"".join(lines[:2]))
        config = replace(job(place, EVENING + timedelta(days)), resume=True)
        assert texts(config) == ["11-22 23:59!"] * 4
        assert recorded(place) == EVENING


def test_who_begins_anew_takes_the_time_anew(place: Path) -> None:
    """Resumed without a row, and overwritten."""
    texts(job(place))
    (place / "out.jsonl").write_bytes(b"")
    later = job(place, EVENING + timedelta(1))
    assert texts(replace(later, resume=True)) == ["11-23 23:59!"] * 4
    later = job(place, EVENING + timedelta(2))
    assert texts(replace(later, overwrite=True)) == ["11-24 23:59!"] * 4
    assert recorded(place) == EVENING + timedelta(2)


def test_a_manifest_without_it_means_when_the_run_was_started(place: Path) -> None:
    texts(job(place))
    path = place / "out.jsonl.run.json"
    fields = json.loads(path.read_text())
    del fields["prompt_time"]
    path.write_text(json.dumps({**fields, "started": "2026-11-20T12:00:00+00:00"}))
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC).astimezone().replace(tzinfo=None)
    assert recorded(place) == noon


@pytest.mark.parametrize("value", ["midnight", 7, ""])
def test_a_damaged_time_is_no_manifest(place: Path, value: object) -> None:
    texts(job(place))
    path = place / "out.jsonl.run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "prompt_time": value}))
    with pytest.raises(UsageError, match="is not a manifest of this version"):
        run_job(replace(job(place), resume=True), open_model=Dated().open())


def test_templates_write_the_time_that_they_are_given(make_tokenizer: Callable[[], Path]) -> None:
    macro = "{% macro day() %}{{ strftime_now('%d') }}{% endmacro %}"
    template = macro + "{{ strftime_now('%d %b %Y') }} {{ day() }}{% if messages %}{% endif %}"
    tokenizer = Tokenizer.from_folder(make_tokenizer(), template)
    chat: list[ChatMessage] = [{"role": "user", "content": "a"}]
    assert tokenizer.render_chat(chat, time=EVENING) == "22 Nov 2026 22"
    reader = PromptReader(tokenizer, EVENING)
    assert reader.read(chat, SamplingParams()).text == "22 Nov 2026 22"
    before = present()
    now = tokenizer.render_chat(chat)
    assert now in {f"{time:%d %b %Y %d}" for time in (before, present())}
