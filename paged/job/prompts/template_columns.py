"""TemplateColumns: columns that a prompt template reads, and names that it only has in braces."""

import re
from dataclasses import dataclass

from jinja2 import TemplateError, meta, nodes

from pagedrun.paged.text.sandbox import Sandbox

_IN_BRACES = re.compile(r"(?<!\{)\{\s*([^\W\d]\w*)\s*\}(?!\})")


@dataclass(frozen=True, slots=True)
class TemplateColumns:
    """`names` are variables of the template and what it reads of `row` by name; `reads_row` says
    whether it reads the row in another way. `in_braces` are names in single braces in its text, as
    Python's and LangChain's formats have them, which Jinja prints as they are.
    """

    names: frozenset[str]
    reads_row: bool
    in_braces: tuple[str, ...]

    @classmethod
    def of(cls, source: str) -> "TemplateColumns":
        """Return those of a template; nothing of one that does not compile."""
        # A plain environment would compute constants while it looks for names: `9**9**9`, for ever.
        try:
            tree = Sandbox().parse(source)
            names = set(meta.find_undeclared_variables(tree))
        except (TemplateError, RecursionError):
            return cls(frozenset(), reads_row=False, in_braces=())
        items = [each for each in tree.find_all(nodes.Getitem) if _is_row(each.node)]
        constants = [each.arg.value for each in items if isinstance(each.arg, nodes.Const)]
        attributes = [each.attr for each in tree.find_all(nodes.Getattr) if _is_row(each.node)]
        num_rows = sum(map(_is_row, tree.find_all(nodes.Name)))
        texts = [each.data for each in tree.find_all(nodes.TemplateData)]
        in_braces = [name for text in texts for name in _IN_BRACES.findall(text)]
        return cls(
            frozenset(names | {str(value) for value in constants} | set(attributes)),
            reads_row=num_rows > len(constants) + len(attributes),
            in_braces=tuple(dict.fromkeys(in_braces)),
        )


def _is_row(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == "row"
