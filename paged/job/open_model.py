"""Models without their weights: configuration, tokenizer and grammars. Imports no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pagedrun.paged.job.interfaces import EngineLike
from pagedrun.paged.models.model_config import ModelConfig, describe_model, num_rotary_positions
from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.text.grammar import Grammars
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.pooling import PoolingParams
from pagedrun.paged.values.structure import Structure


class ModelFolder:
    """Configuration, tokenizer and grammars of a model, without its weights.

    `settings` are the engine's configuration with what the model requires. Raises `ModelError` if
    configuration or tokenizer cannot be read.
    """

    def __init__(
        self, engine_config: EngineConfig, tokenizer_folder: Path, chat_template: str | None
    ) -> None:
        shape = describe_model(engine_config.model, engine_config.model_impl)
        self.config = shape = shape.held_as(engine_config.quantization, engine_config.model)
        self.tokenizer = Tokenizer.from_folder(tokenizer_folder, chat_template)
        self.settings = shape.settings(engine_config)
        self.grammars = Grammars.of(self.tokenizer, shape.vocab_size, shape.eos_token_ids)

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Return the errors of structures that no answer can have."""
        return self.grammars.refused(structures)


class PooledFolder:
    """Configuration, tokenizer and pooler of a model for a task, without its weights.

    `spec` describes all of it. Raises as `ModelFolder` does, `ModelError` for a model without such
    results, and `UsageError` for settings that it does not have.
    """

    def __init__(
        self, engine_config: EngineConfig, tokenizer_folder: Path, params: PoolingParams
    ) -> None:
        spec = PooledModelSpec.read(engine_config.model, params)
        held = spec.config.held_as(engine_config.quantization, engine_config.model)
        self.config = held
        self.tokenizer = Tokenizer.from_folder(tokenizer_folder)
        self.settings = held.settings(engine_config)
        held.check_tokenizer(self.tokenizer.vocab_size, engine_config.model)
        spec = replace(spec, config=held)
        self.spec = spec.with_answers(self.tokenizer.encode_batch(["no", "yes"], False))

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Return nothing: there are no answers."""
        return {}


class _WithoutWeights:
    """Rest of `interfaces.OpenModel` for the model of a plan."""

    def arithmetic(self) -> Mapping[str, object]:
        """Return an empty mapping: a plan computes nothing."""
        return {}

    def load_engine(self) -> EngineLike:
        """Fail: a plan runs nothing."""
        raise AssertionError("a plan does not load weights")


class PlanModel(_WithoutWeights, ModelFolder):
    """Model of a plan; implements `interfaces.OpenModel` without weights."""

    def __init__(self, config: EngineConfig, folder: Path, chat_template: str | None) -> None:
        super().__init__(config, folder, chat_template)
        self.config.check_tokenizer(self.tokenizer.vocab_size, config.model)
        if isinstance(self.config, ModelConfig):
            num_rotary_positions(self.config, config.max_model_len, config.model)


class PooledPlanModel(_WithoutWeights, PooledFolder):
    """Model of the plan of a task; implements `interfaces.OpenModel` without weights."""
