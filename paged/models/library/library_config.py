"""LibraryConfig: a model that Transformers computes, read from the config.json of its folder."""

from dataclasses import dataclass
from pathlib import Path

from pagedrun.paged.files.gguf.gguf_path import is_gguf
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.library.library_fields import library_config, visible_fields
from pagedrun.paged.models.library.library_spec import LibrarySpec
from pagedrun.paged.models.runnable_config import (
    RunnableConfig,
    eos_token_ids,
    read_configs,
    stored_dtype,
)
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.option_names import option


@dataclass(frozen=True, slots=True)
class LibraryConfig(RunnableConfig):
    """A model of any type that the library has code for, as far as its attention can be paged."""

    network: LibrarySpec

    @classmethod
    def from_folder(cls, folder: str | Path) -> "LibraryConfig":
        """Read `folder`/config.json, and the end-of-sequence ids of generation_config.json.

        Raises `ModelError` if the folder or config.json is missing or unreadable, and for what
        `from_json` refuses.
        """
        path = Path(folder)
        if is_gguf(path):
            raise ModelError(
                f"{path}: {option('model_impl')} transformers takes model folders, not GGUF files"
            )
        return cls.from_json(*read_configs(path))

    @classmethod
    def from_json(cls, config: JsonObject, generation: JsonObject | None = None) -> "LibraryConfig":
        """Read the contents of a config.json, and of a generation_config.json if there is one.

        Raises `ModelError` for what `visible_fields`, `library_config` and `outline` refuse.
        """
        # Imported here: it imports torch.
        from pagedrun.paged.models.library.outline import outline

        fields = visible_fields(config)
        library = library_config(config.origin, fields)
        network = outline(library, config.origin, fields)
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
