"""Inputs that are odd files, outputs that must not be written, and odd surroundings: 27, 28, 31."""

import fcntl
import gzip
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
ROW = b'{"prompt":"a"}\n'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(ROW)
    return path


def make_output(kind: str, folder: Path, source: Path) -> Path:
    """Return an output path of this kind."""
    path = folder / "out.jsonl"
    if kind == "the input":
        return source
    if kind == "a link to the input":
        path.symlink_to(source)
    elif kind == "the input by a second name":
        os.link(source, path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a dangling link":
        path.symlink_to(folder / "nothing")
    elif kind == "in a missing folder":
        return folder / "missing" / "out.jsonl"
    elif kind == "an existing file":
        path.write_text("precious")
    return path


OUTPUTS = {
    "the input": "is the input itself",
    "a link to the input": "is the input itself",
    "the input by a second name": "is the input itself",
    "a folder": "is a folder",
    "a pipe": "is a pipe",
    "a dangling link": "is a broken link",
    "in a missing folder": "the folder does not exist",
    "an existing file": "exists; pass --resume",
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_27_an_output_that_must_not_be_written(
    command: Run, model: Path, tmp_path: Path, source: Path, kind: str
) -> None:
    output = make_output(kind, tmp_path, source)
    before = {path.name for path in tmp_path.iterdir()}
    done = command("generate", source, "-o", output, "--model", model, "--quiet")
    assert (done.status, done.out) == (2, "")
    assert str(output) in done.err
    assert OUTPUTS[kind] in done.err
    assert len(done.err.splitlines()) == 1
    assert source.read_bytes() == ROW
    assert {path.name for path in tmp_path.iterdir()} == before
    if kind == "an existing file":
        assert output.read_text() == "precious"


def test_27_the_output_of_a_run_that_goes_on(
    command: Run, model: Path, tmp_path: Path, source: Path
) -> None:
    output = tmp_path / "out.jsonl"
    with output.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        args = ["generate", source, "-o", output, "--model", model, "--quiet", "--overwrite"]
        done = command(*args)
        assert done.status == 2
        assert f"another run is writing to {output}" in done.err
    assert command(*args).status == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_27_a_folder_without_permission(
    command: Run, model: Path, tmp_path: Path, source: Path
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(0o500)
    done = command("generate", source, "-o", folder / "out.jsonl", "--model", model, "--quiet")
    assert done.status == 2
    assert "Permission denied" in done.err


def test_27_a_full_device_stops_the_job(command: Run, model: Path, source: Path) -> None:
    done = command("generate", source, "-o", "/dev/full", "--model", model, "--quiet")
    assert done.status == 4
    assert "/dev/full can no longer be written (No space left on device" in done.err


def test_s19_a_strangers_link_in_a_shared_folder_is_refused(
    command: Run, model: Path, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "mine.jsonl"
    shared.mkdir()
    shared.chmod(0o1777)
    mine.write_text("precious")
    link = shared / "out.jsonl"
    link.symlink_to(mine)
    args = ["generate", source, "-o", link, "--model", model, "--quiet", "--overwrite"]
    real = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr("pagedrun.paged.job.output.output_file.os.geteuid", lambda: real + 1)
        done = command(*args)
    assert done.status == 2
    assert f"{link} is a link that another user made in a folder open to all" in done.err
    assert mine.read_text() == "precious"
    assert command(*args).status == 0  # one's own link is one's own business


def test_s15_files_are_the_owners_and_say_nothing_of_prompts(generate: Run, tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        secret = "correct horse battery staple"
        done = generate([{"prompt": secret, "note": secret}, {"nothing": secret}])
    finally:
        os.umask(mask)
    assert done.status == 3
    made = [path for path in tmp_path.iterdir() if path.name.startswith("out.jsonl")]
    assert len(made) >= 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}
    for path in made:
        if path.name != "out.jsonl":
            assert secret.encode() not in path.read_bytes()
    assert secret not in done.err
    assert secret not in json.dumps(done.error(1))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("in.jsonl", gzip.compress(ROW, mtime=0), "compressed with gzip; let its name end in .gz"),
        ("in.jsonl.gz", ROW, "is not valid gzip data"),
        ("in.jsonl.gz", gzip.compress(ROW * 99, mtime=0)[:-9], "is truncated"),
        ("in.jsonl", b"PAR1" + bytes(40), "a Parquet file"),
        ("in.parquet", ROW, "in.parquet"),
        ("in.json", b'[{"prompt":"a"}', "in.json"),
        ("in.csv", b'prompt\n"never closed\n', "in.csv"),
        ("in.pickle", b"cos\nsystem\n(S'exit 9'\ntR.", "has an unknown ending"),
    ],
)
def test_28_a_file_that_is_not_what_its_name_says(
    generate: Run, name: str, data: bytes, words: str
) -> None:
    done = generate(data, name=name)
    assert (done.status, done.rows) == (2, [])
    assert words in done.err


def test_28_a_bomb_is_refused(generate: Run) -> None:
    """The limits are 64 MiB, and a thousand times the file's size."""
    done = generate(gzip.compress(b" " * 2**27, mtime=0), name="in.jsonl.gz")
    assert (done.status, done.rows) == (2, [])
    assert "unpacks to more than" in done.err


@pytest.mark.long
def test_28_a_bomb_of_ten_gibibytes_is_refused_in_little_memory(
    generate: Run, tmp_path: Path
) -> None:
    import tracemalloc

    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        piece = bytes(2**24)
        for _ in range(640):
            file.write(piece)
    data = path.read_bytes()
    assert len(data) < 11 * 2**20
    tracemalloc.start()
    done = generate(data, name="in.jsonl.gz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.status == 2
    assert peak < 2**28


def test_28_an_input_that_changes_is_noticed(
    command: Run, model: Path, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pagedrun.paged.job.model import LocalModel

    real = LocalModel.load_engine
    output = tmp_path / "out.jsonl"
    args = ["generate", source, "-o", output, "--model", model, "--max-tokens", 2, "--overwrite"]
    for change in (ROW * 3, b""):

        def changed(self: LocalModel, content: bytes = change) -> Any:
            source.write_bytes(content)
            return real(self)

        source.write_bytes(ROW * 2)
        monkeypatch.setattr(LocalModel, "load_engine", changed)
        done = command(*args, "--progress", "plain")
        assert done.status == 0
        assert len(output.read_bytes().splitlines()) == 2
        assert f"{source} was changed during the run" in done.err
    monkeypatch.setattr(LocalModel, "load_engine", real)
    source.write_bytes(ROW)
    assert "was changed" not in command(*args, "--progress", "plain").err


def test_28_standard_input_is_read_as_it_comes(
    command: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable, writable = os.pipe()
    os.write(writable, ROW + b"torn")
    os.close(writable)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(os.fdopen(readable, "rb")))
    output = tmp_path / "out.jsonl"
    done = command("generate", "-", "-o", output, "--model", model, "--quiet", "--max-tokens", 2)
    assert done.status == 3
    assert len(output.read_bytes().splitlines()) == 2


# Forbids the network and anything that listens, then runs the command line it is given. The CUDA
# build of torch asks ldconfig where libdl is, as soon as it is imported.
GUARDED = """
import sys
def audit(event, args):
    if ["/sbin/ldconfig", "-p"] in args:
        return
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto",
                 "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn"):
        print("AUDIT", event, args, file=sys.stderr, flush=True)
        raise SystemExit(99)
sys.addaudithook(audit)
"""
THE_COMMAND = "from pagedrun.cli.main import main; main()"


def run_elsewhere(args: list[object], folder: Path, **environment: str) -> None:
    """Run the command in a process of its own, with little of this one's environment.

    It has the features of the processor that this one has, so that it finds its kernels compiled.
    """
    features = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
    names = ("PATH", "HOME", "PYTHONPATH", *features)
    kept = {name: os.environ[name] for name in names if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", GUARDED + THE_COMMAND, *map(str, args)],
        cwd=folder,
        env={**kept, "TRITON_INTERPRET": "1", **environment},
        capture_output=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "code", ["import socket; socket.socket().bind(('127.0.0.1', 0))", "os.system('true')"]
)
def test_s18_s20_the_guard_of_the_next_test_guards(code: str) -> None:
    args = [sys.executable, "-c", f"{GUARDED}import os\n{code}"]
    assert subprocess.run(args, capture_output=True, timeout=240).returncode == 99


@pytest.fixture
def sampled(tmp_path: Path) -> Path:
    rows = [{"prompt": f"Grüße, 世界 {number}", "id": f"é{number}"} for number in range(5)]
    path = tmp_path / "words.jsonl"
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
    return path


@pytest.mark.heavy("a promise of SECURITY.md: four whole runs")
def test_31_s18_s20_the_same_bytes_anywhere_without_network_or_children(
    command: Run, model: Path, tmp_path: Path, sampled: Path
) -> None:
    """Three runs in this process, and one in another locale, time zone and order of hashing."""
    flags = ["--model", model, "--max-tokens", 6, "--temperature", 0.8, "--seed", 5, "--quiet"]
    outputs = [tmp_path / f"{number}.out" for number in range(4)]
    for output in outputs[:3]:
        assert command("generate", sampled, "-o", output, *flags).status == 0
    surroundings = {"LC_ALL": "C", "LANG": "", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7"}
    args = ["generate", sampled, "-o", outputs[3], *flags]
    run_elsewhere(args, tmp_path, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", **surroundings)
    assert len({output.read_bytes() for output in outputs}) == 1
    assert "Grüße" not in outputs[0].read_text("utf-8")  # prompts do not come back


@pytest.mark.long
@pytest.mark.parametrize("seed", ["0", "1", "random"])
@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_31_more_surroundings(
    command: Run, model: Path, tmp_path: Path, sampled: Path, seed: str, locale: str
) -> None:
    flags = ["--model", model, "--max-tokens", 6, "--temperature", 0.8, "--seed", 5, "--quiet"]
    here, there = tmp_path / "here.out", tmp_path / "there.out"
    assert command("generate", sampled, "-o", here, *flags).status == 0
    args = ["generate", sampled, "-o", there, *flags]
    run_elsewhere(args, tmp_path, LC_ALL=locale, PYTHONHASHSEED=seed, PYTHONUTF8="0")
    assert here.read_bytes() == there.read_bytes()
