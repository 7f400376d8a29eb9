"""Detection of chat templates that walk the parts of a message's content.

A message's content is a text, or a list of parts. Templates of models that see images, and some of
others, loop over the parts; most print the content, as if it were a text. Transformers passes on
what it is given, so that a list is printed with its brackets by the latter.
"""

from jinja2 import nodes

_CONTENT = "content"
_WALKING_FILTERS = frozenset({"map", "reject", "rejectattr", "select", "selectattr"})
_LIST_FILTERS = _WALKING_FILTERS | {"d", "default", "list", "reverse"}


def walks_content(template: nodes.Template) -> bool:
    """Return true if a template loops over the content of messages, or reads fields of its parts.

    The content is followed through variables, namespaces and arguments of macros, by their names.
    """
    contents = _Contents(template)
    loops = (each.iter for each in template.find_all(nodes.For))
    filters = (each for each in template.find_all(nodes.Filter) if each.name in _WALKING_FILTERS)
    if any(map(contents.has, (*loops, *(each.node for each in filters)))):
        return True
    fields = [each.node for each in template.find_all(nodes.Getattr)]
    fields += [each.node for each in template.find_all(nodes.Getitem)]
    return any(map(contents.has_part, fields))


class _Contents:
    """Expressions of a template that may be the content of a message."""

    def __init__(self, template: nodes.Template) -> None:
        self._names: set[str] = set()
        assigned = [(each.target, each.node) for each in template.find_all(nodes.Assign)]
        macros = {each.name: each for each in template.find_all(nodes.Macro)}
        for call in template.find_all(nodes.Call):
            macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
            if macro is not None:
                assigned += zip(macro.args, call.args, strict=False)
                named = {each.key: each.value for each in call.kwargs}
                assigned += ((each, named[each.name]) for each in macro.args if each.name in named)
        num_before = -1
        while num_before < len(self._names):
            num_before = len(self._names)
            self._names.update(_name_of(to) for to, value in assigned if self.has(value))

    def has(self, node: nodes.Node | None) -> bool:
        """Return true if an expression is a content, or a list of some of its parts."""
        match node:
            case nodes.Getattr(attr=name) if name == _CONTENT:
                return True
            case nodes.Getitem(arg=nodes.Const(value=name)) if name == _CONTENT:
                return True
            case nodes.Call(node=nodes.Getattr(attr="get"), args=[nodes.Const(value=name), *_]):
                return bool(name == _CONTENT)
            case nodes.Getitem(arg=nodes.Slice()):
                return self.has(node.node)
            case nodes.Filter():
                return node.name in _LIST_FILTERS and self.has(node.node)
            case nodes.CondExpr():
                return self.has(node.expr1) or self.has(node.expr2)
            case nodes.BinExpr(operator="or" | "and"):
                return self.has(node.left) or self.has(node.right)
            case nodes.Name() | nodes.Getattr():
                return _name_of(node) in self._names
        return False

    def has_part(self, node: nodes.Node) -> bool:
        """Return true if an expression is a part by its number, such as `content[0]`."""
        match node:
            case nodes.Getitem(arg=nodes.Const(value=int())):
                return self.has(node.node)
        return False


def _name_of(node: nodes.Node) -> str:
    """Return the name of a variable, or of a namespace's attribute; empty for others."""
    match node:
        case nodes.Name():
            return str(node.name)
        case nodes.NSRef():
            return f"{node.name}.{node.attr}"
        case nodes.Getattr(node=nodes.Name(name=name)):
            return f"{name}.{node.attr}"
    return ""
