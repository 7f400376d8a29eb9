"""Model openers of jobs and plans: tokenizer and model configuration first, weights on demand.

Modules that need torch are imported when a model is opened.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.interfaces import EngineLike, ModelOpener, OpenModel
from pagedrun.paged.models.model_config import ModelConfig, describe_model, num_rotary_positions
from pagedrun.paged.text.grammar import Grammars
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.structure import Structure


def opener_of(config: JobConfig) -> ModelOpener:
    """Return what opens the model; it imports torch when it is called."""
    if config.replicas.replicas is None:
        return _open_local

    def opened(
        engine_config: EngineConfig, tokenizer_folder: Path, chat_template: str | None
    ) -> OpenModel:
        from pagedrun.paged.job.model import ReplicatedModel

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


class PlanModel:
    """A model's shape and tokenizer; implements `interfaces.OpenModel` but has no weights."""

    def __init__(self, config: EngineConfig, folder: Path, chat_template: str | None) -> None:
        shape = describe_model(config.model, config.model_impl)
        self.config = shape.held_as(config.quantization, config.model)
        self.tokenizer = Tokenizer.from_folder(folder, chat_template)
        self.config.check_tokenizer(self.tokenizer.vocab_size, config.model)
        shape = self.config
        self.settings = shape.settings(config)
        self._grammars = Grammars.of(self.tokenizer, shape.vocab_size, shape.eos_token_ids)
        if isinstance(self.config, ModelConfig):
            num_rotary_positions(self.config, config.max_model_len, config.model)

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Return those that no answer can have, and why."""
        return self._grammars.refused(structures)

    def arithmetic(self) -> Mapping[str, object]:
        """Return nothing: a plan computes nothing."""
        return {}

    def load_engine(self) -> EngineLike:
        """Refuse: a plan runs nothing."""
        raise AssertionError("a plan does not load weights")
