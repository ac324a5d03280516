"""Pages for people, each one file with nothing from elsewhere and no data in it: it asks with the reader's token."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from headrace.serve.http.request_context import Front, check_accept

_SCRIPT = re.compile(rb'<script src="([a-z]+\.js)"></script>')
_HTML = "text/html"


class StaticPage:
    """One page of the folder `static`, with the scripts that it names put into it."""

    def __init__(self, name: str) -> None:
        self.body = _SCRIPT.sub(lambda found: b"<script>%s</script>" % _read(found[1].decode()), _read(name))
        self.headers = {
            "content-security-policy": (
                f"default-src 'none'; connect-src 'self'; script-src {self._hashes('script')}; "
                f"style-src {self._hashes('style')}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }

    def answer(self, front: Front, request: Request) -> Response:
        """The page, for whoever asks: there is nothing in it to guard."""
        front.check_host(request.headers.get("host"))
        check_accept(request, _HTML)
        return Response(self.body, headers={**self.headers, "vary": "accept"}, media_type=_HTML)

    def _hashes(self, tag: str) -> str:
        """What lets a browser run just what stands in the page, and nothing that somebody has slipped into it."""
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), self.body, re.DOTALL)
        return " ".join(f"'sha256-{b64encode(hashlib.sha256(one).digest()).decode()}'" for one in inside)


def _read(name: str) -> bytes:
    return (files("headrace.serve") / "static" / name).read_bytes()


def wanted(request: Request) -> bool:
    """Whether a page is asked for by name, as browsers do; programs that take anything get JSON."""
    return _HTML in request.headers.get("accept", "")


DOCS = StaticPage("docs.html")
DASHBOARDS = StaticPage("dashboards.html")
