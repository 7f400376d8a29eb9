"""How a thought is followed, and closed when it is long enough."""

import pytest

from pagedrun.paged.text.reasoning import ReasoningBudget, ReasoningTags, TaggedReasoning

TAGS = ReasoningTags("<a>", "</a>")


def decode(token_ids: list[int]) -> str:
    return "".join(map(chr, token_ids))


def lived(text: str, budget: int, *, is_open: bool = False) -> str:
    """Return what is generated where a model would write `text`, followed until the end."""
    closing = [ord(each) for each in "</a>"]
    thought = ReasoningBudget(TaggedReasoning(TAGS, decode, is_open=is_open), closing, budget)
    made, own = "", list(text)
    while own:
        wanted = own.pop(0)
        token = ord(wanted) if thought.forced is None else thought.forced
        made += chr(token)
        if not thought.take(token):
            return f"{made}|"
    return made


@pytest.mark.parametrize(
    ("text", "budget", "made"),
    [
        ("<a>xyz</a>b", 9, "<a>xyz</a>|"),
        ("<a>xyz.......", 3, "<a>xyz</a>|"),
        ("<a>xyz.......", 0, "<a></a>|"),
        (" \n<a>xyz.......", 1, " \n<a>x</a>|"),
        ("<a></a>b", 0, "<a></a>|"),
        ("<a>x</.........", 3, "<a>x</</a>|"),  # cut within a tag of its own
        ("<a>xy", 9, "<a>xy"),
        ("bxyz", 1, "b|"),
        ("<bxyz", 1, "<b|"),
    ],
)
def test_a_thought_that_the_answer_opens(text: str, budget: int, made: str) -> None:
    assert lived(text, budget) == made


@pytest.mark.parametrize(
    ("text", "budget", "made"),
    [
        ("xyz</a>b", 9, "xyz</a>|"),
        ("xyz.......", 2, "xy</a>|"),
        ("xyz.......", 0, "</a>|"),
    ],
)
def test_a_thought_that_the_prompt_opens(text: str, budget: int, made: str) -> None:
    assert lived(text, budget, is_open=True) == made


def test_a_tag_whose_characters_take_several_tokens() -> None:
    thought = TaggedReasoning(
        ReasoningTags("◁a▷", "◁/a▷"),
        lambda ids: bytes(ids).decode(errors="replace"),
        is_open=False,
    )
    for byte in "◁a▷".encode():
        assert not thought.is_over
        thought.take(byte)
    assert thought.is_open
