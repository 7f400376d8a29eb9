"""The size of a head, as the metadata of a GGUF file has it."""

from pagedrun.paged.files.json_object import JsonObject


def head_dim(own: JsonObject) -> int:
    """Return the size of a head of keys; own: the fields without the architecture's name."""
    heads = own.integer("attention.head_count", 1, 2**14)
    width = own.integer("embedding_length", 1, 2**20)
    return own.integer("attention.key_length", 1, 2**12, max(width // heads, 1))
