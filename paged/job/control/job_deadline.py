"""When a job ends that was given a time."""

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.control.signals import SignalGuard
from pagedrun.paged.values.engine_config import Deadline


def job_deadline(config: JobConfig, guard: SignalGuard) -> Deadline | None:
    """Return when the job ends; the time that it was given counts from when the guard was made."""
    if config.deadline is None:
        return None
    return Deadline(guard.began + config.deadline, config.sampling.seed or 0)
