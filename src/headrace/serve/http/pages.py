"""HTML pages: each is one self-contained file without data, which requests the data with the reader's token."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from headrace.serve.http.request_context import RequestContext, check_accept

_SCRIPT = re.compile(rb'<script src="([a-z]+\.js)"></script>')
_HTML = "text/html"


class StaticPage:
    """One page of the folder `static`, with its scripts inlined."""

    def __init__(self, name: str) -> None:
        self.body = _SCRIPT.sub(lambda match: b"<script>%s</script>" % _read(match[1].decode()), _read(name))
        self.headers = {
            "content-security-policy": (
                f"default-src 'none'; connect-src 'self'; script-src {self._hashes('script')}; "
                f"style-src {self._hashes('style')}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }

    def answer(self, context: RequestContext, request: Request) -> Response:
        """The page, for every caller: it contains no data."""
        context.check_host(request.headers.get("host"))
        check_accept(request, _HTML)
        return Response(self.body, headers={**self.headers, "vary": "accept"}, media_type=_HTML)

    def _hashes(self, tag: str) -> str:
        """Hashes that let a browser run only the scripts and styles of the page, and no injected ones."""
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), self.body, re.DOTALL)
        return " ".join(f"'sha256-{b64encode(hashlib.sha256(content).digest()).decode()}'" for content in contents)


def _read(name: str) -> bytes:
    return (files("headrace.serve") / "static" / name).read_bytes()


def requested(request: Request) -> bool:
    """Whether the request names HTML, as browsers do; clients that accept anything get JSON."""
    return _HTML in request.headers.get("accept", "")


DOCS = StaticPage("docs.html")
DASHBOARDS = StaticPage("dashboards.html")
