"""The model of a job, opened in two steps: shape and tokenizer first, weights after all checks."""

from pathlib import Path

from pagedrun.paged.engine import Engine
from pagedrun.paged.engine_config import EngineConfig
from pagedrun.paged.model_config import ModelConfig
from pagedrun.paged.tokenizer import Tokenizer


class LocalModel:
    """A model folder on this machine; implements `interfaces.OpenModel`.

    Raises `ModelError` if the shape or the tokenizer cannot be read.
    """

    def __init__(
        self, engine_config: EngineConfig, tokenizer_folder: Path, chat_template: str | None
    ) -> None:
        self.config = ModelConfig.from_folder(engine_config.model)
        self.tokenizer = Tokenizer.from_folder(tokenizer_folder, chat_template)
        self._engine_config = engine_config

    def load_engine(self) -> Engine:
        """Read the weights."""
        return Engine(self._engine_config, self.config, self.tokenizer)
