"""Build hook of the package: the README as a package index shows it.

In the repository, links and pictures are relative. An index has only the text, so there they must be absolute, and name the
version that they belong to. Diagrams in Mermaid are left out: an index shows their source.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?!https?://|mailto:|#)([^)\s]+)\)")
_PICTURE = re.compile(r'\b(src|srcset)="(?!https?://)([^"]+)"')
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n\n?", re.DOTALL | re.MULTILINE)


def published_readme(text: str, *, repository: str, version: str) -> str:
    """Return the text with absolute links into `repository`, such as https://github.com/owner/name, at that version."""
    files = f"{repository}/blob/v{version}"
    pictures = f"{repository}/raw/v{version}"

    def absolute(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        return f"{mark}[{words}]({pictures if mark else files}/{target})"

    text = _LINK.sub(absolute, _DIAGRAM.sub("", text))
    return _PICTURE.sub(rf'\1="{pictures}/\2"', text)


class ReadmeHook(MetadataHookInterface):
    """Sets the dynamic field `readme` of pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"]
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": published_readme(text, repository=repository, version=metadata["version"]),
        }
