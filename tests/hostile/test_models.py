"""Model folders that are broken or mean harm: inputs 32, 33, 35; requirements S1, S2, S12, S13."""

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun import LLM, SamplingParams

Run = Callable[..., Any]
Break = Callable[[Path], object]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"


def header(length: int, text: bytes = b"{}", data: bytes = b"") -> Break:
    return lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", length) + text + data)


def entries(values: dict[str, Any], num_bytes: int) -> Break:
    text = json.dumps(values).encode()
    return header(len(text), text, bytes(num_bytes))


def entry(begin: int, end: int, shape: tuple[int, ...] = (2,)) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Break:
    def rewrite(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS, metadata={"format": "pt"})

    return rewrite


def fields(name: str = "config.json", **values: Any) -> Break:
    def rewrite(folder: Path) -> None:
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**config, **values}))

    return rewrite


def sharded(file_name: str) -> Break:
    """Replace the weights by an index that says where a tensor is."""

    def rewrite(folder: Path) -> None:
        target = folder.parent / WEIGHTS
        (folder / WEIGHTS).rename(target)  # there to be read, if the name were followed
        index = {"weight_map": {NORM: file_name.format(outside=target)}}
        (folder / INDEX).write_text(json.dumps(index))

    return rewrite


def pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


def named(name: str, make: Callable[[Path], object]) -> Break:
    """Put something else than a file in the place of one."""

    def rewrite(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return rewrite


def socket_at(path: Path) -> None:
    """Bind a socket, by a relative name since addresses are short."""
    with pytest.MonkeyPatch.context() as patch, socket.socket(socket.AF_UNIX) as bound:
        patch.chdir(path.parent)
        bound.bind(path.name)


def pickled(folder: Path) -> None:
    """Leave a pickle that would write a file where the weights were."""
    target = folder / "ran"
    code = b"cos\nsystem\n(S'touch " + str(target).encode() + b"'\ntR."
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(code)


BROKEN: dict[str, tuple[Break, str, str]] = {
    "a missing shard": (sharded("model-00002-of-00002.safetensors"), "model-00002", "is missing"),
    "a shard above": (sharded("../model.safetensors"), INDEX, "not a *.safetensors file in this"),
    "a shard anywhere": (sharded("{outside}"), INDEX, "not a *.safetensors file in this folder"),
    "another shape": (tensors(lambda t: t.update({NORM: torch.ones(3)})), NORM, "must be [64]"),
    "another dtype": (
        tensors(lambda t: t.update({NORM: torch.ones(64, dtype=torch.int8)})),
        WEIGHTS,
        "stored as I8",
    ),
    "one tensor more": (tensors(lambda t: t.update(evil=torch.ones(2))), "evil", "extra"),
    "one tensor less": (tensors(lambda t: t.pop(NORM)), NORM, "missing"),
    "a header of 90 MB": (header(90_000_000, b"{" + b" " * 1000), WEIGHTS, "header is 90,000,000"),
    "a header without end": (header(2**63), WEIGHTS, "is corrupt"),
    "100,000 tensors": (
        entries({f"x{n}": entry(4 * n, 4 * n + 4, (1,)) for n in range(10**5)}, 4 * 10**5),
        "x0, x1",
        "and 99996 more",
    ),
    "overlapping offsets": (entries({"a": entry(0, 8), "b": entry(4, 12)}, 12), WEIGHTS, "corrupt"),
    "offsets past the end": (entries({"a": entry(0, 8)}, 4), WEIGHTS, "corrupt"),
    "a shape larger than its bytes": (
        entries({"a": entry(0, 8, (2**62, 2**62))}, 8),
        WEIGHTS,
        "corrupt",
    ),
    "an empty file": (lambda folder: (folder / WEIGHTS).write_bytes(b""), WEIGHTS, "corrupt"),
    "a pipe": (named(WEIGHTS, os.mkfifo), WEIGHTS, "a named pipe"),
    "a pipe beside": (named("other.safetensors", os.mkfifo), "other.safetensors", "a named pipe"),
    "a socket": (named(WEIGHTS, socket_at), WEIGHTS, "a socket"),
    "a device": (named(WEIGHTS, lambda path: path.symlink_to("/dev/zero")), WEIGHTS, "a device"),
    "a folder": (named(WEIGHTS, Path.mkdir), WEIGHTS, "a folder"),
    "a link to itself": (
        named(WEIGHTS, lambda path: path.symlink_to(path)),
        WEIGHTS,
        "cannot be read (Too",
    ),
    "no layers": (fields(num_hidden_layers=0), "num_hidden_layers is 0", "from 1 to"),
    "heads that do not divide": (fields(num_attention_heads=3), "num_key_value_heads", "a divisor"),
    "a huge model": (fields(hidden_size=2**20), "model.embed_tokens.weight", "must be [320, "),
    "fewer ids than tokens": (
        lambda folder: (
            fields(vocab_size=260)(folder),
            tensors(
                lambda t: t.update(
                    {k: t[k][:260].clone() for k in t if "embed" in k or "head" in k}
                )
            )(folder),
        ),
        "the tokenizer has 261 tokens",
        "only 260",
    ),
    "pickles alone": (pickled, "pytorch_model.bin", "can run code"),
    "a git-lfs pointer": (pointer, WEIGHTS, "git lfs pull"),
    "unknown rotary embedding": (
        fields(rope_scaling={"rope_type": "longrope", "factor": 4.0}),
        "config.json: rope_scaling: rope_type",
        "longrope",
    ),
    "endless positions": (
        fields(max_position_embeddings=2**62),
        "config.json: max_position_embeddings",
        "from 1 to 134217728",
    ),
    "more positions than memory": (
        fields(max_position_embeddings=2**27),
        "config.json: max_position_embeddings",
        "pass --max-model-len",
    ),
    "a quantized model": (fields(quantization_config={"bits": 4}), "quantization_config", "quant"),
    "another architecture": (
        fields(model_type="evil"),
        "config.json: model_type",
        "the types that pagedrun supports",
    ),
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        "tokenizer.json",
        "needs",
    ),
    "a broken tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text('{"model":'),
        "tokenizer.json",
        "is not a tokenizer",
    ),
    "a tokenizer of another kind": (
        fields("tokenizer_config.json", eos_token=["x"]),
        "tokenizer_config.json: eos_token",
        "the text of a token",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_32_33_s12_s13_a_broken_folder_gets_one_sentence(
    generate: Run, broken: Path, name: str
) -> None:
    change, what, words = BROKEN[name]
    change(broken)
    done = generate([{"prompt": "a"}], using=broken)
    assert (done.status, done.rows, done.out) == (2, [], "")
    (sentence,) = done.err.splitlines()
    assert str(broken) in sentence
    assert what in sentence
    assert words in sentence
    assert len(sentence) < 1000
    assert not (broken / "ran").exists()


def test_32_weights_that_are_no_numbers_fail_rows_and_not_the_job(
    generate: Run, broken: Path
) -> None:
    tensors(lambda t: t["model.embed_tokens.weight"][7].fill_(torch.nan))(broken)
    done = generate([{"prompt_token_ids": [7, 8]}, {"prompt_token_ids": [8, 9]}], using=broken)
    assert (done.status, done.codes) == (3, ["nan_logits", None])


def test_33_many_positions_are_usable_as_far_as_asked(generate: Run, broken: Path) -> None:
    expected = generate([{"prompt": "abc"}]).rows
    fields(max_position_embeddings=2**27)(broken)
    done = generate([{"prompt": "abc"}], "--max-model-len", 64, using=broken)
    assert (done.status, done.rows) == (0, expected)


CODE = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nraise SystemExit(99)\n"


def test_33_s02_no_code_of_the_folder_runs(generate: Run, broken: Path) -> None:
    expected = generate([{"prompt": "a"}]).rows
    for name in ("evil.py", "modeling_llama.py", "tokenization_evil.py", "__init__.py"):
        (broken / name).write_text(CODE)
    fields(
        auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        _attn_implementation_internal="evil/kernel",
        architectures=["Evil"],
        trust_remote_code=True,
        custom_pipelines={"x": {"impl": "evil.Pipe"}},
    )(broken)
    fields(
        "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["tokenization_evil.Evil", None]},
        tokenizer_class="EvilTokenizer",
        trust_remote_code=True,
    )(broken)
    done = generate([{"prompt": "a"}], using=broken)
    assert (done.status, done.rows) == (0, expected)
    assert not (broken / "ran").exists()


@pytest.mark.parametrize("name", ["generate", "plan"])
def test_s02_trust_remote_code_is_answered(command: Run, tmp_path: Path, name: str) -> None:
    done = command(name, tmp_path / "in.jsonl", "--trust-remote-code")
    assert (done.status, done.out) == (2, "")
    assert "--trust-remote-code: pagedrun never runs code from a model folder" in done.err


def test_s09_ids_are_checked_from_python_too(model: Path) -> None:
    llm = LLM(model)
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=1, stop_token_ids=(320,))]
    for prompt, each in (([320], params[0]), ([-1], params[0]), ([5], params[1])):
        (completion,) = llm.generate([prompt], each)
        assert completion.error is not None
        assert completion.error.code == "token_id_out_of_range"


def test_35_what_stood_in_the_pool_before_does_not_matter(
    generate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block begins as NaN; with few blocks they are also used again and again."""
    rows = [{"prompt_token_ids": [number % 50 + 5] * (number + 1)} for number in range(40)]
    flags = ["--max-tokens", 8, "--ignore-eos", "--num-blocks", 24]
    expected = generate(rows, *flags).rows
    real = torch.empty
    poisoned = 0

    def empty(*size: Any, **options: Any) -> torch.Tensor:
        nonlocal poisoned
        tensor = real(*size, **options)
        if tensor.is_floating_point():
            poisoned += 1
            tensor.fill_(torch.nan)
        return tensor

    monkeypatch.setattr(torch, "empty", empty)
    done = generate(rows, *flags)
    assert poisoned
    assert (done.status, done.rows) == (0, expected)
