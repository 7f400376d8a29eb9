"""The command as a user meets it: help, exit statuses, what goes to which stream."""

import errno
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from pagedrun import __version__
from pagedrun.cli import exits
from pagedrun.cli.options.flags import Flags
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import JobResult
from pagedrun.paged.job.output.output_file import OutputError
from pagedrun.paged.job.output.side_files import job_report
from pagedrun.paged.job.progress import JobListener, Phase, Tally
from pagedrun.paged.job.signals import JobInterrupted, SignalGuard, Watchdog
from pagedrun.paged.metrics.report_sections import empty_engine_report
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import EngineError, ModelError, RowError, UsageError
from tests.cli.light_command import HEAVY, light_command
from tests.support.command import Command

HOSTILE = "\x1b[2J[/red]\u202e:smile:"

FLAGS = """
--output -o --model --revision --tokenizer --device --dtype --max-model-len --max-tokens
--temperature --top-p --top-k --min-p --n --seed --stop --stop-token-ids --ignore-eos --min-tokens
--system --prompt-template --prompt-field --chat-template --limit --block-size --num-blocks
--kv-cache-memory-bytes --max-num-seqs --max-num-batched-tokens --prefix-caching
--no-prefix-caching --prefix-once --no-prefix-once --preemption-mode --swap-space-bytes
--overwrite --resume --retry-errors --ordered --progress --report --kv-cache-dtype
--gpu-memory-utilization --enforce-eager --reproducible --recipe --generation-config
--no-ordered --no-ignore-eos --no-reproducible --no-enforce-eager
--strict --on-overlong --stall-timeout
--prefix-store --prefix-store-bytes
--json --quiet --html
"""

GENERATE = ("generate", "x.jsonl", "--model", "demo")
RunJob = Callable[[JobConfig, JobListener], JobResult]


def result_with(num_failed: int) -> JobResult:
    engine = empty_engine_report()
    engine["kv"]["num_blocks"] = engine["tokens"]["prompt"] = 3
    reasons = Counter({"stop": 3 - num_failed, "error": num_failed})
    tally = Tally(total=3, ok=3 - num_failed, failed=num_failed, finish_reasons=reasons)
    return JobResult(job_report(engine, tally), num_failed, Path("out.report.json"), None)


@pytest.fixture
def run(pagedrun: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run the command with a job that does as it is asked; return status, stdout and stderr."""

    def run_command(job: RunJob | BaseException | None, *args: str) -> tuple[int, str, str]:
        def run_job(config: JobConfig, listener: JobListener, **more: object) -> JobResult:
            if isinstance(job, BaseException):
                raise job
            return result_with(0) if job is None else job(config, listener)

        monkeypatch.setattr("pagedrun.paged.job.job.run_job", run_job)
        return pagedrun(*args)

    return run_command


class TestExitStatus:
    @pytest.mark.parametrize(("num_failed", "status"), [(0, 0), (1, 3), (3, 3)])
    def test_of_a_finished_job(self, run: Any, num_failed: int, status: int) -> None:
        assert run(lambda config, listener: result_with(num_failed), *GENERATE)[0] == status

    @pytest.mark.parametrize(
        ("error", "status"),
        [
            (UsageError("u"), 2),
            (ModelError("m"), 2),
            (RowError("invalid_param", "r"), 2),
            (EngineError("e"), 1),
            (OutputError("o", OSError(errno.ENOSPC, "full")), 4),
            (JobInterrupted(signal.SIGINT), 130),
            (JobInterrupted(signal.SIGTERM), 143),
            (KeyboardInterrupt(), 130),
            (MemoryError(), 1),
            (RuntimeError("bug"), 1),
            (OSError(errno.EIO, "io"), 1),
        ],
        ids=lambda value: repr(value),
    )
    def test_of_an_error(self, run: Any, error: BaseException, status: int) -> None:
        got, out, err = run(error, *GENERATE)
        assert got == status
        assert out == ""
        assert "Traceback" not in err
        assert len(err.strip().splitlines()) == 1

    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            ImportError("libtorch_cpu.so: failed to map segment from shared object"),
            OSError("Could not find/load shared object file 'libllvmlite.so' from resource"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_a_limit_of_the_address_space_is_named(
        self, run: Any, error: BaseException, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("resource.getrlimit", lambda which: (2**31, 2**31))
        got, _, err = run(error, *GENERATE)
        assert got == 1
        assert "limited to 2.00 GiB (ulimit -v)" in " ".join(err.split())
        assert "raise the limit" in " ".join(err.split())

    def test_libraries_that_do_not_fit_it_are_not_loaded(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("resource.getrlimit", lambda which: (2**30, 2**30))
        loaded = []
        with exits.boundary():  # a command that runs no model
            loaded.append("header")
        with pytest.raises(typer.Exit), exits.boundary(SignalGuard(Watchdog(print))):
            loaded.append("model")
        assert loaded == ["header"]
        assert "limited to 1.00 GiB (ulimit -v)" in " ".join(capsys.readouterr().err.split())

    def test_an_interruption_that_a_library_replaced_by_an_error_is_still_one(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        guard = SignalGuard()

        def compile_kernel() -> None:
            try:
                signal.raise_signal(signal.SIGTERM)
            except JobInterrupted as error:
                raise RuntimeError("a kernel does not compile") from error

        with pytest.raises(typer.Exit) as ended, exits.boundary(guard), guard:
            compile_kernel()
        assert ended.value.exit_code == 143
        assert capsys.readouterr().err == "Stopped by SIGTERM; nothing was written\n"

    def test_a_reader_that_went_away_ends_it_quietly(self, run: Any) -> None:
        pipe = BrokenPipeError(errno.EPIPE, "Broken pipe")
        error = OutputError("stdout", pipe)
        error.__cause__ = pipe
        assert run(error, *GENERATE, "-o", "-", "--quiet") == (4, "", "")

    def test_a_job_that_ends_early_says_how_far_it_came(self, run: Any) -> None:
        for error in (EngineError("e"), RuntimeError("bug"), JobInterrupted(signal.SIGINT)):
            error.add_note(f"27 of 600 rows are written {HOSTILE}")
            sentence = run(error, *GENERATE, "--quiet")[2]
            assert sentence.endswith("27 of 600 rows are written \\x1b[2J[/red]\\u202e:smile:\n")
        early = run(JobInterrupted(signal.SIGTERM), *GENERATE, "--quiet")[2]
        assert early == "Stopped by SIGTERM; nothing was written\n"

    def test_a_word_that_is_no_choice_is_told_plainly(self, run: Any) -> None:
        _, _, err = run(None, *GENERATE, "--device", "tpu")
        assert err == (
            "Error: Invalid value for '--device': 'tpu' is not one of 'auto', 'cpu', 'cuda'.\n"
            "Try 'pagedrun generate --help' for help.\n"
        )

    @pytest.mark.parametrize(
        ("flag", "value", "why"),
        [
            ("--max-tokens", "abc", "'abc' is not a whole number"),
            ("--max-tokens", "1.5", "'1.5' is not a whole number"),
            ("--temperature", "warm", "'warm' is not a number"),
            ("--limit", "0", "'0' is less than 1"),
            ("--shards", "100000", "'100000' is more than 99999"),
            ("--deadline", "soon", "expected a span of time, such as 90s, 45m, 2h or 1h30m"),
        ],
    )
    def test_a_value_is_refused_in_words_of_ours(
        self, run: Any, flag: str, value: str, why: str
    ) -> None:
        """Not in those of the library that Typer reads numbers with."""
        status, out, err = run(None, *GENERATE, flag, value)
        assert (status, out) == (2, "")
        assert err.startswith(f"Error: Invalid value for '{flag}'")
        assert err.splitlines()[0].endswith(f": {why}")

    def test_debug_shows_where(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PAGEDRUN_DEBUG", "1")
        status, _, err = run(RuntimeError("bug"), *GENERATE)
        assert status == 1
        assert "Traceback" in err

    @pytest.mark.parametrize(
        "args",
        [
            ["generate"],
            ["generate", "x.jsonl", "--no-such-flag"],
            ["generate", "x.jsonl", "extra"],
            ["generate", "x.jsonl", "--max-tokens", "many"],
            ["generate", "x.jsonl", "--dtype", "float8"],
            ["generate", "x.jsonl", "--kv-cache-memory-bytes", "lots"],
            ["generate", "x.jsonl", "--limit", "0"],
            ["generate", "x.jsonl", "--top-p", "2"],
            ["nonsense"],
            [],
        ],
    )
    def test_of_a_wrong_command_line(self, run: Any, args: list[str]) -> None:
        status, _, err = run(None, *args)
        assert status == 2
        assert "Traceback" not in err


class TestHostileText:
    @pytest.mark.parametrize(
        "args",
        [
            ["generate", f"{HOSTILE}.jsonl"],
            ["generate", "x.jsonl", f"--{HOSTILE}"],
            ["generate", "x.jsonl", HOSTILE],
            ["generate", "x.jsonl", "--max-tokens", HOSTILE],
            ["generate", "x.jsonl", "--dtype", HOSTILE],
            ["generate", "x.jsonl", "--model", HOSTILE],
            ["generate", "x.jsonl", "--system", f"@{HOSTILE}"],
            ["generate", "x.jsonl", "--kv-cache-memory-bytes", HOSTILE],
            ["generate", "x.jsonl", "--prompt-template", "{{" + HOSTILE],
            [HOSTILE],
        ],
    )
    def test_on_the_command_line(self, run: Any, args: list[str]) -> None:
        _, out, err = run(UsageError(f"{args[1:]} {HOSTILE} is wrong"), *args)
        self.check(out + err)

    def test_in_errors_warnings_and_reports(self, run: Any) -> None:
        for error in (UsageError(HOSTILE), EngineError(HOSTILE), ValueError(HOSTILE)):
            self.check(run(error, *GENERATE)[2])

        def job(config: JobConfig, listener: JobListener) -> JobResult:
            listener.on_phase(Phase.RUN)
            listener.on_tally(Tally(total=1, ok=1))
            listener.on_warning(HOSTILE)
            result = result_with(0)
            result.report["finish_reasons"] = {HOSTILE: 1}
            return result

        args = (*GENERATE, "-o", f"{HOSTILE}.jsonl", "--report-view", "full")
        _, out, err = run(job, *args)
        assert err.count("\\x1b[2J[/red]\\u202e:smile:") == 3
        self.check(out + err)

    def check(self, text: str) -> None:
        assert "\x1b" not in text
        assert "\u202e" not in text


class TestStreams:
    def test_tables_go_to_stderr(self, run: Any) -> None:
        status, out, err = run(None, *GENERATE)
        assert (status, out) == (0, "")
        assert "KV pool" in err
        assert "3 rows: 3 ok → x.out.jsonl" in err

    def test_json_is_the_only_thing_on_stdout(self, run: Any) -> None:
        _, out, err = run(None, *GENERATE, "--json")
        assert json.loads(out) == result_with(0).report
        assert "KV pool" in err

    def test_quiet_is_quiet(self, run: Any) -> None:
        def job(config: JobConfig, listener: JobListener) -> JobResult:
            listener.on_warning("w")
            return result_with(1)

        assert run(lambda config, listener: result_with(0), *GENERATE, "--quiet") == (0, "", "")
        status, out, err = run(job, *GENERATE, "--quiet")
        assert (status, out) == (3, "")
        assert err.startswith("Error: 1 of 3 rows failed")
        assert err.endswith("see `error` in x.out.jsonl\n")
        assert len(err.splitlines()) == 1
        assert run(UsageError("u"), *GENERATE, "--quiet") == (2, "", "Error: u\n")

    def test_flags_reach_the_job(self, run: Any) -> None:
        seen: list[JobConfig] = []

        def job(config: JobConfig, listener: JobListener) -> JobResult:
            seen.append(config)
            return result_with(0)

        args = (
            "generate in.jsonl --model demo -o o.jsonl --overwrite --ordered --limit 5"
            " --max-tokens 7 --top-k -1 --stop a --stop b --stop-token-ids 1,2"
            " --no-prefix-caching --dtype bfloat16"
            " --kv-cache-memory-bytes 1MiB --swap-space-bytes 0 --preemption-mode recompute"
            " --report r.json --ignore-eos --n 2"
        )
        assert run(job, *args.split())[0] == 0
        (config,) = seen
        assert (config.input, config.output, config.limit) == ("in.jsonl", "o.jsonl", 5)
        assert (config.overwrite, config.ordered, config.report) == (True, True, Path("r.json"))
        sampling = config.sampling
        assert (sampling.max_tokens, sampling.top_k, sampling.n) == (7, -1, 2)
        assert (sampling.stop, sampling.stop_token_ids) == (("a", "b"), (1, 2))
        assert sampling.ignore_eos
        engine = config.engine
        assert (engine.prefix_caching, engine.dtype) == (False, "bfloat16")
        assert (engine.kv_cache_memory_bytes, engine.swap_space_bytes) == (2**20, 0)
        assert engine.preemption_mode == "recompute"
        assert config.origins["preemption_mode"] == "flag"
        assert "block_size" not in config.origins


class TestHelp:
    @pytest.mark.parametrize("args", [["--help"], ["generate", "--help"], ["--version"]])
    def test_it_imports_nothing_heavy(self, args: list[str]) -> None:
        assert light_command(*args)

    def test_importing_the_package_is_light(self) -> None:
        code = "import sys, pagedrun; print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
        )
        assert (HEAVY | {"typer", "rich"}) & set(done.stdout.split()) == set()

    def test_the_module_is_the_command(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pagedrun", "--version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        )
        assert done.stdout == f"pagedrun {__version__}\n"

    def test_every_flag_is_named_in_full_at_80_columns(
        self, run: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        status, out, _ = run(None, "generate", "--help")
        assert status == 0
        for flag in FLAGS.split():
            assert f"{flag} " in out, flag
        assert "Examples:" in out
        assert "Exit status:" in out

    def test_defaults_are_read_from_where_they_live(self) -> None:
        defaults = {each.name: each.default for each in Flags.of(EngineConfig)}
        assert defaults["max_num_seqs"] == EngineConfig(Path()).max_num_seqs
        assert defaults["num_blocks"] is None


def test_every_status_of_the_table_is_in_the_help(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(None, "generate", "--help")
    sentence = " ".join(out[out.index("Exit status:") :].split())
    for status in (exits.OK, exits.ENGINE_FAILED, exits.REFUSED, exits.ROWS_FAILED):
        assert f"{status} " in sentence
    for status in (exits.STOPPED_EARLY, exits.INTERRUPTED, 143):
        assert f"{status} " in sentence


def test_the_public_names() -> None:
    import pagedrun

    assert {"LLM", "SamplingParams", "Completion", "RowError", "WindowSize"} <= {*pagedrun.__all__}
    for name in pagedrun.__all__:
        assert getattr(pagedrun, name), name
    assert pagedrun.SamplingParams(max_tokens=3).max_tokens == 3
    assert set(pagedrun.__all__) <= set(dir(pagedrun))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pagedrun.nonsense
