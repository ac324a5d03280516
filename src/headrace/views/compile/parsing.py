"""The SQL of a view as a tree, and parts of the tree as SQL again, word for word."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from headrace.sql.query import Query, parse
from headrace.views.algebra.dialect import Ref, Verbatim

_WITH_UNIT = ("dateadd", "date_add", "timestampadd", "datediff", "date_diff", "timestampdiff")
_TYPED = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIME")
_UNITS = ("YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
_STRINGS = (TokenType.STRING, TokenType.RAW_STRING)


def parse_view(sql: str) -> tuple[Query, exp.Query]:
    """The query and its tree in the dialect of views. SqlError: `sql-syntax`, `sql-not-a-query`."""
    query = parse(sql)
    tokens = _verbatim_tokens(query)
    try:
        tree = Verbatim().parser().parse(tokens, query.sql)[0]
    except ParseError as error:  # what the plain dialect takes for a known function
        raise query.error_at(
            query.tree, "sql-syntax", f"SQL cannot be read as a view: {error.errors[0].get('description')}", ""
        ) from error
    named = None if tree is None else tree.transform(_normalise_names)
    assert isinstance(named, exp.Query), "the plain dialect made sure of it"
    return query, named


def to_sql(node: exp.Expr) -> str:
    """An expression in Spark SQL."""
    return node.sql(dialect=Verbatim, comments=False, normalize_functions=False)


def ref(name: str) -> Ref:
    """A reference to a column of the algebra."""
    return Ref(this=exp.to_identifier(name, quoted=True))


def string_value(node: exp.Expr | None) -> str | None:
    """The value of a text that is written out; None when it is not one."""
    is_text = isinstance(node, exp.Literal) and node.is_string and node.name[:1] in ("'", '"')
    return node.name[1:-1] if node is not None and is_text else None


def function_of(node: exp.Expr) -> str:
    """The name of the function that is called, in lower case; nothing when it is no call."""
    return node.name if isinstance(node, exp.Anonymous) else ""


def with_field_names(node: exp.Expr, refuse: Callable[[exp.Expr], Exception]) -> exp.Expr:
    """A copy in which struct(a, b AS c) says its field names, as Spark finds them: its columns get others here."""
    made = node.copy()
    for call in list(made.find_all(exp.Anonymous)):
        if call.name == "struct" and not any(one.is_star for one in call.expressions):
            pairs = [(_field_name(one, place, refuse), one.unalias()) for place, one in enumerate(call.expressions, 1)]
            call.set("this", "named_struct")
            call.set("expressions", [part for name, value in pairs for part in (_quoted_text(name), value)])
    return made


def _field_name(node: exp.Expr, place: int, refuse: Callable[[exp.Expr], Exception]) -> str:
    named = node if isinstance(node, exp.Alias) else node.unnest()
    if isinstance(named, exp.Bracket) and string_value(named.expressions[0]) is not None:
        raise refuse(node)  # it has the name of a field of a struct, and none of a value of a map
    is_name = isinstance(named, exp.Alias | exp.Column | exp.Dot | exp.Identifier)
    return str(named.alias_or_name) if is_name else f"col{place}"


def _quoted_text(value: str) -> exp.Literal:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return exp.Literal(this=f"'{escaped}'", is_string=True)


def conjunction(parts: list[exp.Expr]) -> exp.Expr:
    """All of it has to be true."""
    first, *others = [exp.paren(part) if isinstance(part, exp.Or) else part for part in parts]
    for other in others:
        first = exp.And(this=first, expression=other)
    return first


def _verbatim_tokens(query: Query) -> list[Token]:
    """The tokens, with each literal as it stands there; Spark says what two strings in a row mean ('it''s')."""
    made: list[Token] = []
    place, tokens = 0, query.tokens
    while place < len(tokens):
        token, last = tokens[place], made[-1] if made else None
        span = _interval(tokens, place)
        if span > 1:
            made.append(_merged_token(query, token, tokens[place + 2 * span], TokenType.STRING))
            place += 2 * span
        elif token.token_type in _STRINGS:
            begins = last is not None and (last.token_type is TokenType.STRING or last.text.upper() in _TYPED)
            made.append(_merged_token(query, made.pop() if begins else token, token, TokenType.STRING))
        elif last is not None and last.token_type is TokenType.NUMBER and token.start <= last.end:
            # of 1L the tokeniser makes 1, :: and BIGINT in one place
            made.append(_merged_token(query, made.pop(), token, TokenType.NUMBER))
        else:
            made.append(token)
        place += 1
    return made


def _interval(tokens: Sequence[Token], place: int) -> int:
    """How many numbers with units follow INTERVAL."""
    if tokens[place].text.upper() != "INTERVAL":
        return 0
    count = 0
    while place + 2 * count + 2 < len(tokens):
        number, unit = tokens[place + 2 * count + 1], tokens[place + 2 * count + 2]
        if number.token_type not in (TokenType.NUMBER, TokenType.STRING) or unit.text.upper().rstrip("S") not in _UNITS:
            break
        count += 1
    return count


def _merged_token(query: Query, first: Token, last: Token, kind: TokenType) -> Token:
    source = query.sql[first.start : last.end + 1]
    return Token(kind, source, first.line, first.col, first.start, last.end, [])


def _normalise_names(node: exp.Expr) -> exp.Expr:
    """Function names in one spelling, so that equal calls are equal trees."""
    if isinstance(node, exp.Any) and not isinstance(node.parent, exp.Binary):
        node = exp.Anonymous(this="any", expressions=[node.this])
    if isinstance(node, exp.Anonymous):
        node.set("this", node.name.lower())
        units = node.expressions[:1] if node.name in _WITH_UNIT and len(node.expressions) == 3 else []
        for unit in units:
            if isinstance(unit, exp.Column) and len(unit.parts) == 1:
                unit.replace(exp.var(unit.name))
    return node
