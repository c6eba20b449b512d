"""Tables made from results, between the marks of a page in docs/ that name the script they are made by."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "results"


def put(page: str, script: str, text: str) -> None:
    """Write `text` into docs/`page`; with --check on the command line, only see whether it is what stands there."""
    path, name = ROOT / "docs" / page, Path(script).name
    marks = re.compile(rf"(<!-- made by experiments/{re.escape(name)}[^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
    before = path.read_text()
    if not marks.search(before):
        sys.exit(f"docs/{page} has no place for what experiments/{name} makes")
    after = marks.sub(lambda found: f"{found.group(1)}{text}\n{found.group(2)}", before)
    if "--check" not in sys.argv:
        path.write_text(after)
    elif after != before:
        sys.exit(f"docs/{page} is not what the results say")
