"""The bundled demo: a tiny chat model that looks people up in a staff directory, and its prompts.

Importing this package reads no file and imports no torch.
"""

from pathlib import Path


def demo_model_folder() -> Path:
    """Return the folder of the bundled model, in the Hugging Face layout."""
    return Path(__file__).parent


def demo_prompts_path() -> Path:
    """Return the bundled prompts: a JSONL file with `messages` and the `expected` answer."""
    return demo_model_folder() / "prompts.jsonl"
