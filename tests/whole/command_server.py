"""CommandServer: the real command in processes of its own, without seconds of imports for each.

A server imports what the command needs once. For each command it forks; the child is the command:
its own process group, streams, signals and exit status.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Command:
    """A command that runs; its stderr is a file. `wait` must be called."""

    server: "CommandServer"
    pid: int
    stderr: Path

    def signal(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def wait_for(self, text: str, seconds: float = 240.0) -> bool:
        """Wait until `text` is in stderr; return False if it does not come."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if text in self.told():
                return True
            time.sleep(0.005)
        return False

    def wait_until_delivered(self, signum: int) -> None:
        """Wait until the process has been interrupted by a signal that was sent, or is over.

        A second one that comes before that is none: the system keeps one of each number.
        """
        while self._is_pending(signum):
            time.sleep(0.005)

    def _is_pending(self, signum: int) -> bool:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return False
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return bool(int(fields.get("ShdPnd", "0"), 16) >> (signum - 1) & 1)

    def told(self) -> str:
        return self.stderr.read_text() if self.stderr.exists() else ""

    def wait(self) -> int:
        """Return the exit status as `subprocess` has it: negative for a signal."""
        return self.server.finish()


class CommandServer:
    """Runs one command after the other; enter it to start it."""

    def __init__(self) -> None:
        self._pid: int | None = None

    def __enter__(self) -> "CommandServer":
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=240)

    def start(
        self,
        args: Sequence[str | Path],
        cwd: Path,
        stdout: str = os.devnull,
        before: str = "",
    ) -> Command:
        """Start `pagedrun *args`; `before` is Python to run first in its process."""
        self._kill()
        stderr = cwd / "stderr.txt"
        stderr.unlink(missing_ok=True)
        asked = [[str(each) for each in args], str(cwd), stdout, str(stderr), before]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        self._pid = self._answer()
        return Command(self, self._pid, stderr)

    def run(self, args: Sequence[str | Path], cwd: Path, **more: str) -> tuple[int, str]:
        """Run a command to its end; return exit status and stderr."""
        command = self.start(args, cwd, **more)
        return command.wait(), command.told()

    def finish(self) -> int:
        """Return the exit status of the command that was started last."""
        status, self._pid = self._answer(), None
        return status

    def _kill(self) -> None:
        """End a command that a test which failed did not wait for."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self.finish()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def serve() -> None:
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()
    # What a command imports when it needs it; nothing here starts a thread, which no fork takes on.
    from transformers import PreTrainedTokenizerFast  # noqa: F401

    import pagedrun.cli.main
    import pagedrun.kernels.cpu.backend
    import pagedrun.paged.job.job
    import pagedrun.paged.job.model  # noqa: F401

    for line in sys.stdin:
        args, cwd, stdout, stderr, before = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(args, cwd, stdout, stderr, before)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def become(args: list[str], cwd: str, stdout: str, stderr: str, before: str) -> None:
    """Be the command, from here on."""
    os.setpgid(0, 0)
    # The tests may run under nohup, or in the background of a shell.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(name, flags, 0o600), number)
    sys.argv = ["pagedrun", *args]
    status = 70  # what no command ends with
    try:
        exec(before, {})
        from pagedrun.__main__ import main

        main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
