"""The page at `/docs`: one file, nothing from elsewhere, and no data in it."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from importlib.resources import files

PAGE = (files("headrace.serve") / "static" / "docs.html").read_bytes()


def _hashes(tag: str) -> str:
    """What lets a browser run just what stands in the page, and nothing that somebody has slipped into it."""
    inside = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), PAGE, re.DOTALL)
    return " ".join(f"'sha256-{b64encode(hashlib.sha256(one).digest()).decode()}'" for one in inside)


HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; connect-src 'self'; script-src {_hashes('script')}; style-src {_hashes('style')}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
