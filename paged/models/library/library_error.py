"""What a library's own errors come to in a sentence of ours."""


def said(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says, cut to 200 characters."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
