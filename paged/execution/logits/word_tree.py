"""WordTree: words as token ids, in a tree by their beginnings."""

from collections.abc import Iterable


class WordTree:
    """A place in the tree: the words that begin with the tokens on the way to it.

    `last` are the tokens that complete one of them, `following` leads on to longer ones.
    """

    __slots__ = ("following", "last")

    def __init__(self, words: Iterable[tuple[int, ...]] = ()) -> None:
        """Make the root of the tree of these words, of which none is empty."""
        self.last: set[int] = set()
        self.following: dict[int, WordTree] = {}
        for word in words:
            place = self
            for token in word[:-1]:
                place = place.following.setdefault(token, WordTree())
            place.last.add(word[-1])
