"""`python -m headrace.reference [--check]`: write the generated documentation, or report stale files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.reference.blocks import BlockError
from headrace.reference.files import stale, write


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a file is stale")
    parser.add_argument("--root", type=Path, default=Path(), help="the root of the repository")
    options = parser.parse_args(arguments)
    try:
        files = stale(options.root) if options.check else write(options.root)
    except BlockError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name in files:
        print(f"{'stale' if options.check else 'written'}: {name}")
    if options.check and files:
        print("run: make docs (python -m headrace.reference)", file=sys.stderr)
    return 1 if options.check and files else 0


if __name__ == "__main__":
    sys.exit(main())
