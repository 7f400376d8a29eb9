"""Drafts from grammars: no forbidden token, the forced ones, and likely choices between them."""

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from pagedrun.paged.execution.logits.grammar_mask import GrammarMask
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.speculation.drafts import Proposal
from pagedrun.paged.speculation.grammar_drafts import GrammarChoices, GrammarDrafter
from pagedrun.paged.text.grammar import GrammarCompiler
from pagedrun.paged.text.structured_answer import GrammarMatcher
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.paged.values.structure import Structure
from tests.conftest import IM_END, MakeModel
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair

PAIRS = ['",', '":', ' "', "na", "me", "name", "si", "ze", "size", "ok", "tr", "ue", "true", '"}']
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "size": {"enum": ["small", "smaller", "large"]},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "size", "ok"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"regex": "(abc|abd)-[0-9]{2}-and nothing else"},
    {"choice": ["yes it is", "yes it was", "no"]},
    {"grammar": 'start: "name: " X " size: " X "."\nX: /[0-9a-c]{1,3}/'},
    {"json_object": True},
]


@pytest.fixture(scope="module")
def folder(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose tokens are bytes and a few words, as the merges of real ones are."""
    made = tmp_path_factory.mktemp("words") / "model"
    copytree(make_model("qwen3", "structured", max_position_embeddings=400), made)
    path = made / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    model = tokenizer["model"]
    model["vocab"] |= {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    for word in (each.replace(" ", "Ġ") for each in PAIRS):
        ends = [(word[:end], word[end:]) for end in range(1, len(word))]
        first, second = next(each for each in ends if set(each) <= set(model["vocab"]))
        model["merges"].append([first, second])
        model["vocab"][word] = len(model["vocab"])
    path.write_text(json.dumps(tokenizer))
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


Encode = Callable[[str], list[int]]


@pytest.fixture(scope="module")
def encode(tokenizer: Tokenizer) -> Encode:
    return lambda text: list(tokenizer.encode_batch([text], False)[0])


MakeMatcher = Callable[[dict[str, Any]], GrammarMatcher]


@pytest.fixture(scope="module")
def matcher_of(tokenizer: Tokenizer) -> MakeMatcher:
    compiler = GrammarCompiler(tokenizer, 320, (IM_END,))

    def make(form: dict[str, Any]) -> GrammarMatcher:
        [(field, text)] = form.items()
        return GrammarMatcher(compiler.compile(Structure.of(field, text)))

    return make


def take(matcher: GrammarMatcher, *drafters: GrammarDrafter, tokens: Seq[int]) -> None:
    """Advance an answer by tokens."""
    for token in tokens:
        matcher.take(token)
    if not matcher.is_over:
        matcher.compute_mask()
    for drafter in drafters:
        drafter.append(tokens)


def proposal(tokens: Seq[int]) -> Proposal:
    return Proposal(list(tokens), "other_rows", 5)


@pytest.mark.parametrize(
    ("proposed", "kept"),
    [("abd-12", "abd-12"), ("abd-1x-and", "abd-1"), ("abe", "ab"), ("xab", "")],
)
def test_what_the_grammar_forbids_is_cut_off(
    proposed: str, kept: str, matcher_of: MakeMatcher, encode: Encode
) -> None:
    matcher = matcher_of(FORMS[1])
    drafter = GrammarDrafter(lambda: matcher, GrammarChoices())
    tokens = encode(proposed)
    fitted = drafter.fitted(proposal(tokens), 6)
    found = [] if fitted is None else fitted.tokens
    assert found[: len(encode(kept))] == encode(kept)
    assert found == encode(kept) or fitted is not None
    assert fitted is None if not kept else fitted is not None


def test_forced_text_is_appended(
    matcher_of: MakeMatcher, encode: Encode, tokenizer: Tokenizer
) -> None:
    matcher = matcher_of(FORMS[1])
    drafter = GrammarDrafter(lambda: matcher, GrammarChoices())
    fitted = drafter.fitted(proposal(encode("abd-12")), 20)
    assert fitted is not None
    assert tokenizer.decode(fitted.tokens) == "abd-12-and nothing e"
    assert (fitted.source, fitted.num_own) == ("other_rows", 6)
    assert tokenizer.decode(matcher.state.deep_copy().compute_ff_tokens()) == "ab"  # as before


def test_the_token_that_ends_an_answer_is_no_draft(matcher_of: MakeMatcher, encode: Encode) -> None:
    """The choice "no" is complete: no token is computed behind it, nor behind an end token."""
    matcher = matcher_of({"choice": ["no", "yes"]})
    drafter = GrammarDrafter(lambda: matcher, GrammarChoices())
    for behind in (encode("yes"), [IM_END, 5], []):
        fitted = drafter.fitted(proposal([*encode("no"), *behind]), 9)
        assert fitted is not None
        assert fitted.tokens == encode("n")
    optional = matcher_of({"regex": "a(b|c)*"})
    drafter = GrammarDrafter(lambda: optional, GrammarChoices())
    fitted = drafter.fitted(proposal([*encode("abc"), IM_END, *encode("abc")]), 9)
    assert fitted is not None
    assert fitted.tokens == encode("abc")


def test_a_choice_made_twice_is_a_draft_with_the_forced_text_behind(
    matcher_of: MakeMatcher, encode: Encode, tokenizer: Tokenizer
) -> None:
    """The third answer is drafted up to its first value, and behind that up to the next."""
    choices = GrammarChoices()
    for value in ("a", "bc", "d"):
        matcher = matcher_of(FORMS[0])
        drafter = GrammarDrafter(partial(next, repeat(matcher)), choices)
        found = []
        for tokens in ('{"name": "', f'{value}",', ' "size": "', 'large",', ' "ok": ', "true}"):
            first = drafter.propose(9)
            found.append("" if first is None else tokenizer.decode(first.tokens))
            for token in encode(tokens):
                take(matcher, drafter, tokens=[token])
                if not matcher.is_over:
                    drafter.propose(9)
    assert found == ['{"name": "', "", ' "size": "large', 'large", "ok":', ' "ok": true', "true"]


def test_choices_that_differ_are_no_drafts() -> None:
    choices = GrammarChoices()
    place = (5, b"0", b"3")
    for token in (1, 2, 1, 1):
        assert choices.likely(place) is None
        choices.note(place, token)
    assert choices.likely(place) == (1, 2)
    assert choices.likely((6, b"0", b"3")) is None
    choices.note(place, 2)
    assert choices.likely(place) is None


def test_the_number_of_remembered_choices_is_bounded() -> None:
    choices = GrammarChoices()
    for number in range(5000):
        choices.note((number, b"0", b"3"), 1)
    assert len(choices) == 1024


def test_nothing_is_tried_on_a_grammar_of_its_own(
    make_model: MakeModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limits count all work, so that drafts could make a row fail."""
    monkeypatch.setattr(GrammarMatcher, "is_alone", True)
    _, report = answers(folder, FORMS[0], {"logprobs": 0}, speculate="5")
    assert "grammar" not in report["speculation"]["by_source"]


def answers(
    folder: Path, form: dict[str, Any], changes: dict[str, Any], **flags: Any
) -> tuple[list[Any], Any]:
    """Return the outputs of rows with a structure, and the report; every step is checked."""
    config = EngineConfig.fitting(model=folder, device="cpu", dtype="float32", **flags)
    params = SamplingParams(max_tokens=60, seed=3, **form)
    prompts = [[(5 * i + j) % 7 + 10 for j in range(9 + i)] for i in range(6)]
    rows = [
        Request(index, tuple(prompt), replace(params, **changes))
        for index, prompt in enumerate(prompts)
    ]
    run = load_engine(config).start(rows, hooks=RunHooks(on_step=lambda _: run.scheduler.check()))
    done = sorted(run, key=lambda each: each.request.index)
    assert [each.error for each in done if each.error] == []
    return [each.outputs for each in done], run.report()


CHANGES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "n": 3},
    {"temperature": 1.0, "logprobs": 1},
    {"min_tokens": 2, "stop_token_ids": (7,)},
    {"temperature": 1.0, "repetition_penalty": 1.2},
]


@every_pair(
    in_turn="form",
    form=FORMS,
    changes=CHANGES,
    pool=[{}, {"num_blocks": 14, "block_size": 16}],
)
def test_the_same_bytes(
    form: dict[str, Any], changes: dict[str, Any], pool: dict[str, Any], folder: Path
) -> None:
    expected, _ = answers(folder, form, changes, speculate="off")
    found, report = answers(folder, form, changes, max_num_seqs=4, speculate="6", **pool)
    assert found == expected
    figures = report["speculation"]
    assert sum(figures["by_source"].values()) == figures["accepted"]
    if form is not FORMS[4] and "logprobs" in changes:  # forced tokens without jumps
        assert figures["by_source"]["grammar"] > 0


LIST = {
    "type": "array",
    "minItems": 2,
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {"code": {"enum": ["a", "b", "cc"]}, "kind": {"enum": ["small", "large"]}},
        "required": ["code", "kind"],
        "additionalProperties": False,
    },
    "x-guidance": {"whitespace_flexible": False},
}


@every_pair(in_turn="temperature", mode=["swap", "recompute"], temperature=[0.0, 1.0])
def test_drafts_behind_forced_tokens_and_windows(
    temperature: float, mode: str, make_model: MakeModel
) -> None:
    """A step that computes forced tokens reads the window of the first of them, in a pool that
    preempts."""
    folder = make_model("mistral", "drafted", sliding_window=20)
    changes: dict[str, Any] = {"temperature": temperature, "max_tokens": 60, "n": 2}
    form: dict[str, Any] = {"json_schema": LIST}
    expected, _ = answers(folder, form, changes, speculate="off")
    found, report = answers(
        folder, form, changes, speculate="6", block_size=4, num_blocks=40, preemption_mode=mode
    )
    assert found == expected
    assert report["speculation"]["by_source"]["grammar"] > 0
    assert sum(report["preemptions"].values()) > 0


def test_drafts_of_a_schema_save_steps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """White space is drafted as the rows before chose it, with the key that is forced behind."""
    changes: dict[str, Any] = {"logit_bias": tuple((token, -9.0) for token in (9, 10, 13))}
    expected, with_drafts = answers(folder, FORMS[0], changes, speculate="6", max_num_seqs=1)
    monkeypatch.setattr(GrammarMask, "matcher", lambda *_: None)
    found, without = answers(folder, FORMS[0], changes, speculate="6", max_num_seqs=1)
    assert found == expected
    assert with_drafts["speculation"]["by_source"]["grammar"] > 10
    steps = [each["timeline"][-1]["step"] for each in (with_drafts, without)]
    assert steps[0] < steps[1]


def test_forced_tokens_behind_other_drafts_count_as_those_of_the_grammar(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token has no draft, five are those of an earlier answer, the last one ends it."""
    config = EngineConfig.fitting(model=folder, device="cpu", dtype="float32")
    params = SamplingParams(max_tokens=60, logprobs=0, **FORMS[1])  # forced tokens without jumps
    request = Request(0, tuple(range(10, 19)), params)
    [done] = load_engine(replace(config, speculate="off")).start([request])
    answer = done.outputs[0].token_ids
    monkeypatch.setattr(GrammarDrafter, "propose", lambda *_: None)
    run = load_engine(replace(config, speculate="30")).start(
        [replace(request, earlier_token_ids=answer[:6])]
    )
    [again] = run
    assert again.outputs == done.outputs
    figures = run.report()["speculation"]
    assert figures["by_source"] == {"from_output": 5, "grammar": len(answer) - 7}


def test_trials_leave_the_answer_where_it_is(matcher_of: MakeMatcher) -> None:
    matcher = matcher_of(FORMS[0])
    before = matcher.mask.copy()
    drafter = GrammarDrafter(lambda: matcher, GrammarChoices())
    drafter.propose(9)
    drafter.fitted(proposal([1, 2]), 9)
    assert (matcher.mask == before).all()
    matcher.compute_mask()
    assert (matcher.mask == before).all()
