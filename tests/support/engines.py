"""Engines with what no flag sets: a device or a policy of a test's own."""

from pathlib import Path

from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig

# Sixteen rows take shared-prefix attention however short the prefix is that they share.
ANY_PREFIX = ReadOnce(16, 1)


def load_engine(
    config: EngineConfig,
    policy: RunPolicy = DEFAULT_POLICY,
    device: Device | None = None,
    tokenizer_folder: Path | None = None,
) -> Engine:
    """Load the model folder that `config` names; its tokenizer may lie elsewhere."""
    shape = describe_model(config.model, config.model_impl)
    tokenizer = Tokenizer.from_folder(tokenizer_folder or config.model)
    return Engine(config, LoadedModel.load(config, shape, tokenizer, device=device), policy)
