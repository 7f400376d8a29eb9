"""What opens the model of a job: for an engine in this process, or for replicas."""

from pathlib import Path

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.interfaces import ModelOpener, OpenModel
from pagedrun.paged.values.engine_config import EngineConfig


def opener_of(config: JobConfig) -> ModelOpener:
    """Return what opens the model; it imports torch when it is called."""
    if config.replicas.replicas is None:
        return _open_local

    def opened(
        engine_config: EngineConfig, tokenizer_folder: Path, chat_template: str | None
    ) -> OpenModel:
        from pagedrun.paged.job.replicated_model import ReplicatedModel

        replicas, stall_timeout = config.replicas, config.stall_timeout
        return ReplicatedModel(
            engine_config, tokenizer_folder, chat_template, replicas, stall_timeout
        )

    return opened


def _open_local(
    engine_config: EngineConfig, tokenizer_folder: Path, chat_template: str | None
) -> OpenModel:
    from pagedrun.paged.job.model import LocalModel

    return LocalModel(engine_config, tokenizer_folder, chat_template)
