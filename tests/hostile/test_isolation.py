"""What the program never does, whatever it is given: requirements S1, S5 to S7, S10, S14, S16."""

import ast
import json
import os
import stat
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagedrun
from pagedrun.kernels.environment.code_folder import keep_code_private, private_folder
from pagedrun.paged.values.errors import RowError

Run = Callable[..., Any]
PACKAGE = Path(pagedrun.__file__ or "").parent
SOURCES = sorted(
    path
    for folder in ("cli", "paged", "kernels", "recipes")
    for path in (PACKAGE / folder).resolve().rglob("*.py")
)
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "pickletools"}
LISTENERS = {"socketserver", "http.server", "asyncio", "uvicorn", "flask", "prometheus_client"}
RUNS_CODE = {"eval", "exec", "__import__", "import_module", "run_path", "run_module"}


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in SOURCES]


def nodes_of(kind: type[ast.AST]) -> Iterator[tuple[Path, Any]]:
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield path, node


def imported() -> set[tuple[str, str]]:
    """Return each module that is imported, and the name of the file that does it."""
    names = {(alias.name, path.name) for path, node in nodes_of(ast.Import) for alias in node.names}
    return names | {(node.module or "", path.name) for path, node in nodes_of(ast.ImportFrom)}


@pytest.mark.heavy("a promise of SECURITY.md: all imports of a run")
def test_s01_s20_nothing_that_unpickles_or_listens_is_imported() -> None:
    found = imported()
    assert {"torch", "safetensors", "json"} <= {name for name, _ in found}  # the walk sees them
    refused = PICKLES | LISTENERS | {"socket", "xmlrpc", "ftplib", "requests"}
    assert {each for each in found if each[0] in refused} == {
        ("pickle", "ray_actor.py"),  # of messages between Ray's processes, all of which are pickles
        ("socket", "ray_cluster.py"),  # to see whether a cluster answers
    }


def test_s01_s02_nothing_is_called_that_runs_what_it_reads() -> None:
    for path, node in nodes_of(ast.Call):
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        assert name not in {"torch.load", "torch.jit.load", "torch.hub.load", "torch.save"}
        assert name not in {"yaml.load", "yaml.full_load", "yaml.unsafe_load"}
        assert name not in RUNS_CODE
        assert last not in RUNS_CODE - {"eval", "exec"}  # torch has a method `eval`
        # It picks classes by names that the folder gives. Those that remain compare with
        # Transformers after training the demo, and fill a class of its own with tensors.
        assert last != "from_pretrained" or path.as_posix().endswith(
            ("training/evaluate.py", "transformers_backend/model.py")
        )
        given = {word.arg: word.value for word in node.keywords}
        for word in ("allow_pickle", "trust_remote_code"):
            assert word not in given or ast.unparse(given[word]) == "False"


class Unpickled:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self._path),)


def test_s01_a_recording_with_a_pickle_in_it_is_refused(
    generate: Run, command: Run, tmp_path: Path
) -> None:
    generate([{"prompt": "a"}])
    trap = np.array([Unpickled(tmp_path / "ran")], dtype=object)
    np.savez(tmp_path / "out.jsonl.snapshot.npz", facts=trap)
    done = command("inspect-cache", tmp_path / "out.jsonl")
    assert (done.status, done.out) == (2, "")
    assert "out.jsonl.snapshot.npz is not a snapshot" in done.err
    assert not (tmp_path / "ran").exists()


def test_s05_s06_no_key_of_a_cache_is_a_weak_hash() -> None:
    """Blocks are found by their tokens and the block before; digests are SHA-256 or BLAKE2b."""
    assert {name for name, _ in imported()} & {"xxhash", "mmh3"} == set()
    for path, node in nodes_of(ast.Call):
        name = ast.unparse(node.func)
        assert name not in {"hashlib.md5", "hashlib.sha1"}
        # One weighs orders of a template's parts, to advise the user; one seeds random weights.
        assert name != "hash" or path.name == "template_advice.py"
        # Packed weights have checksums against damage.
        allowed = {"checkpoint.py", "packed_folder.py", "weight_ring.py"}
        assert name != "zlib.crc32" or path.name in allowed


def test_s07_a_run_leaves_its_answers_and_what_is_documented(generate: Run, tmp_path: Path) -> None:
    assert generate([{"prompt": "a"}]).status == 0
    left = {path.name for path in tmp_path.iterdir()}
    assert left - {"out.jsonl.snapshot.npz"} == {
        "in.jsonl",
        "out.jsonl",
        "out.jsonl.digests",
        "out.jsonl.report.json",
        "out.jsonl.run.json",
    }


def test_s10_a_message_is_short_whatever_it_is_about(generate: Run) -> None:
    long = "\U0001f600" * 100_000
    rows = [
        {"prompt": "a", "sampling_params": {long: 1}},
        {"prompt": "a", "stop": long},
        {"prompt": "a", "id": long},
        {"messages": [{"role": long, "content": "a"}]},
        {"messages": [{"role": "user", "content": [{long: 1}]}]},
    ]
    done = generate(rows)
    assert done.status == 3
    assert None not in done.codes
    for row in done.rows:
        assert len(json.dumps(row["error"], ensure_ascii=False).encode()) < 1200
    error = RowError("code", long + "\ud800")
    assert len(error.message.encode()) == RowError.MAX_MESSAGE


def test_s14_rich_is_never_given_markup() -> None:
    """Every console takes text as it is."""
    consoles = [node for _, node in nodes_of(ast.Call) if ast.unparse(node.func) == "Console"]
    assert consoles
    for node in consoles:
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        assert {given.get(name) for name in ("markup", "emoji", "highlight")} == {"False"}
    names = {ast.unparse(node.func) for _, node in nodes_of(ast.Call)}
    assert not any(name.endswith("from_markup") for name in names)


class TestCodeFolder:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        return tmp_path / "cache"

    def test_s16_compiled_code_is_kept_where_nobody_else_writes(self, home: Path) -> None:
        mask = os.umask(0)
        try:
            keep_code_private()
        finally:
            os.umask(mask)
        folder = Path(os.environ.pop("TRITON_CACHE_DIR"))
        assert folder == home / "pagedrun" / "triton"
        assert {stat.S_IMODE(p.stat().st_mode) for p in (folder, folder.parent)} == {0o700}

    def test_s16_what_the_user_set_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
        keep_code_private()
        assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere"

    def test_s16_without_a_place_beside_the_source_numba_gets_one(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "pagedrun.kernels.environment.code_folder.os.access", lambda path, mode: False
        )
        monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
        keep_code_private()
        assert os.environ.pop("NUMBA_CACHE_DIR") == str(home / "pagedrun" / "numba")

    @pytest.mark.parametrize("mode", [0o777, 0o770])
    def test_s16_a_folder_that_others_may_write_to_is_not_used(self, home: Path, mode: int) -> None:
        folder = private_folder("triton")
        assert folder is not None
        folder.chmod(mode)
        assert private_folder("triton") is None

    def test_s16_nor_a_link_nor_somebody_elses(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (home / "pagedrun").mkdir(parents=True, mode=0o700)
        (home / "pagedrun" / "triton").symlink_to(home)
        assert private_folder("triton") is None
        assert private_folder("numba") is not None
        real = os.geteuid()
        monkeypatch.setattr("pagedrun.kernels.environment.code_folder.os.geteuid", lambda: real + 1)
        assert private_folder("numba") is None
