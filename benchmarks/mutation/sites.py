"""Where a Python source can be changed, and into what. Each mutation replaces one span of the text; lines stay."""

from __future__ import annotations

import ast
import bisect
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

COMPARED: dict[str, tuple[str, ...]] = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "in": ("not in",),
    "not in": ("in",),
    "is": ("is not",),
    "is not": ("is",),
}
COMPUTED = {"+": "-", "-": "+", "*": "//", "//": "*"}  # a slash also joins paths
RENAMED = {"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax", "break": "continue", "and": "or"}
RENAMED |= {after: before for before, after in RENAMED.items()}
EMPTY = {"list": "[]", "tuple": "()", "dict": "{}", "set": "set()", "str": '""'}
"""What a function returns in place of a value, by its annotation; without one of these: None."""
UNTOUCHED = ("cast", "TypeVar", "NewType", "field")
"""Calls whose arguments say nothing about behaviour, or not enough."""

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.And: "and",
    ast.Or: "or",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
}


@dataclass(frozen=True)
class Mutation:
    """One change of a source: the bytes from ``start`` to ``end`` become ``text``.

    ``first`` and ``last`` are the lines of the statement, or of the head of a compound one: a test covers the mutation
    if it runs any of them.
    """

    operator: str
    start: int
    end: int
    text: str
    line: int
    first: int
    last: int

    def apply(self, source: str) -> str:
        """The changed source, with as many lines."""
        data = source.encode()
        removed = data[self.start : self.end]
        lost = removed.count(b"\n") - self.text.count("\n")
        return (data[: self.start] + self.text.encode() + b"\n" * lost + data[self.end :]).decode()

    def change(self, source: str) -> tuple[str, str]:
        """What stands in the line before and after."""
        before, after = (text.splitlines()[self.line - 1].strip() for text in (source, self.apply(source)))
        return before, after


def mutations(source: str) -> list[Mutation]:
    """All of a source, in the order of the text. Those of one operator at one place follow each other."""
    finder = _Finder(source)
    finder.block(ast.parse(source).body, "")
    return sorted(finder.found, key=lambda mutation: (mutation.start, mutation.end, mutation.operator))


class _Finder:
    def __init__(self, source: str) -> None:
        self.found: list[Mutation] = []
        self.data = source.encode()
        lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._tokens: list[tuple[int, int, str]] = []
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.OP, tokenize.NAME):
                (row, column), text = token.start, token.string
                start = self._starts[row - 1] + len(lines[row - 1][:column].encode())
                self._tokens.append((start, start + len(text.encode()), text))
        self._head = (0, 0)

    # places

    def _at(self, line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return self._starts[line - 1] + column

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self.data[start:end].decode()

    def _between(self, left: ast.expr, right: ast.expr, operator: str) -> tuple[int, int] | None:
        """The span of an operator of one or two words between two operands (and their parentheses)."""
        begin, finish = self._span(left)[1], self._span(right)[0]
        words = operator.split()
        place = bisect.bisect_left(self._tokens, (begin,))
        for index in range(place, len(self._tokens)):
            if self._tokens[index][0] >= finish:
                break
            tokens = self._tokens[index : index + len(words)]
            if [text for _, _, text in tokens] == words:
                return tokens[0][0], tokens[-1][1]
        return None

    def _add(self, operator: str, span: tuple[int, int] | None, *texts: str) -> None:
        if span is None:
            return
        line = bisect.bisect_right(self._starts, span[0])
        for text in texts:
            self.found.append(Mutation(operator, *span, text, line, *self._head))

    # statements

    def block(self, statements: Iterable[ast.stmt], returns: str) -> None:
        """Statements of a module, a class or a function that returns this."""
        for statement in statements:
            self._head = statement.lineno, statement.end_lineno or statement.lineno
            self._statement(statement, returns)

    def _statement(self, node: ast.stmt, returns: str) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._heads(node, *node.args.defaults, *filter(None, node.args.kw_defaults))
                self.block(node.body, ast.unparse(node.returns) if node.returns else "")
            case ast.ClassDef():
                self.block(node.body, "")
            case ast.If() | ast.While():
                self._branch(node, returns)
            case ast.For() | ast.AsyncFor():
                self._heads(node, node.iter)
                self.block([*node.body, *node.orelse], returns)
            case ast.With() | ast.AsyncWith():
                self._heads(node, *(item.context_expr for item in node.items))
                self.block(node.body, returns)
            case ast.Try():
                for statements in (node.body, *(handler.body for handler in node.handlers)):
                    self.block(statements, returns)
                self.block([*node.orelse, *node.finalbody], returns)
            case ast.Match():
                self._heads(node, node.subject)
                for case in node.cases:
                    if case.guard:
                        self._head = case.pattern.lineno, case.guard.end_lineno or case.guard.lineno
                        self._condition(case.guard)
                        self._expression(case.guard)
                    self.block(case.body, returns)
            case _:
                self._simple(node, returns)

    def _heads(self, node: ast.stmt, *expressions: ast.expr) -> None:
        last = max((expression.end_lineno or 0 for expression in expressions), default=node.lineno)
        self._head = node.lineno, max(last, node.lineno)
        for expression in expressions:
            self._expression(expression)

    def _branch(self, node: ast.If | ast.While, returns: str) -> None:
        if self._text(node.test) == "TYPE_CHECKING" or self._text(node.test).startswith("__name__"):
            self.block(node.orelse, returns)
            return
        self._heads(node, node.test)
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test, *(("True", "False") if isinstance(node, ast.If) else ("False",)))
        self.block([*node.body, *node.orelse], returns)

    def _condition(self, test: ast.expr, *values: str) -> None:
        if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            values = f"not ({self._text(test)})", *values
        self._add("condition", self._span(test), *values)

    def _simple(self, node: ast.stmt, returns: str) -> None:
        match node:
            case ast.Return(value=ast.expr() as value):
                self._returned(value, returns)
                self._expression(value)
            case ast.Expr(value=value) if not isinstance(value, ast.Constant):
                if isinstance(value, ast.Call):
                    self._add("statement", self._span(node), "pass")
                self._expression(value)
            case ast.Assign(targets=targets, value=value):
                if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                    return
                if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
                    self._add("statement", self._span(node), "pass")
                for expression in (*targets, value):
                    self._expression(expression)
            case ast.AugAssign(target=target, value=value, op=op):
                self._add("statement", self._span(node), "pass")
                if (text := _OPERATORS.get(type(op), "")) in COMPUTED and not _is_text(value):
                    self._add("arithmetic", self._between(target, value, f"{text}="), f"{COMPUTED[text]}=")
                self._expression(target)
                self._expression(value)
            case ast.AnnAssign(value=ast.expr() as value) | ast.Assert(test=value):
                self._expression(value)
            case ast.Break() | ast.Continue():
                start, end = self._span(node)
                self._add("loop", (start, end), RENAMED[self.data[start:end].decode()])
            case _:  # raise, import, del, global: nothing but words, or nothing that could be left out
                return

    def _returned(self, value: ast.expr, returns: str) -> None:
        if isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, bool)):
            return
        if returns == "bool":
            self._add("return", self._span(value), f"not ({self._text(value)})")
            return
        text = EMPTY.get(returns.partition("[")[0], "None")
        if text != self._text(value):
            self._add("return", self._span(value), text)

    # expressions

    def _expression(self, node: ast.expr) -> None:
        for part in _walk(node):
            self._operation(part)
            self._other(part)

    def _operation(self, part: ast.expr) -> None:
        match part:
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for op, (before, after) in zip(ops, pairwise([left, *comparators]), strict=True):
                    text = _OPERATORS[type(op)]
                    self._add("comparison", self._between(before, after, text), *COMPARED[text])
            case ast.BoolOp(op=op, values=values):
                text = _OPERATORS[type(op)]
                for before, after in pairwise(values):
                    self._add("boolean", self._between(before, after, text), RENAMED[text])
            case ast.BinOp(left=before, op=op, right=after):
                text = _OPERATORS.get(type(op), "")
                if text in COMPUTED and not _is_text(before) and not _is_text(after):
                    self._add("arithmetic", self._between(before, after, text), COMPUTED[text])
            case ast.UnaryOp(op=ast.Not()):
                start, end = self._span(part)
                spaces = len(self.data[start + 3 : end]) - len(self.data[start + 3 : end].lstrip(b" "))
                self._add("not", (start, start + 3 + spaces), "")
            case ast.UnaryOp(op=ast.USub()):
                self._add("arithmetic", (self._span(part)[0], self._span(part)[0] + 1), "+")
            case _:
                return

    def _other(self, part: ast.expr) -> None:
        match part:
            case ast.Constant(value=value) if isinstance(value, int):
                text = str(not value) if isinstance(value, bool) else str(value + 1)
                self._add("constant", self._span(part), text)
            case ast.IfExp(test=test):
                self._condition(test)
            case ast.Call():
                self._call(part)
            case ast.Slice(lower=lower, upper=upper):
                for bound in filter(None, (lower, upper)):
                    self._add("slice", self._span(bound), "")
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                for test in (test for generator in part.generators for test in generator.ifs):
                    self._condition(test, "True")
            case _:
                return

    def _call(self, node: ast.Call) -> None:
        _, end = self._span(node.func)
        match node.func:
            case ast.Name(id="sorted"):
                self._add("call", (self._span(node)[1], self._span(node)[1]), "[::-1]")
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in RENAMED:
                self._add("call", (end - len(name), end), RENAMED[name])


def _walk(node: ast.expr) -> Iterator[ast.expr]:
    """Expressions below one, itself first; nothing in f-strings, whose places Python 3.11 does not know."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in UNTOUCHED:
        return
    yield node
    below: list[ast.AST] = [node]
    while below:
        for child in ast.iter_child_nodes(below.pop()):
            if isinstance(child, ast.expr):
                yield from _walk(child)
            elif isinstance(child, ast.keyword | ast.comprehension):
                below.append(child)


def _is_text(node: ast.expr) -> bool:
    """Strings and lists are concatenated, not added: every test that runs it would see a TypeError."""
    words = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return words or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)
