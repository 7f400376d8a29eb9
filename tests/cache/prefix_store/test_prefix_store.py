"""The parts of the prefix store: the index, the choice, the digests, the folder, the listing."""

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from pagedrun.kernels.ops import Backend
from pagedrun.paged.cache.block_pool import BlockTransfer, TransferKind
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVMemory
from pagedrun.paged.cache.prefix_store.entry import (
    DamagedEntryError,
    StoredPrefix,
    StoreIdentity,
    find_entries,
)
from pagedrun.paged.cache.prefix_store.folder import MEMORY, StoreFolder, stamps, weights_digest
from pagedrun.paged.cache.prefix_store.listing import StoreListing
from pagedrun.paged.cache.prefix_store.store_files import PrefixIndex, StoreFiles, is_finite
from pagedrun.paged.execution.device import Device
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.prefix_reuse import StoreRoom, tokens_to_store
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.planned_request import ROOT_DIGEST, BlockKey
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

SIZE = 4
TOO_DEEP = "[" * 100_000 + "]" * 100_000
IDENTITY = StoreIdentity("a-model", {"block_size": SIZE, "kv_dtype": "float32", "weights": "w"})


def entry(prompt: list[int], start: int = 0) -> StoredPrefix:
    keys = BlockKey.chain(prompt[:start], SIZE)
    parent = keys[-1].digest if keys else ROOT_DIGEST
    return StoredPrefix(IDENTITY, parent, start, tuple(prompt[start:]))


def num_common(one: list[int], two: list[int]) -> int:
    count = 0
    while count < min(len(one), len(two)) and one[count] == two[count]:
        count += 1
    return count


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)


@settings(deadline=None)
@given(st.lists(prompts, max_size=6), prompts)
@example([[0, 0, 0, 0, 1, 1]], [0, 0, 0, 1, 1])  # goes on as what is behind half a block
def test_the_index_finds_the_longest_stored_beginning(
    stored: list[list[int]], prompt: list[int]
) -> None:
    index = PrefixIndex(SIZE)
    for number, each in enumerate(stored):
        index.add(str(number), entry(each))
    for begin in range(0, len(prompt), SIZE):
        keys = BlockKey.chain(prompt[:begin], SIZE)
        parent = keys[-1].digest if keys else ROOT_DIGEST
        matches = index.matches(prompt, begin, parent)
        longest = max((num_common(each, prompt) for each in stored), default=0)
        assert sum(match.num_tokens for match in matches) == max(longest - begin, 0)
        for place, match in enumerate(matches):
            start = begin + place * SIZE
            given = match.block.token_ids[: match.num_tokens]
            assert given == tuple(prompt[start : start + match.num_tokens])
            owner = stored[int(match.block.file_name)]
            assert owner[: start + match.num_tokens] == prompt[: start + match.num_tokens]
    for number in range(len(stored)):
        index.drop(str(number))
    assert index.matches(prompt, 0, ROOT_DIGEST) == []


def plan_of(prompts: list[list[int]]) -> Plan:
    requests = [
        Request(index, tuple(prompt), SamplingParams(max_tokens=2, n=1 + index % 2))
        for index, prompt in enumerate(prompts)
    ]
    return Plan(requests, PlanRules(16))


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 2**16), st.sampled_from((0, 60, 90, 150, 300, 2000)), st.sampled_from((0, 50))
)
def test_what_is_chosen_is_shared_by_rows_and_fits(
    seed: int, max_tokens: int, tokens_per_state: int
) -> None:
    rng = random.Random(seed)
    stems = [[rng.randrange(50) for _ in range(100)] for _ in range(3)]
    prompts = []
    for number in range(rng.randrange(1, 20)):
        stem = rng.choice(stems)
        cut = rng.choice((20, 70, 100))
        prompts.append([*stem[:cut], 100 + number, *(rng.randrange(50) for _ in range(99))])
    plan = plan_of(prompts)
    room = StoreRoom(max_tokens, tokens_per_state)
    chosen = tokens_to_store(plan.tree.common, room).tolist()
    stored, ends = set(), set()
    for sequence, num_tokens in zip(plan, chosen, strict=True):
        begin = sequence.request.prompt_token_ids[:num_tokens]
        assert num_tokens == 0 or num_tokens >= 64
        if num_tokens:
            assert sum(tuple(each[:num_tokens]) == begin for each in prompts) >= 2
            ends.add(begin)
        stored |= {begin[:end] for end in range(1, num_tokens + 1)}
    assert len(stored) + tokens_per_state * len(ends) <= max_tokens
    pairs = itertools.combinations(prompts, 2)
    if max_tokens == 2000 and any(num_common(*pair) >= 64 for pair in pairs):
        assert any(chosen)


class TestWeightDigests:
    def write(self, folder: Path, data: bytes) -> list[Path]:
        path = folder / "model.safetensors"
        path.write_bytes(data)
        return [path]

    def make_old(self, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
        """Let so much time pass that the files count as settled."""
        now = time.time_ns()
        monkeypatch.setattr(
            "pagedrun.paged.cache.prefix_store.folder.time.time_ns", lambda: now + 10**10
        )

    def test_a_file_is_read_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = self.write(tmp_path, b"one")
        self.make_old(files, monkeypatch)
        first = weights_digest(tmp_path, files)
        monkeypatch.setattr("pagedrun.paged.cache.prefix_store.folder._digest", None)
        assert weights_digest(tmp_path, files) == first
        assert (tmp_path / MEMORY).stat().st_mode & 0o777 == 0o600

    def test_other_contents_of_the_same_size_and_time_are_noticed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = self.write(tmp_path, b"one")
        self.make_old(files, monkeypatch)
        first, before = weights_digest(tmp_path, files), stamps(files)
        state = files[0].stat()
        while files[0].stat().st_ctime_ns == state.st_ctime_ns:  # the file system's clock ticks
            files[0].write_bytes(b"two")
            os.utime(files[0], ns=(state.st_atime_ns, state.st_mtime_ns))
        assert stamps(files) != before
        assert weights_digest(tmp_path, files) != first

    def test_a_file_that_was_just_written_is_not_remembered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = self.write(tmp_path, b"one")
        now = files[0].stat().st_ctime_ns
        monkeypatch.setattr(
            "pagedrun.paged.cache.prefix_store.folder.time.time_ns", lambda: now + 10**9
        )
        weights_digest(tmp_path, files)
        assert json.loads((tmp_path / MEMORY).read_text()) == {}

    @pytest.mark.parametrize(
        "memory", ["", "[]", '{"a": 1}', "\x00", '{"x": [1, 2, 3, 4, 5]}', TOO_DEEP]
    )
    def test_a_damaged_memory_is_forgotten(self, memory: str, tmp_path: Path) -> None:
        files = self.write(tmp_path, b"one")
        expected = weights_digest(tmp_path, files)
        (tmp_path / MEMORY).write_text(memory)
        assert weights_digest(tmp_path, files) == expected


SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=8, dtype="int8")
HOST = Device(torch.device("cpu"), Backend(), async_scheduling=False)


@pytest.mark.parametrize("codes", ["int8", "float8_e4m3fn"])
def test_a_quantized_block_comes_back_with_its_scales(codes: str) -> None:
    """Byte by byte, NaN among them: little else can be done with float8."""
    caches = [KVMemory(replace(SPEC, dtype=codes), SIZE, 6, 0, HOST) for _ in range(2)]
    for pool, _ in itertools.chain(*(cache._memories for cache in caches)):
        bits = pool.view(torch.uint8)
        bits.copy_(torch.randint(256, bits.shape))
    one, two = caches
    read = one.read([4, 1, 2])
    assert [(tuple(each.shape), each.dtype) for each in read] == one.shapes(3)
    before = two.read(range(6))
    sources = [two.stage(read, position) for position in (2, 0)]
    two.transfer(
        [
            BlockTransfer(TransferKind.LOAD, sources[0], 5),
            BlockTransfer(TransferKind.LOAD, sources[1], 0),
            BlockTransfer(TransferKind.COPY, 0, 3),
        ]
    )
    every = two.read(range(6)), before, one.read(range(6))
    for tensors in zip(*every, strict=True):
        after, expected, given = (each.view(torch.uint8) for each in tensors)
        for target, source in ((5, 2), (0, 4), (3, 4)):
            expected[:, :, target] = given[:, :, source]
        assert torch.equal(after, expected)


def put(folder: StoreFolder, prompt: list[int], start: int = 0, identity: Any = IDENTITY) -> Path:
    piece = replace(entry(prompt, start), identity=identity)
    data = save({"kv": torch.ones(1, 2, 3, 1, SIZE, 2)}, metadata=piece.metadata())
    folder.write(piece.file_name(data), data)
    return folder.path / piece.file_name(data)


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolder:
    return StoreFolder.open(tmp_path / "store")


def test_the_parts_of_a_prefix_keep_their_order(folder: StoreFolder) -> None:
    prompt = list(range(40))
    parts = [put(folder, prompt[: start + 4], start) for start in range(0, 40, 4)]
    for noting in (folder.date, folder.note_use):
        noting([path.name for path in parts])
        assert [use.path for use in folder.uses()] == parts[::-1]


def test_a_header_that_is_nested_too_deep_is_damage(folder: StoreFolder) -> None:
    header = TOO_DEEP.encode()
    path = put(folder, [1] * 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedEntryError, match="header cannot be read"):
        StoredPrefix.read(path)
    assert StoreListing.read(folder.path).to_dict()["damaged"] == 1


def test_tensors_that_cannot_be_read_are_damage(folder: StoreFolder) -> None:
    """A file with the name of its bytes may still be of tensors that there are not."""
    piece, warnings = entry([1] * 8), list[str]()
    data = save({"kv": torch.ones(2)}, metadata=piece.metadata()).replace(b'"F32"', b'"F99"')
    name = piece.file_name(data)
    folder.write(name, data)
    files = StoreFiles(folder, PrefixIndex(SIZE), 10**6, warnings.append)
    assert files.read(name, lambda entry, tensors: None) is None
    assert len(warnings) == 1
    assert "tensors cannot be read" in warnings[0]


@pytest.mark.parametrize("bad", ["kv", "scales", "kv.1"])
def test_nan_in_one_of_several_tensors_is_not_stored(bad: str, folder: StoreFolder) -> None:
    files = StoreFiles(folder, PrefixIndex(SIZE), 10**6, pytest.fail)
    tensors = {
        "kv": torch.ones(2, 3),
        "scales": torch.ones(2, 1),
        "kv.1": torch.ones(3, dtype=torch.bfloat16),
    }
    tensors[bad].view(-1)[-1] = torch.nan
    assert files.write(entry([1] * 8), tensors) is None
    assert find_entries(folder.path) == []
    tensors[bad].view(-1)[-1] = 1
    assert files.write(entry([1] * 8), tensors) is not None
    assert len(find_entries(folder.path)) == 1


def test_a_run_uses_a_file_once_however_many_rows_begin_with_it(folder: StoreFolder) -> None:
    prompt = list(range(12))
    head, tail = put(folder, prompt[:8]), put(folder, prompt, 8)
    for num_runs in (1, 2):
        files = StoreFiles(folder, PrefixIndex(SIZE), 10**6, pytest.fail)
        for names in ([head.name], [head.name, tail.name], [head.name]):
            files.note_use(names)
        assert [use.num_uses for use in folder.uses()] == [num_runs] * 2


def test_trimming_takes_the_end_of_a_prefix_before_its_beginning(folder: StoreFolder) -> None:
    prompt = list(range(12))
    head, tail = put(folder, prompt[:8]), put(folder, prompt, 8)
    other = put(folder, [7] * 8)
    folder.date([head.name, tail.name])
    folder.note_use([other.name])
    assert [use.path for use in folder.uses()] == [tail, head, other]
    assert [use.num_uses for use in folder.uses()] == [0, 0, 1]
    size = folder.num_bytes()
    assert [use.path for use in folder.trim(size - 1)] == [tail]
    assert [use.path for use in folder.trim(0)] == [head, other]
    assert find_entries(folder.path) == []
    assert not list(folder.path.glob("*.uses"))


def test_any_number_may_write_read_and_trim(folder: StoreFolder) -> None:
    """Whoever finds an entry finds it whole, or gone."""
    failures: list[BaseException] = []
    until = time.monotonic() + 1.0

    def work(seed: int) -> None:
        rng = random.Random(seed)
        other = StoreFolder.open(folder.path)
        try:
            while time.monotonic() < until:
                put(other, [rng.randrange(3)] * 8)
                other.note_use([path.name for path in other.entries()])
                for path in other.entries():
                    try:
                        StoredPrefix.verified(path.read_bytes(), path.name)
                        StoredPrefix.read(path)
                    except FileNotFoundError:
                        continue
                other.trim(rng.choice((0, 2000, 10**6)))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert failures == []


@pytest.mark.parametrize("moment", ["os.fsync", "os.replace"])
def test_killed_while_storing_nothing_is_left_that_is_used(
    moment: str, folder: StoreFolder
) -> None:
    script = f"""
import os, signal
from pathlib import Path
import pagedrun.paged.files.atomic
from pagedrun.paged.cache.prefix_store.folder import StoreFolder
{moment} = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
StoreFolder.open(Path({str(folder.path)!r})).write("0" * 16 + "-" + "0" * 64 + ".safetensors", b"x")
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=240)
    assert done.returncode == -9
    assert find_entries(folder.path) == []
    (remains,) = folder.path.glob(".*.tmp")
    folder.trim(10**9)
    assert remains.exists()  # its writer may be alive
    os.utime(remains, (time.time() - 7200,) * 2)
    folder.trim(10**9)
    assert not remains.exists()


def test_links_and_other_kinds_of_files_are_no_entries(folder: StoreFolder, tmp_path: Path) -> None:
    path = put(folder, [1] * 8)
    name = path.name[:-13]
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    os.mkfifo(folder.path / f"{name[:-1]}0.safetensors")
    (folder.path / f"{name[:-1]}1.safetensors").mkdir()
    (folder.path / "model.safetensors").write_bytes(b"mine")
    assert find_entries(folder.path) == []
    folder.trim(0)
    assert (folder.path / "model.safetensors").exists()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_run_trusts_no_folder_that_everybody_may_write_to(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(UsageError, match="chmod o-w"):
        StoreFolder.open(path)
    assert list(path.iterdir()) == []
    path.chmod(mode & ~0o002)
    StoreFolder.open(path)
    path.chmod(mode)
    StoreFolder.open(path, create=False)  # it can be listed and pruned


class TestListing:
    def test_it_tells_what_is_there_and_what_is_wrong(self, folder: StoreFolder) -> None:
        prompt = list(range(18))
        head, middle = put(folder, prompt[:8]), put(folder, prompt[:12], 8)
        tail, other = put(folder, prompt, 12), put(folder, [3] * 10)
        folder.note_use([other.name])
        found = {each["file"]: each for each in StoreListing.read(folder.path).to_dict()["entries"]}
        assert next(iter(found)) == other.name
        assert [found[path.name]["start"] for path in (head, middle, tail)] == [0, 8, 12]
        assert [found[path.name]["tokens"] for path in (head, middle, tail, other)] == [8, 4, 6, 10]
        assert {each["problem"] for each in found.values()} == {None}
        assert found[other.name]["uses"] == 1
        data = bytearray(middle.read_bytes())
        data[-1] ^= 1
        middle.write_bytes(data)
        assert StoreListing.read(folder.path).to_dict()["damaged"] == 0  # bytes are not all read
        pruned = StoreListing.pruned(folder.path, None)
        # What follows the damaged piece can be reached by nobody.
        assert {each.use.path for each in pruned.removed} == {middle, tail}
        assert find_entries(folder.path) == sorted([head, other])
        os.truncate(head, 50)
        listing = StoreListing.read(folder.path).to_dict()
        assert listing["damaged"] == 1
        assert (listing["tokens"], listing["bytes"]) == (10, 50 + other.stat().st_size)

    def test_pruned_to_a_size_the_last_used_stays(self, folder: StoreFolder) -> None:
        one, two = put(folder, [1] * 8), put(folder, [2] * 8)
        folder.note_use([one.name])
        pruned = StoreListing.pruned(folder.path, one.stat().st_size)
        assert [each.use.path for each in pruned.removed] == [two]
        assert [each.use.path for each in pruned.entries] == [one]

    def test_what_is_no_store_is_refused_and_stays(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="not a prefix store"):
            StoreListing.pruned(tmp_path, 0)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(UsageError, match="cannot be used"):
            StoreListing.read(tmp_path / "gone")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_noticed_anywhere(dtype: torch.dtype, bad: float) -> None:
    tensor = torch.randn(2, 2, 3, 2, 4, 8).to(dtype)
    assert is_finite(tensor)
    for place in (0, 401, tensor.numel() - 1):
        other = tensor.clone()
        other.view(-1)[place] = bad
        assert not is_finite(other)


def test_every_number_of_a_quantised_cache_but_nan_is_finite() -> None:
    for each in range(256):
        tensor = torch.tensor([0, each, 0], dtype=torch.uint8)
        assert is_finite(tensor.view(torch.int8))
        fp8 = tensor.view(torch.float8_e4m3fn)
        assert is_finite(fp8) == bool(fp8.float().isfinite().all())
