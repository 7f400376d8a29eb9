"""ChannelThought: how far an answer in channels has come on its way to the channel of answers."""

from pagedrun.paged.text.channels import ChannelReader


class ChannelThought:
    """Follows the tokens of an answer until they are those of the answer itself; see `Thinking`."""

    tags = None
    end = ""  # which no tag closes

    def __init__(self, reader: ChannelReader) -> None:
        self._reader = reader

    @property
    def is_open(self) -> bool:
        """Whether the answer is still to begin."""
        return not self._reader.is_answer

    @property
    def is_over(self) -> bool:
        """Whether the answer has begun."""
        return self._reader.is_answer

    @property
    def is_counted(self) -> bool:
        """Whether the next token is one of a thought, rather than between two messages."""
        return self.is_open and not self._reader.is_header

    def take(self, token_id: int) -> None:
        """Go on by the next token of the answer."""
        self._reader.take(token_id)
