"""Ray clusters: an existing one, or a private one on this machine for one run.

A private cluster listens on the loopback interface only, requires a token that only this user can
read, keeps its files in a folder that only this user can enter, and has no dashboard and no usage
statistics. It ends with this process in any case (`cluster_reaper`).
"""

import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pagedrun.paged.replicas.cluster_reaper import ClusterReaper
from pagedrun.paged.values.engine_config import ReplicaConfig
from pagedrun.paged.values.errors import EngineError, UsageError, option

OBJECT_STORE_BYTES = 80 * 2**20  # near Ray's minimum: units and packets are small
START_ATTEMPTS = 3
REACH_SECONDS = 10.0  # timeout of a connection to the head node
MAX_PATH = 24  # characters of the temporary folder; a socket's path ends at 107 bytes
# Environment of a local cluster, which Ray reads when it is imported.
_LOCAL = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # binds to loopback, which node_ip_address does not
    "RAY_worker_niceness": "0",  # 15 otherwise
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill replicas, whose pools fill free memory
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RayCluster:
    """Connection to a Ray cluster, joined or started; `close` leaves or ends it.

    Raises `UsageError` if Ray is not installed, or a cluster cannot be joined.
    """

    def __init__(self, config: ReplicaConfig, num_cpus: int) -> None:
        """num_cpus: of a local cluster; may exceed the CPUs of the machine."""
        self._folder: Path | None = None
        self._reaper: ClusterReaper | None = None
        self._is_ours = False
        self._before: dict[str, str | None] = {}
        self._was_open: bool | None = None
        self.is_local = config.ray_address is None
        variables = dict(_QUIET)
        if self.is_local:
            self._folder = _private_folder()
            self._reaper = ClusterReaper(self._folder)
            variables |= _LOCAL | {"RAY_AUTH_TOKEN_PATH": str(_token(self._folder))}
        self._set(variables)
        try:
            self.ray: Any = _import_ray()
            _read_environment_again()
            self._connect(config, num_cpus)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the cluster; end it if it was started here."""
        if self._is_ours:
            self._is_ours = False
            self._let_print(is_allowed=True)
            with _signals_kept():
                self.ray.shutdown()
        if self._was_open is not None:
            self.ray._private.ray_constants.ENABLE_RAY_CLUSTER = self._was_open
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}
        if self._folder is not None:
            _read_environment_again()  # first, or it would miss the token
            self._folder = None
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None

    @property
    def folder(self) -> Path | None:
        """Folder of a cluster that was started here; None for another one."""
        return self._folder

    def nodes(self) -> list[Mapping[str, float]]:
        """Return the resources of each live node, by their names."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def _connect(self, config: ReplicaConfig, num_cpus: int) -> None:
        if self.ray.is_initialized():
            return  # by the user's program, which also ends it
        settings: dict[str, Any] = {
            "logging_level": "ERROR",
            "log_to_driver": False,
            "configure_logging": False,
        }
        if self.is_local:
            # The variable in the environment is read when Ray is imported, perhaps before this.
            self._was_open = self.ray._private.ray_constants.ENABLE_RAY_CLUSTER
            self.ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
            settings |= {
                "address": "local",
                "num_cpus": num_cpus,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": f"{self._folder}/r",  # Ray makes it writable for all users
            }
        else:
            settings["address"] = config.ray_address
            if (error := _not_reached(config.ray_address or "")) is not None:
                raise self._refused(config, error) from error
        for attempt in range(START_ATTEMPTS):
            try:
                with _signals_kept(), _stderr_dropped():
                    self.ray.init(**settings)
                break
            except Exception as error:
                # Ray waits 30 seconds for its processes, which may be too short on a busy machine.
                if not self.is_local or attempt + 1 == START_ATTEMPTS:
                    raise self._refused(config, error) from error
                with _signals_kept(), suppress(Exception):
                    self.ray.shutdown()
        self._is_ours = True
        self._let_print(is_allowed=False)

    def _let_print(self, *, is_allowed: bool) -> None:
        """Enable or disable output of Ray's processes on stdout, where each death would print a
        page among the rows of `-o -`. Warnings report deaths instead."""
        self.ray._private.worker._worker_logs_enabled = is_allowed

    def _refused(self, config: ReplicaConfig, error: Exception) -> Exception:
        cause = " ".join(str(error).split())[:300]
        if self.is_local:
            return EngineError(f"Ray cannot be started on this machine: {cause}")
        return UsageError(
            f"{option('ray_address')} {config.ray_address}: the cluster cannot be joined "
            f"({cause}); check that the address is that of its head node, that Ray and Python "
            "have the same versions there and here, and that the cluster's token is in "
            "RAY_AUTH_TOKEN or in the file named by RAY_AUTH_TOKEN_PATH, with "
            "RAY_AUTH_MODE=token"
        )

    def _set(self, variables: Mapping[str, str]) -> None:
        """Set environment variables: unset ones for a joined cluster, all for a private one."""
        for name, value in variables.items():
            if self.is_local or name not in os.environ:
                self._before[name] = os.environ.get(name)
                os.environ[name] = value


def _not_reached(address: str) -> OSError | None:
    """Return the error of a connection to an address with a port, which Ray would retry for
    minutes; None without an error."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except OSError as error:
        return error
    return None


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"{option('replicas')} needs Ray, which is not installed: pip install 'ray>=2.59'"
        ) from error
    return ray


def _read_environment_again() -> None:
    """Make Ray read settings and token again, which it caches from its import or from the last
    cluster of this process."""
    ray = sys.modules.get("ray")
    if ray is not None and not ray.is_initialized():
        with suppress(ImportError, AttributeError):
            from ray import _raylet

            native: Any = _raylet
            native.Config.initialize("")
            native.AuthenticationTokenLoader.instance().reset_cache()


def _private_folder() -> Path:
    """Return a new folder with a short path and without access for other users."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="pr-", dir=base if len(base) <= MAX_PATH else "/tmp"))


def _token(folder: Path) -> Path:
    """Return a new file with a random token, readable by this user only."""
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the signal handlers of this process: Ray replaces that of SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            with suppress(TypeError, ValueError):
                signal.signal(each, handler)


@contextmanager
def _stderr_dropped() -> Iterator[None]:
    """Discard stderr of native code, such as Ray's notes about its settings."""
    sys.stderr.flush()
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)
