"""How a model of the library can be run: over paged memory, or else with caches of its own."""

from typing import Any

from pagedrun.paged.models.library.library_error import said
from pagedrun.paged.models.library.library_spec import LibrarySpec
from pagedrun.paged.models.library.outline import Unpaged, outline
from pagedrun.paged.models.library.plain.cached_forward import NoCache
from pagedrun.paged.models.library.plain.plain_outline import plain_outline
from pagedrun.paged.models.library.plain.plain_spec import PlainSpec
from pagedrun.paged.models.library.quiet import quiet
from pagedrun.paged.values.errors import ModelError


def network_of(config: Any, origin: str, fields: str) -> LibrarySpec | PlainSpec:
    """Return what the model of a library's `config` consists of.

    `origin` is the file that it was read from, `fields` what was read. Raises `ModelError` for a
    model that runs neither way.
    """
    with quiet():
        try:
            return outline(config, fields)
        except Unpaged as error:
            unpaged = str(error)
        try:
            return plain_outline(config, fields, unpaged)
        except NoCache:
            why = "it returns no cache from which a row could continue"
        except Exception as error:  # whatever its code raises where it meets no numbers
            why = f"its code cannot be traced without weights ({said(error)})"
    raise ModelError(
        f"{origin}: model_type {config.model_type!r} cannot be run by Transformers' code "
        f"with paged memory: {unpaged}; nor with its own caches: {why}"
    )
