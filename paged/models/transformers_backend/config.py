"""TransformersConfig: config.json of a model that Transformers computes."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pagedrun.paged.files.gguf import is_gguf
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.runnable_config import (
    RunnableConfig,
    eos_token_ids,
    read_configs,
    stored_dtype,
)
from pagedrun.paged.models.transformers_backend.config_fields import (
    transformers_config,
    visible_fields,
)
from pagedrun.paged.models.transformers_backend.specs import PlainSpec, TransformersSpec
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError, UsageError, option
from pagedrun.paged.values.report_parts import TransformersPath


@dataclass(frozen=True, slots=True)
class TransformersConfig(RunnableConfig):
    """Config of a model of any type that Transformers has code for, paged or plain."""

    network: TransformersSpec | PlainSpec

    @property
    def by_torch(self) -> bool:
        """True without paged memory; otherwise linear layers are those of the backend."""
        return isinstance(self.network, PlainSpec)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Read `folder`/config.json, and the end-of-sequence ids of generation_config.json.

        Raises `ModelError` if the folder or config.json is missing or unreadable, and the errors
        of `from_json`.
        """
        path = Path(folder)
        if is_gguf(path):
            raise ModelError(
                f"{path}: {option('model_impl')} transformers takes model folders, not GGUF files"
            )
        return cls.from_json(*read_configs(path))

    @classmethod
    def from_json(cls, config: JsonObject, generation: JsonObject | None = None) -> Self:
        """Read the contents of a config.json, and of a generation_config.json if there is one.

        Raises the `ModelError` of `visible_fields`, `transformers_config` and `trace_network`.
        """
        # Imported here: it imports torch.
        from pagedrun.paged.models.transformers_backend.trace import trace_network

        fields = visible_fields(config)
        library = transformers_config(config.origin, fields)
        network = trace_network(library, config.origin, fields)
        default = library.eos_token_id
        return cls(
            model_type=library.model_type,
            network=network,
            max_position_embeddings=network.max_position_embeddings,
            eos_token_ids=eos_token_ids(
                generation,
                (config,),
                tuple(default) if isinstance(default, list) else default,
                network.vocab_size,
            ),
            dtype=stored_dtype(config),
        )

    @property
    def library(self) -> TransformersPath:
        """The `library` section of a plan."""
        network = self.network
        if isinstance(network, PlainSpec):
            return {"computed_by": network.computed_by, "path": "plain", "why_plain": network.why}
        return {"computed_by": network.computed_by, "path": "paged"}

    @property
    def notice(self) -> str | None:
        """Warning about the limits of the plain path, None for a paged model."""
        if not isinstance(self.network, PlainSpec):
            return None
        return (
            f"Transformers computes this {self.model_type} sequence by sequence, with its "
            f"own caches ({self.network.why}): no prefix is shared, and preempted rows are "
            "recomputed"
        )

    def settings(self, config: EngineConfig) -> EngineConfig:
        """Return the settings of a run that apply to the model.

        Raises `UsageError` for an explicit setting that the plain path does not support.
        """
        if not isinstance(self.network, PlainSpec):
            return config
        for field, is_default in (
            ("prefix_store", config.prefix_store is None),
            ("kv_cache_dtype", config.kv_cache_dtype == "auto"),
        ):
            if not is_default:
                raise UsageError(
                    f"{option(field)} is not supported for {self.model_type}, which Transformers "
                    f"computes with its own caches ({self.network.why}); leave it out"
                )
        return replace(
            config,
            prefix_caching=False,
            prefix_once=False,
            preemption_mode="recompute",
            swap_space_bytes=0,
        )
