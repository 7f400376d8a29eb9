"""The table of exit statuses, whole, through the real command: what ended it, and what it told.

No test here is a race: a command is held where it is to be ended, says so, and would stay there for
longer than a test may take. How long it takes to get there, or to end, does not matter.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import MakeModel
from tests.whole.command_server import CommandServer

RESUME = "; continue with --resume"
# To be run before a command: `hold()` says on stderr that it waits, and waits for ten minutes or
# until a signal.
HELD = '{"event": "held"}'
HOLD = f"""
import sys, time
def say():
    print('{HELD}', file=sys.stderr, flush=True)
def wait():
    time.sleep(600)
def hold():
    say()
    wait()
"""
# A native call that no signal ends, and while it lasts Python sees none. It lets go of the mutex
# when it has begun: only then another thread can say so. Zeros are a mutex that is free, and a
# condition that nobody waits for.
NATIVE_HOLD = """
import ctypes, threading
def hold():
    libc = ctypes.CDLL(None)
    mutex, condition = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    until = (ctypes.c_long * 2)(int(time.time()) + 600, 0)
    libc.pthread_mutex_lock(mutex)
    def say_when_begun():
        libc.pthread_mutex_lock(mutex)
        say()
        libc.pthread_mutex_unlock(mutex)
    threading.Thread(target=say_when_begun, daemon=True).start()
    libc.pthread_cond_timedwait(condition, mutex, until)
"""
# `when` is an expression; `batch` is the step's.
HOLD_STEP = """
import os
from pagedrun.paged.execution.engine import Engine
Engine.warm_up = lambda engine, on_compile: None
from pagedrun.paged.models.decoder import Decoder
compute = Decoder.hidden
def hidden(model, batch, cache):
    if {when}:
        hold()
    return compute(model, batch, cache)
Decoder.hidden = hidden
"""
ROWS_ARE_WRITTEN = "os.path.exists('rows.out.jsonl') and os.path.getsize('rows.out.jsonl')"
HOLD_PHASE = """
from pagedrun.cli.progress.run_figures import ProgressFiguresListener
on_phase = ProgressFiguresListener.on_phase
def held(watch, phase):
    on_phase(watch, phase)
    if phase.name.lower() == "{phase}":
        hold()
ProgressFiguresListener.on_phase = held
"""
# A run's patience begins when it is held.
PATIENT = """
from pagedrun.paged.job.signals import JobMonitor
waited, is_held = JobMonitor.waited, False
def waited_while_held(ward, seconds):
    return waited(ward, seconds) if is_held else None
JobMonitor.waited = waited_while_held
hold_here = hold
def hold():
    global is_held
    is_held = True
    hold_here()
"""


@pytest.fixture
def args(make_model: MakeModel, tmp_path: Path) -> list[str]:
    """A command with ten good rows."""
    rows = [json.dumps({"prompt": f"row {index}", "max_tokens": 20}) for index in range(10)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    model = str(make_model("qwen3", "status"))
    flags = ["--max-num-seqs", "2", "--ignore-eos", "--progress", "json"]
    return ["generate", "rows.jsonl", "--model", model, *flags]


def sentence(stderr: str) -> str:
    """Return why the command ended; check that every line is a JSON event and this the last one."""
    events = [json.loads(line) for line in stderr.splitlines()]
    assert [each for each in events if "event" not in each] == []
    assert [each["event"] for each in events].index("error") == len(events) - 1
    message = events[-1]["message"]
    assert isinstance(message, str)
    return message


def whole_rows(path: Path) -> int:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return len({json.loads(line)["index"] for line in data.splitlines()})


def test_1_a_step_that_does_not_end(server: CommandServer, args: list[str], tmp_path: Path) -> None:
    before = HOLD + PATIENT + HOLD_STEP.format(when=True)
    status, told = server.run([*args, "--stall-timeout", "1"], tmp_path, before=before)
    assert status == 1
    assert sentence(told) == (
        "the engine has not finished a step for 1 seconds; raise --stall-timeout "
        "to allow more time; its state is in rows.out.jsonl.state.json; 0 of 10 rows saved" + RESUME
    )
    state = json.loads((tmp_path / "rows.out.jsonl.state.json").read_text())
    assert state["running"] == len(state["sequences"]["running"]) == 2
    assert all(each["block_table"] for each in state["sequences"]["running"])
    assert "row 1" not in json.dumps(state)


def test_2_refused(server: CommandServer, args: list[str], tmp_path: Path) -> None:
    (tmp_path / "rows.out.jsonl").write_text("precious")
    status, told = server.run(args, tmp_path)
    assert (status, "rows.out.jsonl exists" in sentence(told)) == (2, True)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": 5}\n')
    status, told = server.run([*args, "--strict", "--overwrite"], tmp_path)
    assert status == 2
    assert sentence(told) == (
        "rows.jsonl, line 2: prompt must be a string (unsupported_content); --strict "
        "refuses the whole input; without it the row gets an error instead of an answer"
    )
    assert (tmp_path / "rows.out.jsonl").read_text() == "precious"


def test_3_some_rows_failed(server: CommandServer, args: list[str], tmp_path: Path) -> None:
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("\nnot JSON\n")
    status, _ = server.run([*args, "--quiet"], tmp_path)
    assert (status, whole_rows(tmp_path / "rows.out.jsonl")) == (3, 11)


def test_4_the_disk_is_full(server: CommandServer, args: list[str], tmp_path: Path) -> None:
    status, told = server.run([*args, "-o", "/dev/full"], tmp_path)
    assert status == 4
    assert sentence(told) == (
        "/dev/full can no longer be written (No space left on device; make room on "
        "its disk); 0 of 10 rows saved"
    )


@pytest.mark.long
def test_4_standard_output_is_full(server: CommandServer, args: list[str], tmp_path: Path) -> None:
    status, told = server.run([*args, "-o", "-", "--quiet"], tmp_path, stdout="/dev/full")
    assert (status, "standard output cannot be written" in sentence(told)) == (4, True)
    status, told = server.run([*args, "--json", "--quiet"], tmp_path, stdout="/dev/full")
    assert (status, sentence(told)) == (
        4,
        "the report cannot be written to standard output (No space left on device); every "
        "row is written",
    )


def test_4_and_0_a_limit_on_the_size_of_files(
    server: CommandServer, args: list[str], tmp_path: Path
) -> None:
    """A real disk that is full in the middle of a row; when there is room, the rest is done."""
    rows = [json.dumps({"prompt": f"row {index}", "input": "x" * 1500}) for index in range(10)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    before = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))"
    ignore = "\nimport signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    status, told = server.run(args, tmp_path, before=before + ignore)
    num_rows = whole_rows(tmp_path / "rows.out.jsonl")
    assert status == 4
    assert 0 < num_rows < 10
    assert f"(File too large; check the disk, or write to another one); {num_rows} of 10" in told
    status, _ = server.run([*args, "--resume"], tmp_path)
    assert (status, whole_rows(tmp_path / "rows.out.jsonl")) == (0, 10)


@pytest.mark.parametrize(
    ("signum", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long),
    ],
)
def test_a_signal_while_rows_are_answered(
    signum: int, status: int, server: CommandServer, args: list[str], tmp_path: Path
) -> None:
    before = HOLD + HOLD_STEP.format(when=ROWS_ARE_WRITTEN)
    command = server.start(args, tmp_path, before=before)
    output = tmp_path / "rows.out.jsonl"
    assert command.wait_for(HELD)
    command.signal(signum)
    assert command.wait() == status
    num_rows = whole_rows(output)
    assert 0 < num_rows < 10
    name = signal.Signals(signum).name
    assert sentence(command.told()) == (f"Stopped by {name}; {num_rows} of 10 rows saved{RESUME}")
    assert json.loads(Path(f"{output}.run.json").read_text())["status"] == "interrupted"


LONG_PHASES = [pytest.param(each, marks=pytest.mark.long) for each in ("read", "plan")]


@pytest.mark.parametrize("phase", ["encode", "load", *LONG_PHASES])
def test_a_signal_before_that_leaves_nothing(
    phase: str, server: CommandServer, args: list[str], tmp_path: Path
) -> None:
    command = server.start(args, tmp_path, before=HOLD + HOLD_PHASE.format(phase=phase))
    assert command.wait_for(HELD)
    assert f'"phase": "{phase}"' in command.told()
    command.signal(signal.SIGTERM)
    assert command.wait() == 143
    assert sentence(command.told()) == "Stopped by SIGTERM; nothing was written"
    assert not (tmp_path / "rows.out.jsonl").exists()


def test_a_signal_that_python_does_not_see(
    server: CommandServer, args: list[str], tmp_path: Path
) -> None:
    """A native call that does not return: the watchdog saves what is written, and ends the process
    after the time in which Python might have done so."""
    before = HOLD + NATIVE_HOLD + HOLD_STEP.format(when=ROWS_ARE_WRITTEN)
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "short", "max_tokens": 2}\n{"prompt": "long", "max_tokens": 4}\n'
    )
    command = server.start(args, tmp_path, before=before)
    output = tmp_path / "rows.out.jsonl"
    assert command.wait_for(HELD)
    began = time.monotonic()
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    assert time.monotonic() - began > 2
    assert sentence(command.told()) == (f"Stopped by SIGINT; 1 of 2 rows saved{RESUME}")
    assert json.loads(Path(f"{output}.run.json").read_text())["status"] == "interrupted"


@pytest.mark.long
def test_a_second_signal_ends_it_at_once(
    server: CommandServer, args: list[str], tmp_path: Path
) -> None:
    """At once: before it has the time to say what became of it."""
    command = server.start(args, tmp_path, before=HOLD + NATIVE_HOLD + HOLD_STEP.format(when=True))
    assert command.wait_for(HELD)
    for _ in range(2):
        command.signal(signal.SIGTERM)
        command.wait_until_delivered(signal.SIGTERM)
    assert command.wait() in (143, -signal.SIGTERM)
    assert "Stopped" not in command.told()


@pytest.mark.long
def test_a_process_that_was_stopped_goes_on(
    server: CommandServer, args: list[str], tmp_path: Path
) -> None:
    """The time in which it was stopped, longer than a step may take, is not the run's."""
    wait = """
def wait():
    while not os.path.exists("go on"):
        time.sleep(0.01)
"""
    step = HOLD_STEP.format(when=f"{ROWS_ARE_WRITTEN} and not os.path.exists('go on')")
    # With the warming up, since no step may compile kernels and take long for it.
    before = HOLD + step.replace("Engine.warm_up =", "_ =") + wait
    command = server.start([*args, "--stall-timeout", "5"], tmp_path, before=before)
    assert command.wait_for(HELD)
    command.signal(signal.SIGSTOP)
    time.sleep(6.0)
    command.signal(signal.SIGCONT)
    (tmp_path / "go on").touch()
    assert command.wait() == 0
    assert whole_rows(tmp_path / "rows.out.jsonl") == 10


def test_a_signal_while_the_interpreter_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pagedrun", "generate", "-", "-o", "rows.out.jsonl"]
    for delay in (0.1, 0.5):
        # Its input does not end, so it cannot be done before, however fast it is.
        process = subprocess.Popen(
            command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        time.sleep(delay)
        os.kill(process.pid, signal.SIGTERM)
        told = process.communicate()[1]
        assert process.returncode in (143, -signal.SIGTERM)  # no Python yet to tell anything
        assert told in ("", "Stopped by SIGTERM; nothing was written\n") or "No --model" in told
