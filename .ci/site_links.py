"""Hook of mkdocs: what a page links outside docs/ is in the repository, not on the site."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)\s#]+)[^)\s]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Such a link becomes its text, with the path in the repository behind it."""

    def without_link(match: re.Match[str]) -> str:
        text, path = match.groups()
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return _OUTSIDE.sub(without_link, markdown)
