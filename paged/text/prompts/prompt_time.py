"""The time that chat templates see: what `strftime_now` writes into a prompt."""

from datetime import datetime


def present() -> datetime:
    """Return the local time in whole seconds, which is how a manifest records it."""
    return datetime.now().replace(microsecond=0)
