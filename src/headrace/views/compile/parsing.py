"""Parses the SQL of a view, and writes parts of the tree as SQL, unchanged."""

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
    except ParseError as error:  # the plain dialect parses it as a function it knows
        raise query.error_at(
            query.tree, "sql-syntax", f"SQL cannot be parsed as a view: {error.errors[0].get('description')}", ""
        ) from error
    named = None if tree is None else tree.transform(_normalise_names)
    assert isinstance(named, exp.Query), "parse() accepts only queries"
    return query, named


def to_sql(node: exp.Expr) -> str:
    """The expression as Spark SQL."""
    return node.sql(dialect=Verbatim, comments=False, normalize_functions=False)


def ref(name: str) -> Ref:
    """A reference to a column of the algebra."""
    return Ref(this=exp.to_identifier(name, quoted=True))


def string_value(node: exp.Expr | None) -> str | None:
    """The value of a string literal; None for any other expression."""
    is_string = isinstance(node, exp.Literal) and node.is_string and node.name[:1] in ("'", '"')
    return node.name[1:-1] if node is not None and is_string else None


def function_of(node: exp.Expr) -> str:
    """The name of the called function in lower case; empty if the node is not a call."""
    return node.name if isinstance(node, exp.Anonymous) else ""


def with_field_names(node: exp.Expr, refuse: Callable[[exp.Expr], Exception]) -> exp.Expr:
    """A copy with explicit field names in struct(a, b AS c), as Spark derives them: columns get other names here."""
    copy = node.copy()
    for call in list(copy.find_all(exp.Anonymous)):
        if call.name == "struct" and not any(field.is_star for field in call.expressions):
            pairs = [
                (_field_name(field, position, refuse), field.unalias())
                for position, field in enumerate(call.expressions, 1)
            ]
            call.set("this", "named_struct")
            call.set("expressions", [part for name, value in pairs for part in (_quoted_text(name), value)])
    return copy


def _field_name(node: exp.Expr, position: int, refuse: Callable[[exp.Expr], Exception]) -> str:
    named = node if isinstance(node, exp.Alias) else node.unnest()
    if isinstance(named, exp.Bracket) and string_value(named.expressions[0]) is not None:
        raise refuse(node)  # Spark names it after a struct field, but not after a map value
    is_name = isinstance(named, exp.Alias | exp.Column | exp.Dot | exp.Identifier)
    return str(named.alias_or_name) if is_name else f"col{position}"


def _quoted_text(value: str) -> exp.Literal:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return exp.Literal(this=f"'{escaped}'", is_string=True)


def conjunction(parts: list[exp.Expr]) -> exp.Expr:
    first, *others = [exp.paren(part) if isinstance(part, exp.Or) else part for part in parts]
    for other in others:
        first = exp.And(this=first, expression=other)
    return first


def _verbatim_tokens(query: Query) -> list[Token]:
    """The tokens, with literals as written; Spark decides what two adjacent strings mean ('it''s')."""
    result: list[Token] = []
    position, tokens = 0, query.tokens
    while position < len(tokens):
        token, last = tokens[position], result[-1] if result else None
        span = _interval(tokens, position)
        if span > 1:
            result.append(_merged_token(query, token, tokens[position + 2 * span], TokenType.STRING))
            position += 2 * span
        elif token.token_type in _STRINGS:
            continues = last is not None and (last.token_type is TokenType.STRING or last.text.upper() in _TYPED)
            result.append(_merged_token(query, result.pop() if continues else token, token, TokenType.STRING))
        elif last is not None and last.token_type is TokenType.NUMBER and token.start <= last.end:
            # the tokeniser splits 1L into 1, :: and BIGINT at one position
            result.append(_merged_token(query, result.pop(), token, TokenType.NUMBER))
        else:
            result.append(token)
        position += 1
    return result


def _interval(tokens: Sequence[Token], position: int) -> int:
    """The number of number-unit pairs after INTERVAL."""
    if tokens[position].text.upper() != "INTERVAL":
        return 0
    count = 0
    while position + 2 * count + 2 < len(tokens):
        number, unit = tokens[position + 2 * count + 1], tokens[position + 2 * count + 2]
        if number.token_type not in (TokenType.NUMBER, TokenType.STRING) or unit.text.upper().rstrip("S") not in _UNITS:
            break
        count += 1
    return count


def _merged_token(query: Query, first: Token, last: Token, kind: TokenType) -> Token:
    source = query.sql[first.start : last.end + 1]
    return Token(kind, source, first.line, first.col, first.start, last.end, [])


def _normalise_names(node: exp.Expr) -> exp.Expr:
    """Lower-case function names, so that equal calls are equal trees."""
    if isinstance(node, exp.Any) and not isinstance(node.parent, exp.Binary):
        node = exp.Anonymous(this="any", expressions=[node.this])
    if isinstance(node, exp.Anonymous):
        node.set("this", node.name.lower())
        units = node.expressions[:1] if node.name in _WITH_UNIT and len(node.expressions) == 3 else []
        for unit in units:
            if isinstance(unit, exp.Column) and len(unit.parts) == 1:
                unit.replace(exp.var(unit.name))
    return node
