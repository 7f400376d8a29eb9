"""The prefix store: what one run leaves there spares the next one the work, and changes no byte."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun.paged.cache.prefix_store.entry import StoredPrefix, find_entries
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.listener import SilentListener
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.run_policy import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from tests.conftest import MakeModel
from tests.jsonl import write_jsonl
from tests.scheduling.admit_all import AdmitAll
from tests.whole.comparable import comparable_rows

PREFIX_TOKENS = 2003  # ends inside a block
POISON = 7  # the token whose embedding is NaN in a poisoned model


class Listener(SilentListener):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


class Ran:
    """A finished run: its answers without `cached_tokens`, its report, what it warned of."""

    def __init__(self, output: Path, report: dict[str, Any], warnings: list[str]) -> None:
        self.answers = comparable_rows(output)
        self.report = report
        self.store: dict[str, Any] = report.get("prefix_store", {})
        self.warnings = warnings


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(20, 256) for _ in range(count)]


def write_rows(path: Path, prompts: list[list[int]], **params: Any) -> Path:
    rows = ({"prompt_token_ids": prompt, "max_tokens": 6, **params} for prompt in prompts)
    return write_jsonl(path, rows)


def run(
    rows: Path, model: Path, store: Path | None, policy: RunPolicy = DEFAULT_POLICY, **engine: Any
) -> Ran:
    output = rows.with_suffix(".out.jsonl")
    listener = Listener()
    config = JobConfig(
        input=str(rows),
        output=str(output),
        engine=EngineConfig(model=model, prefix_store=store, **{"dtype": "float32", **engine}),
        ordered=True,
        overwrite=True,
    )
    result = run_job(config, listener, partial(LocalModel, policy=policy))
    return Ran(output, result.report, listener.warnings)


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    """Two layers that see differently far, as in the promise's own tests."""
    return make_model(
        "qwen3",
        "stored",
        dtype="bfloat16",
        use_sliding_window=True,
        sliding_window=150,
        max_window_layers=1,
        max_position_embeddings=2560,
    )


@pytest.fixture(scope="module")
def system() -> list[int]:
    return tokens(random.Random(1), PREFIX_TOKENS)


@pytest.fixture
def rows(tmp_path: Path, system: list[int]) -> Path:
    rng = random.Random(2)
    return write_rows(tmp_path / "rows.jsonl", [system + tokens(rng, 5 + i) for i in range(4)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="module")
def filled(
    model: Path, system: list[int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Ran]:
    """A store with the system prompt in it, and the run that put it there. Copy it to change it."""
    place = tmp_path_factory.mktemp("filled")
    rng = random.Random(2)
    rows = write_rows(place / "rows.jsonl", [system + tokens(rng, 5 + i) for i in range(4)])
    return place / "store", run(rows, model, place / "store")


@pytest.fixture
def copied(filled: tuple[Path, Ran], store: Path) -> Path:
    shutil.copytree(filled[0], store)
    return store


def test_nothing_is_kept_without_the_flag(rows: Path, model: Path, tmp_path: Path) -> None:
    ran = run(rows, model, None)
    assert "prefix_store" not in ran.report
    assert not [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_second_run_computes_no_token_of_the_prefix(
    dtype: str, rows: Path, model: Path, store: Path
) -> None:
    without = run(rows, model, None, dtype=dtype)
    first = run(rows, model, store, dtype=dtype)
    second = run(rows, model, store, dtype=dtype)
    assert first.answers == second.answers == without.answers
    assert first.store["stored_tokens"] == second.store["loaded_tokens"] == PREFIX_TOKENS
    assert first.store["loaded_tokens"] == second.store["stored_tokens"] == 0
    own = 5 + 6 + 7 + 8
    assert first.report["tokens"]["computed"] >= PREFIX_TOKENS + own
    assert second.report["tokens"]["computed"] == own
    prefix = second.report["prefix"]
    assert prefix["hit_rate"] == pytest.approx(prefix["achievable_hit_rate"])
    assert prefix["misses"] == 0
    assert prefix["partial_hit_tokens"] == 3 * (PREFIX_TOKENS % 16)  # copied by the other rows
    assert first.warnings == second.warnings == []


def test_it_is_private(filled: tuple[Path, Ran]) -> None:
    """Modes of the owner alone; nothing in the file is of a row itself."""
    store, _ = filled
    assert store.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.iterdir()} == {0o600}
    (path,) = find_entries(store)
    assert len(StoredPrefix.read(path).token_ids) == PREFIX_TOKENS
    kv = load_file(path)["kv"]
    assert kv[:, :, :-1].any(dim=-1).all()
    used = PREFIX_TOKENS % 16
    assert kv[:, :, -1, :, :used].any(dim=-1).all()
    assert not kv[:, :, -1, :, used:].any()


def test_another_file_with_the_same_prefix_finds_it(
    system: list[int], model: Path, copied: Path, tmp_path: Path
) -> None:
    """One row alone, rows that share less or more of it, and one that is the prefix itself."""
    rng = random.Random(3)
    for number, prompts in enumerate(
        (
            [system + tokens(rng, 3)],
            [system[:700] + tokens(rng, 3), system[:711] + tokens(rng, 30)],
            [system],
            [system[:-1]],
        )
    ):
        rows = write_rows(tmp_path / f"{number}.jsonl", prompts)
        expected, got = run(rows, model, None), run(rows, model, copied)
        assert got.answers == expected.answers
        assert got.store["loaded_tokens"] >= 700
        own = sum(len(prompt) for prompt in prompts) - got.report["tokens"]["cached"]
        assert own <= 50  # what is too little to be worth a file is computed
        assert got.report["prefix"]["hit_rate"] <= got.report["prefix"]["achievable_hit_rate"]
        assert got.store["stored_tokens"] == 0


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int((len(data) - 1) * place)] ^= 4
    path.write_bytes(data)


def flip_header(path: Path) -> None:
    """Change a token in the header, which stays JSON."""
    data = path.read_bytes()
    at = data.index(b"token_ids") + len(b'token_ids\\":[')
    digit = data[at]
    path.write_bytes(data[:at] + bytes([digit ^ 1]) + data[at + 1 :])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "bit in the length": lambda path: flip(path, 0.0),
    "token in the header": flip_header,
    "bit in the middle": lambda path: flip(path, 0.5),
    "bit at the end": lambda path: flip(path, 1.0),
    "cut in the header": lambda path: os.truncate(path, 100),
    "cut in the keys": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_told_of_once_and_never_used(
    damage: str, rows: Path, model: Path, copied: Path, filled: tuple[Path, Ran]
) -> None:
    (path,) = find_entries(copied)
    DAMAGES[damage](path)
    ran = run(rows, model, copied)
    assert ran.answers == filled[1].answers
    assert ran.store["loaded_tokens"] == 0
    assert ran.store["ignored_files"] == 1
    (warning,) = ran.warnings
    assert path.name in warning
    assert "damaged" in warning
    assert str(copied) in warning
    again = run(rows, model, copied)  # the first one has put a good one in its place
    assert again.store["loaded_tokens"] == PREFIX_TOKENS
    assert again.warnings == []


@pytest.mark.parametrize(
    ("what", "change"),
    [("--dtype", {"dtype": "bfloat16"}), ("--block-size", {"block_size": 32}), ("weights", {})],
)
def test_what_is_of_another_model_is_told_of_once_and_never_used(
    what: str,
    change: dict[str, Any],
    rows: Path,
    model: Path,
    copied: Path,
    filled: tuple[Path, Ran],
    tmp_path: Path,
) -> None:
    other = model
    if not change:
        other = tmp_path / "other"
        shutil.copytree(model, other)
        tensors = load_file(other / "model.safetensors")
        tensors["model.layers.0.self_attn.k_proj.weight"][0, 0] += 1
        save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    expected = run(rows, other, None, **change)
    got = run(rows, other, copied, **change)
    assert got.answers == expected.answers
    assert got.store["loaded_tokens"] == 0
    (warning,) = got.warnings
    assert what in warning
    both = run(rows, other, copied, **change)  # now the store has both
    assert both.store["loaded_tokens"] == PREFIX_TOKENS
    assert both.warnings == []
    assert run(rows, model, copied).store["loaded_tokens"] == PREFIX_TOKENS


def test_a_file_under_another_models_name_is_not_believed(
    rows: Path, model: Path, copied: Path, filled: tuple[Path, Ran]
) -> None:
    before = set(find_entries(copied))
    run(rows, model, copied, block_size=32)
    (other,) = set(find_entries(copied)) - before
    (ours,) = before
    other.rename(other.with_name(ours.name[:16] + other.name[16:]))
    ours.unlink()
    ran = run(rows, model, copied)
    assert ran.answers == filled[1].answers
    assert ran.store["loaded_tokens"] == 0
    (warning,) = ran.warnings
    assert "another model" in warning


@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 37},
        {"num_blocks": 130},
        {"num_blocks": 130, "preemption_mode": "recompute"},
        {"num_blocks": 130, "swap_space_bytes": 0},
        {"prefix_once": False},
    ],
    ids=str,
)
def test_whatever_the_pool_the_bytes_are_the_same(
    engine: dict[str, Any],
    rows: Path,
    model: Path,
    copied: Path,
    filled: tuple[Path, Ran],
) -> None:
    # Where blocks are few whoever fits is let in, so that somebody must give way.
    policy = RunPolicy(AdmitAll) if "num_blocks" in engine else DEFAULT_POLICY
    ran = run(rows, model, copied, policy, **engine)
    assert ran.answers == filled[1].answers
    assert ran.store["loaded_tokens"] >= PREFIX_TOKENS
    assert ran.report["prefix"]["hit_rate"] <= ran.report["prefix"]["achievable_hit_rate"]


def nested(rng: random.Random) -> list[list[int]]:
    company = tokens(rng, 270)
    tasks = [company + tokens(rng, 150) for _ in range(3)]
    prompts = [task + tokens(rng, rng.randrange(1, 40)) for task in tasks for _ in range(4)]
    prompts += [company + tokens(rng, 9), tokens(rng, 200), tokens(rng, 30)]
    return prompts


@pytest.mark.parametrize("engine", [{}, {"num_blocks": 60, "max_num_seqs": 3}], ids=str)
def test_nested_prefixes_and_windows(
    engine: dict[str, Any], model: Path, store: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """A part that several prefixes begin with is stored once; windows change nothing of it."""
    rows = write_rows(
        tmp_path / "rows.jsonl", nested(random.Random(4)), temperature=0.8, n=2, seed=5
    )
    expected = run(rows, model, None)
    monkeypatch.setattr("pagedrun.paged.job.windows.WINDOW_ROWS", 5)
    first, second = run(rows, model, store, **engine), run(rows, model, store, **engine)
    assert first.answers == second.answers == expected.answers
    distinct = 270 + 3 * 150
    # A tail that several pieces begin with stands in each of them.
    assert distinct <= first.store["stored_tokens"] <= distinct + 3 * 16
    assert second.store["loaded_tokens"] >= distinct
    assert second.store["stored_tokens"] == 0
    assert second.report["tokens"]["computed"] < first.report["tokens"]["computed"] - 600
    assert second.report["prefix"]["hit_rate"] <= second.report["prefix"]["achievable_hit_rate"]


def test_pieces_of_a_long_prefix_are_as_good_as_the_whole(
    rows: Path, model: Path, store: Path, filled: tuple[Path, Ran], monkeypatch: Any
) -> None:
    """Where one piece is damaged what stands before it is used, and it is stored again."""
    monkeypatch.setattr("pagedrun.paged.cache.prefix_store.stored_prefixes.MAX_ENTRY_BYTES", 2**18)
    run(rows, model, store)
    pieces = {StoredPrefix.read(path).start: path for path in find_entries(store)}
    assert len(pieces) == 4
    assert run(rows, model, store).report["tokens"]["computed"] == 26
    flip(pieces[512], 0.7)
    ran = run(rows, model, store)
    assert ran.answers == filled[1].answers
    assert ran.store["loaded_tokens"] == 512
    assert len(ran.warnings) == 1
    assert run(rows, model, store).report["tokens"]["computed"] == 26


def test_what_belongs_to_one_row_is_never_stored(
    system: list[int], model: Path, store: Path, tmp_path: Path
) -> None:
    """Several samples of one prompt, the same prompt twice, and too little in common."""
    rng = random.Random(6)
    alone = tokens(rng, 300)
    short = tokens(rng, 63)
    prompts = [alone, alone, tokens(rng, 300), short + tokens(rng, 80), short + tokens(rng, 90)]
    for params in ({}, {"n": 3, "temperature": 1.0, "seed": 1}):
        rows = write_rows(tmp_path / "rows.jsonl", prompts, **params)
        ran = run(rows, model, store)
        assert ran.store["stored_tokens"] == (0 if not params else 300)
    (path,) = find_entries(store)  # asked twice and answered differently: two rows share it
    assert StoredPrefix.read(path).token_ids == tuple(alone)


def test_the_store_stays_below_its_limit_and_the_last_used_stays(
    model: Path, store: Path, tmp_path: Path
) -> None:
    rng = random.Random(7)
    files = []
    for number in range(3):
        prefix = tokens(rng, 320)
        prompts = [prefix + tokens(rng, 5) for _ in range(2)]
        files.append(write_rows(tmp_path / f"{number}.jsonl", prompts))
    run(files[0], model, store)
    (one,) = (path.stat().st_size for path in find_entries(store))
    limit = int(2.5 * one)
    for rows in (files[1], files[0], files[2]):
        run(rows, model, store, prefix_store_bytes=limit)
        assert sum(path.stat().st_size for path in find_entries(store)) <= limit
    found = [run(rows, model, store).store["loaded_tokens"] for rows in (files[0], files[2])]
    assert found == [320, 320]
    assert run(files[1], model, store).store["loaded_tokens"] == 0
    assert run(files[1], model, store, prefix_store_bytes=one // 2).store["stored_tokens"] == 0


def test_a_full_disk_costs_a_warning(
    rows: Path, model: Path, store: Path, filled: tuple[Path, Ran], monkeypatch: Any
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pagedrun.paged.cache.prefix_store.folder.replace_file", full)
    ran = run(rows, model, store)
    assert ran.answers == filled[1].answers
    (warning,) = ran.warnings
    assert "No space left" in warning
    assert ran.store["stored_tokens"] == 0
    assert not find_entries(store)


def test_a_disk_that_is_nearly_full_is_left_to_the_answers(
    rows: Path, model: Path, store: Path, monkeypatch: Any
) -> None:
    class Usage:
        total, free = 2**40, 2**30

    monkeypatch.setattr(
        "pagedrun.paged.cache.prefix_store.folder.shutil.disk_usage", lambda _: Usage
    )
    ran = run(rows, model, store)
    assert len(ran.warnings) == 1
    assert not find_entries(store)


def test_nan_is_never_stored(model: Path, store: Path, system: list[int], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(model, bad)
    tensors = load_file(bad / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
    prompts = [[*system[:200], POISON, *system[:30], 30 + each] for each in range(3)]
    prompts += [[*system[500:700], 30 + each] for each in range(3)]
    ran = run(write_rows(tmp_path / "rows.jsonl", prompts), bad, store)
    assert [json.loads(row)["error"] is not None for row in ran.answers][:3] == [True] * 3
    assert ran.store["stored_tokens"] == 200
    (path,) = find_entries(store)
    assert StoredPrefix.read(path).token_ids == tuple(system[500:700])


@pytest.fixture
def two_at_once(rows: Path, model: Path, store: Path) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "pagedrun", "generate", str(rows), "--model", str(model)]
    command += ["--prefix-store", str(store), "--dtype", "float32", "--quiet", "--overwrite"]
    runs = [
        subprocess.Popen(
            [*command, "--ordered", "-o", str(rows.with_name(f"{number}.jsonl"))],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    yield runs
    for each in runs:
        each.kill()
        each.communicate()


def test_two_runs_at_once(
    two_at_once: list[subprocess.Popen[str]],
    rows: Path,
    model: Path,
    store: Path,
    filled: tuple[Path, Ran],
) -> None:
    for number, each in enumerate(two_at_once):
        _, told = each.communicate(timeout=240)
        assert each.returncode == 0, told
        assert told == ""
        report = json.loads(rows.with_name(f"{number}.jsonl.report.json").read_text())
        assert Ran(rows.with_name(f"{number}.jsonl"), report, []).answers == filled[1].answers
    assert run(rows, model, store).store["loaded_tokens"] == PREFIX_TOKENS
    assert len(find_entries(store)) == 1  # the same bytes have the same name


def test_folders_that_are_refused(rows: Path, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for folder, why in (
        (file, "not a folder"),
        (other, "other things"),
        (open_to_all, "by everybody"),
        (tmp_path / "no" / "parent", "cannot be used"),
    ):
        with pytest.raises(UsageError, match=why):
            run(rows, model, folder)
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    with pytest.raises(UsageError, match="prefix_caching=False"):
        run(rows, model, tmp_path / "store", prefix_caching=False)
