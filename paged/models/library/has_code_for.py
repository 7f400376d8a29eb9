"""Whether the library has code for a type of model, found out without importing it."""

import re
from importlib.util import find_spec
from pathlib import Path

_TYPE = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)


def has_code_for(model_type: str | None) -> bool:
    """Whether there is a module for that `model_type`; what it can do is another question."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None or not _TYPE.fullmatch(model_type or ""):
        return False
    name = str(model_type).removesuffix("_text")  # a part of the model without it
    return (Path(spec.origin).parent / "models" / name / f"modeling_{name}.py").is_file()
