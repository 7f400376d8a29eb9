"""Rows that ask for what cannot be answered, or try to decide what is not theirs: 14 to 26."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun.paged.planning.plan import PlanRules
from pagedrun.paged.planning.planner import Planner, RequestLimits
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

Run = Callable[..., Any]
OK: dict[str, Any] = {"prompt": "a"}
BLOCK, MAX_LEN, VOCAB = 16, 512, 320


def asking(name: str, *values: object) -> list[dict[str, Any]]:
    return [{"prompt": "a", name: value} for value in values]


def refused(done: Any, code: str, param: str, count: int) -> bool:
    """Whether the first `count` rows failed with this code, each naming its parameter and line."""
    errors = [done.error(index) or {} for index in range(count)]
    assert [each.get("line") for each in errors] == list(range(1, count + 1))
    assert {each["code"] for each in errors} == {code}, errors
    assert {each["param"] for each in errors} == {param}, errors
    return all(param in each["message"] for each in errors)


def test_14_types_are_strict_and_null_is_absent(generate: Run) -> None:
    bad = asking("max_tokens", True, "16", 16.0, -1, 0, 10**18, [16])
    done = generate([*bad, {"prompt": "a", "max_tokens": None}])
    assert refused(done, "invalid_param", "max_tokens", len(bad))
    assert "an integer from 1 to 2147483647" in done.error(0)["message"]
    assert (done.status, done.codes[-1]) == (3, None)


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("temperature", [-1, 1e9, "1", True], [0, 1e-9, 1]),
        ("top_p", [0, 1.1, "1", False], [1, 0.5]),
        ("top_k", [-2, 1.0, 2**31], [-1, 0, VOCAB + 1]),
        ("n", [10**9, 0, 1025, True], [1, 3]),
    ],
)
def test_15_ranges_are_told(generate: Run, name: str, bad: list[Any], good: list[Any]) -> None:
    done = generate([*asking(name, *bad), *asking(name, *good)], "--seed", 3)
    assert refused(done, "invalid_param", name, len(bad))
    assert (done.status, done.codes[len(bad) :]) == (3, [None] * len(good))


def test_16_ids_are_checked_before_anything_computes_with_them(
    generate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("pagedrun.paged.job.model.LocalModel.load_engine", refuse)
    values: list[Any] = [[-1], [VOCAB], [2**31], [2**63], [10**30], [1.0], [True], ["1"], "1", 5]
    done = generate([{"prompt_token_ids": value} for value in [*values, [[1]], [1, VOCAB]]])
    assert refused(done, "token_id_out_of_range", "prompt_token_ids", len(done.rows))
    assert "0 to 319" in done.error(0)["message"]
    assert generate([{"prompt_token_ids": []}]).codes == ["empty_prompt"]


def test_16_the_last_id_is_one(generate: Run) -> None:
    assert generate([{"prompt_token_ids": [VOCAB - 1]}]).status == 0


def test_17_stops_have_limits_and_ids_are_in_the_vocabulary(generate: Run) -> None:
    stops = asking("stop", "", [""], ["x"] * 100_000, "x" * 1025, 3, [None])
    assert refused(generate(stops), "invalid_param", "stop", len(stops))
    ids = asking("stop_token_ids", [VOCAB], [2**40])
    assert refused(generate(ids), "token_id_out_of_range", "stop_token_ids", len(ids))
    ids = asking("stop_token_ids", [-1], ["2"], [True], 2, [1] * 1025)
    assert refused(generate(ids), "invalid_param", "stop_token_ids", len(ids))


def test_17_tokens_that_are_named_have_limits_and_are_in_the_vocabulary(generate: Run) -> None:
    for name, outside, bad in (
        ("logit_bias", [{"320": 1}, {str(2**40): 1}], [{"1": 101}, {"a": 1}, {"-1": 1}, [1], "x"]),
        ("allowed_token_ids", [[VOCAB], [1, 2**40]], [[], [-1], ["1"], [1.0], 5, [1] * 70_000]),
        ("bad_words", [], ["", " ", [""], [3], ["x"] * 1025, "x" * 1025, {"a": 1}]),
        ("repetition_penalty", [], [0, -1, 1e9, "1", True]),
        ("presence_penalty", [], [2.5, -3, "1", True]),
        ("frequency_penalty", [], [2.5, -3, "1", True]),
    ):
        done = generate([*asking(name, *outside), OK])
        assert not outside or refused(done, "token_id_out_of_range", name, len(outside))
        assert done.codes[-1] is None
        assert refused(generate(asking(name, *bad)), "invalid_param", name, len(bad))


def test_17_what_asks_for_nothing_is_no_error(generate: Run) -> None:
    neutral = {
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "allowed_token_ids": None,
        "bad_words": [],
    }
    done = generate([OK, {**OK, **neutral}, {**OK, "sampling_params": neutral}])
    assert done.status == 0
    assert done.rows[0]["outputs"] == done.rows[1]["outputs"] == done.rows[2]["outputs"]


def test_17_a_row_that_leaves_no_token_says_so(generate: Run) -> None:
    both = {"allowed_token_ids": [ord("x") - ord("!")], "bad_words": ["x"]}
    done = generate([{**OK, **both}, OK])
    assert done.codes == ["nan_logits", None]
    assert "--allowed-token-ids, --bad-words and --min-tokens" in done.error(0)["message"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--stop", ""),
        ("--stop-token-ids", VOCAB),
        ("--stop-token-ids", "-1"),
        ("--allowed-token-ids", VOCAB),
        ("--logit-bias", '{"320": 1}'),
        ("--logit-bias", "{"),
        ("--bad-words", " "),
    ],
)
def test_17_so_do_the_flags(generate: Run, flag: str, value: object) -> None:
    done = generate([OK], flag, value)
    assert (done.status, done.rows) == (2, [])
    assert flag in done.err


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--n", 10**9, "must be an integer from 1 to 1024"),
        ("--seed", 10**30, "must be an integer from 0 to"),
        ("--temperature", "nan", "must be a number from 0 to 100"),
        ("--top-p", "1e999", "must be a number above 0"),
        ("--max-tokens", 10**30, "must be an integer from 1 to"),
        ("--max-model-len", 513, "has only 512 positions"),
        ("--max-num-seqs", 0, "at least 1"),
        ("--num-blocks", 10**9, "are free; pass at most"),
        ("--kv-cache-memory-bytes", "900TiB", "are free; pass less"),
        ("--swap-space-bytes", "9000TiB", "the host has no room"),
        ("--limit", 0, "--limit"),
    ],
)
def test_14_15_flags_are_held_to_the_same(
    generate: Run, flag: str, value: object, words: str
) -> None:
    done = generate([OK], flag, value)
    assert (done.status, done.rows, done.out) == (2, [], "")
    assert flag in done.err
    assert words in done.err


def test_15_a_limit_beyond_all_rows_is_none(generate: Run) -> None:
    assert generate([OK], "--limit", 10**30).status == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_34_a_gpu_that_is_not_there(generate: Run) -> None:
    done = generate([OK], "--device", "cuda")
    assert (done.status, done.rows) == (2, [])
    assert "--device cuda: " in done.err
    assert "use --device cpu" in done.err
    done = generate([OK], "--dtype", "float16")
    assert (done.status, "--dtype float16 needs a GPU" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("best_of", 2, 1),
        ("guided_json", {}, None),
        ("tools", [{}], []),
    ],
)
def test_17_what_is_not_supported_is_not_ignored(
    generate: Run, name: str, value: Any, neutral: Any
) -> None:
    nested = [{"prompt": "a", "sampling_params": {name: each}} for each in (value, neutral)]
    done = generate([*asking(name, value), nested[0], *asking(name, neutral), nested[1]])
    assert refused(done, "invalid_param", name, 2)
    assert done.codes[2:] == [None, None]


LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, MAX_LEN - 2, MAX_LEN - 1]


def test_19_lengths_around_a_block_and_the_context(generate: Run, command: Run) -> None:
    rows = [{"prompt_token_ids": [5] * length} for length in [*LENGTHS, MAX_LEN, MAX_LEN + 1]]
    done = generate(rows)
    assert done.status == 3
    assert done.codes == [None] * len(LENGTHS) + ["prompt_too_long"] * 2
    assert [row["usage"]["prompt_tokens"] for row in done.rows[: len(LENGTHS)]] == LENGTHS
    assert [row["usage"]["completion_tokens"] for row in done.rows[:7]] == [2] * 6 + [1]
    message = done.error(-1)["message"]
    assert "513 tokens" in message
    assert "the context is 512 tokens (the model's own, or --max-model-len)" in message
    alone = [generate([row]).rows[0]["outputs"] for row in rows[:7]]
    assert [row["outputs"] for row in done.rows[:7]] == alone


def test_19_of_a_text_of_ten_million_characters_only_a_beginning_is_encoded(
    generate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pagedrun.paged.text.tokenizer import Tokenizer

    longest: list[int] = []
    real = Tokenizer.encode_batch

    def spy(self: Tokenizer, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        longest.extend(map(len, texts))
        return real(self, texts, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode_batch", spy)
    chat = {"messages": [{"role": "user", "content": "x" * 10_000_000}]}
    done = generate([{"prompt": "x" * 10_000_000, "raw": True}, OK, chat])
    assert (done.status, done.codes) == (3, ["prompt_too_long", None, "prompt_too_long"])
    assert "10,000,000 characters" in done.error(0)["message"]
    assert max(longest) <= 2**14


def test_19_an_empty_prompt_is_legal_where_a_token_begins_it(
    generate: Run, model_without_bos: Path
) -> None:
    """Of a chat it would be a question that nobody asks."""
    assert generate([{"prompt": "", "raw": True}]).codes == [None]
    rows = [{"prompt": "", "raw": True}, {"prompt": ""}]
    assert generate(rows, using=model_without_bos).codes == ["empty_prompt"] * 2


def test_20_rows_that_share_all_or_nearly_all(generate: Run) -> None:
    base = list(range(10, 10 + 3 * BLOCK))
    prompts = [base, base, base[:-1], [*base[:-1], 9], [*base, 7], base[:BLOCK], base]
    rows = [{"prompt_token_ids": each} for each in prompts]
    cached = generate(rows)
    plain = generate(rows, "--no-prefix-caching")
    assert cached.status == plain.status == 0
    assert [row["outputs"] for row in cached.rows] == [row["outputs"] for row in plain.rows]
    assert not any(row["usage"]["cached_tokens"] for row in plain.rows[2:6])
    # Three of the seven are one question; its leading blocks are in the cache for all others.
    tokens = [row["usage"]["cached_tokens"] for row in cached.rows]
    assert sum(count >= 2 * BLOCK for count in tokens) >= 5


def test_21_a_pool_too_small_for_one_and_for_all(generate: Run) -> None:
    rows = [{"prompt_token_ids": [number] * 40} for number in range(8)]
    flags = ["--max-tokens", 30, "--ignore-eos"]
    few = generate([*rows, {"prompt_token_ids": [9] * 200}], *flags, "--num-blocks", 8)
    many = generate(rows, *flags)
    assert (few.status, few.codes) == (3, [None] * 8 + ["kv_cache_too_small"])
    assert [row["outputs"] for row in few.rows[:8]] == [row["outputs"] for row in many.rows]


def test_22_special_tokens_in_text_crash_nothing(generate: Run) -> None:
    """They are encoded as such: docs/inputs.md, "What a row holds"."""
    text = "<|im_end|>\n<|im_start|>system\n<s></s><|endoftext|>"
    plain = {"prompt": text}
    chat = {"messages": [{"role": "user", "content": text}]}
    done = generate([{**plain, "raw": True}, plain, chat])
    assert (done.status, done.codes) == (0, [None, None, None])
    assert done.rows[0]["usage"]["prompt_tokens"] == len("\n\nsystem\n") - 1 + 5 + 1


USER = {"role": "user", "content": "x"}
BAD_MESSAGES: list[Any] = [
    "x",
    {},
    ["x"],
    [{"content": "x"}],
    [{**USER, "role": "foo"}],
    [{**USER, "role": "user<|im_end|>"}],
    [{**USER, "role": ""}],
    [{**USER, "role": 1}],
    [{**USER, "content": None}],
    [{**USER, "content": 3}],
    [{**USER, "content": []}],
    [{**USER, "content": ["x"]}],
    [{**USER, "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
    [{"role": "assistant", "content": "x"}],
    [{"role": "system", "content": "x"}],
    [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}],
]


def test_23_messages_that_are_no_chat(generate: Run) -> None:
    good = [[USER], [USER, {"role": "assistant", "content": "y"}, USER]]
    done = generate([{"messages": each} for each in [*BAD_MESSAGES, *good]])
    assert refused(done, "unsupported_content", "messages", len(BAD_MESSAGES))
    assert (done.status, done.codes[-2:]) == (3, [None, None])
    assert generate([{"messages": []}]).codes == ["empty_prompt"]


FORBIDDEN = {
    "chat_template": "{{ 1 }}",
    "chat_template_kwargs": {"tokenize": True},
    "trust_remote_code": True,
    "add_generation_prompt": False,
    "lora_request": {"path": "/tmp"},
}


def test_24_s04_a_row_decides_neither_template_nor_model(generate: Run) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a", name: FORBIDDEN[name]} for name in FORBIDDEN]
    rows += [{"prompt": "a", "sampling_params": {name: FORBIDDEN[name]}} for name in FORBIDDEN]
    done = generate([*rows, {"prompt": "a", "sampling_params": {"model": "/etc/passwd"}}])
    assert done.status == 3
    assert done.codes == ["forbidden_field"] * len(rows) + ["invalid_param"]
    assert [done.error(index)["param"] for index in range(len(rows))] == [*FORBIDDEN] * 2
    assert "chat_template cannot be set by a row" in done.error(0)["message"]


def test_24_s04_a_call_of_openais_api_does_not_either(generate: Run) -> None:
    rows = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [USER], name: FORBIDDEN[name]},
        }
        for name in ("chat_template", "chat_template_kwargs", "trust_remote_code")
    ]
    done = generate(rows)
    assert done.status == 3
    codes = [row["response"]["body"]["error"]["code"] for row in done.rows]
    assert codes == ["forbidden_field"] * 3


def test_24_a_column_named_model_is_data_and_nothing_is_opened(generate: Run) -> None:
    opened: list[str] = []
    watching = True

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "open":
            opened.append(str(args[0]))

    sys.addaudithook(audit)  # there is no way to take it back, so it looks away afterwards
    done = generate([{"prompt": "a", "model": "/etc/passwd", "id": "../../etc/passwd"}])
    watching = False
    assert (done.status, done.rows[0]["input"]) == (0, {"model": "/etc/passwd"})
    assert any(path.endswith("in.jsonl") for path in opened)
    assert not any("passwd" in path for path in opened)


def test_26_ids_are_unique_by_text_and_never_a_path(generate: Run, tmp_path: Path) -> None:
    for first, second in (("x", "x"), (1, "1"), ("row-1", None)):
        done = generate([{"prompt": "a", "id": first}, {"prompt": "b", "id": second}])
        assert (done.status, done.rows) == (2, [])
        assert f"ids must be unique, but {str(first)!r} on lines 1 and 2" in done.err
    odd = ["../../x", "a/b", "/etc/passwd", "new\nline", " ", "", 10**30, -1]
    before = {path.name for path in tmp_path.parent.iterdir()}
    done = generate([{"prompt": "a", "id": each} for each in odd])
    assert (done.status, [row["id"] for row in done.rows]) == (0, odd)
    assert {path.name for path in tmp_path.parent.iterdir()} == before
    bad = generate([{"prompt": "a", "id": each} for each in ("x" * 10**6, 1.5, True, ["x"])])
    assert refused(bad, "invalid_id", "id", 4)
    assert all(len(row["id"]) < 10 for row in bad.rows)


def test_s09_no_path_around_the_check_of_ids() -> None:
    """What the planner lets through has ids of the vocabulary only, whoever asks."""
    good, bad = Request(0, (99,), SamplingParams()), Request(1, (100,), SamplingParams())
    stop = Request(2, (1,), SamplingParams(stop_token_ids=(100,)))
    limits = RequestLimits(max_model_len=64, vocab_size=100)
    planner = Planner(PlanRules(16, max_blocks=8), limits)
    window = planner.window([good, bad, stop], has_next=False)
    assert [planned.request.index for planned in window.plan] == [0]
    codes = {each.request.index: each.error.code for each in window.refused if each.error}
    assert codes == {1: "token_id_out_of_range", 2: "token_id_out_of_range"}
