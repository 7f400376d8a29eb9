"""HarnessModel: texts and chats become the tokens of the harness's own `hf` model, and a context is
computed once however many continuations it has."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lm_eval.models.huggingface import HFLM

from pagedrun import HarnessModel
from pagedrun.paged.values.errors import RowError, UsageError
from tests.conftest import BOS, IM_END, MakeModel

TEXTS = ("", "one two", " two ", "<s>one", "<|im_end|>one", "<|im_start|>user\nhö\n")
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "I think: "},
]


class Asked(NamedTuple):
    """A request, as much of it as models look at."""

    args: tuple[Any, ...]
    task_name: str = "of_mine"


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("llama", "harness", max_position_embeddings=64)


@pytest.fixture(scope="module")
def model(folder: Path) -> HarnessModel:
    return HarnessModel(pretrained=str(folder), dtype="float32", block_size=4)


def hf(folder: Path, **args: Any) -> Any:
    return HFLM(pretrained=str(folder), dtype="float32", device="cpu", **args)


@pytest.mark.parametrize("args", [{}, {"add_bos_token": False}, {"prefix_token_id": IM_END}])
def test_texts_are_encoded_as_hf_does(folder: Path, args: dict[str, Any]) -> None:
    ours = HarnessModel(pretrained=str(folder), dtype="float32", **args)
    theirs = hf(folder, **args)
    assert ours.prefix_token_id == theirs.prefix_token_id
    assert ours.eot_token_id == theirs.eot_token_id
    assert ours.max_length == theirs.max_length
    assert ours.max_gen_toks == theirs.max_gen_toks
    # With another prefix token, hf doubles a BOS that the text has.
    for text in TEXTS if ours.prefix_token_id == BOS else set(TEXTS) - {"<s>one"}:
        assert ours.tok_encode(text) == theirs.tok_encode(text), text
        plain = theirs.tok_encode(text, add_special_tokens=False)
        assert ours.tok_encode(text, add_special_tokens=False) == plain


def test_a_bos_is_added_where_the_tokenizer_adds_none(make_model: MakeModel) -> None:
    folder = str(make_model("qwen3", "harness", max_position_embeddings=64))
    with pytest.raises(UsageError, match="no bos_token; leave add_bos_token out"):
        HarnessModel(pretrained=folder, dtype="float32", add_bos_token=True)


@pytest.mark.parametrize("opens_answer", [True, False])
def test_chats_are_those_of_hf(folder: Path, model: HarnessModel, opens_answer: bool) -> None:
    chat = CHAT if not opens_answer else CHAT[:-1]
    assert model.apply_chat_template(chat, opens_answer) == hf(folder).apply_chat_template(
        chat, opens_answer
    )


def test_a_template_that_refuses_a_system_message_gets_none(folder: Path, tmp_path: Path) -> None:
    refusing = shutil.copytree(folder, tmp_path / "refusing")
    config = json.loads((refusing / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('none, please') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    (refusing / "tokenizer_config.json").write_text(json.dumps(config))
    model = HarnessModel(pretrained=str(refusing), dtype="float32")
    with pytest.warns(RuntimeWarning, match="system messages are left out"):
        assert model.apply_chat_template(CHAT[:2]) == "Who?"


def test_a_context_is_computed_once_for_all_its_continuations(model: HarnessModel) -> None:
    """As far as it is shared, so are its blocks: one prompt has them all."""
    context = list(range(30, 60))
    asked = [(("", ""), context, [65 + n]) for n in range(20)]
    other = [(("", ""), context[:7], [65, 66])]
    scores = model._loglikelihood_tokens([*asked[:9], *other, *asked[9:]])
    tokens = model.llm.report["tokens"]
    assert tokens["prompt"] == len(context) + 7
    assert tokens["computed"] + tokens["cached"] == tokens["prompt"]
    assert len(scores) == 21
    assert [scores[0], scores[9], scores[20]] == [
        model._loglikelihood_tokens([each])[0] for each in (asked[0], other[0], asked[-1])
    ]


@pytest.mark.parametrize(("num_context", "num_given"), [(60, 5), (64, 1), (70, 20), (1, 64)])
def test_what_is_too_long_is_cut_on_the_left(
    folder: Path, model: HarnessModel, num_context: int, num_given: int
) -> None:
    ids = [7 * n % 251 for n in range(num_context + num_given)]
    asked = [(("", ""), ids[:num_context], ids[num_context:])]
    with warnings.catch_warnings(record=True) as cuts:
        warnings.simplefilter("always")
        (ours,) = model._loglikelihood_tokens(asked)
    (theirs,) = hf(folder)._loglikelihood_tokens(asked)
    assert ours[0] == pytest.approx(theirs[0], abs=1e-4)
    assert ours[1] == theirs[1]
    assert len(cuts) == (num_context + num_given > 65)


def test_what_cannot_be_scored_is_refused(model: HarnessModel) -> None:
    for context, given, sentence in (
        ([], [1], "a request's context has no tokens"),
        ([1], [], "a request's continuation has no tokens"),
        ([1], [1] * 65, "a continuation has 65 tokens, but max_length is 64"),
        ([1], [4000], "outside the model's vocabulary"),
    ):
        with pytest.raises(RowError, match=sentence):
            model._loglikelihood_tokens([(("", ""), context, given)])
    with pytest.raises(RowError, match="max_gen_toks 64 leaves no room for a prompt"):
        model.generate_until([Asked(("a", {"max_gen_toks": 64}))])


def test_thinking_is_for_tasks_that_generate(folder: Path) -> None:
    thinking = HarnessModel(
        pretrained=str(folder), dtype="float32", enable_thinking=True, think_end_token="</s>"
    )
    with pytest.raises(UsageError, match="enable_thinking needs a task that generates"):
        thinking.loglikelihood([Asked(("a", "b"))])


def test_answers_are_kept_in_the_cache_of_the_harness(model: HarnessModel) -> None:
    kept: dict[tuple[str, tuple[Any, ...]], Any] = {}

    class Hook:
        def add_partial(self, kind: str, args: tuple[Any, ...], answer: Any) -> None:
            kept[kind, tuple(map(str, args))] = answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "cache_hook", Hook())
        scores = model.loglikelihood([Asked(("one", " two"))], disable_tqdm=True)
        rolling = model.loglikelihood_rolling([Asked(("one two",))])
        texts = model.generate_until([Asked(("one", {"max_gen_toks": 3}))])
    assert kept == {
        ("loglikelihood", ("one", " two")): scores[0],
        ("loglikelihood_rolling", ("one two",)): rolling[0],
        ("generate_until", ("one", "{'max_gen_toks': 3}")): texts[0],
    }
    assert model.loglikelihood_rolling([]) == []
