"""Case and accents of BERT's tokenizers, as tokenizer_config.json declares them.

The classes of Transformers for these tokenizers set their normalizer by the fields of the config,
whatever tokenizer.json says.
"""

from typing import Any

from pagedrun.paged.files.json_object import JsonObject

_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")


def declare_case(backend: Any, config: JsonObject) -> None:
    """Set lower case, accents and Chinese characters of a tokenizer, if its class does.

    backend: a `tokenizers.Tokenizer`. Without a class, a declared `do_lower_case` counts. Raises
    `ModelError` for a field of another type.
    """
    from tokenizers.normalizers import BertNormalizer  # imported here: it takes long

    own = backend.normalizer
    name = (config.string("tokenizer_class") or "").removesuffix("Fast")
    declares = name in _CLASSES or (not name and config.has("do_lower_case"))
    if not declares or not isinstance(own, BertNormalizer):
        return
    accents = config.boolean("strip_accents", False) if config.has("strip_accents") else None
    backend.normalizer = BertNormalizer(
        clean_text=own.clean_text,
        handle_chinese_chars=config.boolean("tokenize_chinese_chars", True),
        strip_accents=accents,
        lowercase=config.boolean("do_lower_case", True),
    )
