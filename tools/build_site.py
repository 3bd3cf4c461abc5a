"""Builds the documentation site from `docs/`, checks every link of it, and puts it where the relay serves it from.

    python tools/build_site.py [FOLDER]

The pages of `docs/` link to files of the repository that are no pages. The site must be complete without the repository, so
Markdown files outside of `docs/` become pages below `project/`, other files are copied to `files/`, and a linked folder
becomes a page that lists its files. The generator runs with `--strict`; what it does not check (files, anchors, addresses of
other hosts) is checked here. A failed build leaves the previous site as it was.
"""

import argparse
import hashlib
import json
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "src" / "crcr" / "show" / "help" / "site"
DOCS = PurePosixPath("docs")
POLICY = "policy.json"
"""For `src/crcr/show/help/docs_site.py`: hashes of what the Content-Security-Policy of the pages must allow."""
_BLOCK = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_UNUSED = ("404.html", "sitemap.xml", "objects.inv")
"""The first two hold absolute addresses, and the relay answers unknown addresses itself."""


class SiteError(Exception):
    """The site cannot be built, or a link in it leads nowhere."""


def build_site(output: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        SiteSource(ROOT, work / "docs").write()
        shutil.copy(ROOT / "mkdocs.yml", work)
        generate(work)
        site = work / "site"
        for unused in _UNUSED:
            (site / unused).unlink(missing_ok=True)
        if problems := list(check_links(site)):
            raise SiteError("\n".join(problems))
        (site / POLICY).write_text(json.dumps({"styles": [find_search_style(site)]}), "utf-8")
        if output.exists():
            shutil.rmtree(output)
        shutil.copytree(site, output)


def generate(work: Path) -> None:
    """Run the generator, which reads nothing but this folder."""
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "-f", "mkdocs.yml"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SiteError(re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr))


def find_search_style(site: Path) -> str:
    """Return the hash of the one style sheet that the site's script adds to a page, for its search."""
    [script] = site.glob("assets/javascripts/bundle.*.js")
    text = script.read_text("utf-8")
    names = re.findall(r'"style",\{\},(\w+)\.toString\(\)', text)
    literal = r"""\b{}=(["'`])((?:(?!\1)[^\\])*)\1"""
    sheets = [found[1] for name in names for found in re.findall(literal.format(name), text)]
    if len(sheets) != 1:
        raise SiteError(f"{script.name} adds {len(sheets)} style sheets in a known way, and must add 1")
    return f"sha256-{b64encode(hashlib.sha256(sheets[0].encode()).digest()).decode()}"


class SiteSource:
    """The Markdown that the site is built from: pages and files by their path in the repository."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        pages = [*(root / DOCS).rglob("*.md"), *(root / DOCS).glob("*.css")]
        self._waiting = sorted(PurePosixPath(path.relative_to(root).as_posix()) for path in pages)
        self._written: set[PurePosixPath] = set()

    def write(self) -> None:
        while self._waiting:
            source = self._waiting.pop()
            if source not in self._written:
                self._written.add(source)
                self._write_one(source)

    def _write_one(self, source: PurePosixPath) -> None:
        target = self._folder / self.place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        path = self._root / source
        if path.is_dir():
            target.write_text(self._list_folder(source), "utf-8")
        elif path.suffix == ".md":
            target.write_text(self._rewrite(source, path.read_text("utf-8")), "utf-8")
        else:
            shutil.copyfile(path, target)

    def place(self, source: PurePosixPath) -> PurePosixPath:
        """Return where a file of the repository is in the site's source."""
        inside = source.is_relative_to(DOCS)
        if (self._root / source).is_dir():
            return (source.relative_to(DOCS) if inside else "files" / source) / "index.md"
        if inside:
            return source.relative_to(DOCS)
        if source.suffix == ".py":
            source = source.with_suffix(".py.txt")  # no module of the package that holds the site
        return ("project" if source.suffix == ".md" else "files") / source

    def _rewrite(self, source: PurePosixPath, text: str) -> str:
        """Point links to the places of their targets; text in code blocks stays as it is."""
        parts = _BLOCK.split(text)
        rewritten = [
            part if index % 2 else self._rewrite_links(source, part) for index, part in enumerate(parts)
        ]
        return "".join(rewritten)

    def _rewrite_links(self, source: PurePosixPath, text: str) -> str:
        def rewrite(match: re.Match[str]) -> str:
            link = match[2]
            if ":" in link or link.startswith("/"):
                return match[0]
            target = PurePosixPath(posixpath.normpath(source.parent / link))
            if not (self._root / target).exists():
                raise SiteError(f"{source}: {link} does not exist")
            self._waiting.append(target)
            address = posixpath.relpath(self.place(target), self.place(source).parent)
            return f"{match[1]}{address}{match[3] or ''}{match[4]}"

        return _LINK.sub(rewrite, text)

    def _list_folder(self, folder: PurePosixPath) -> str:
        """Return a page with links to the files of a folder, Markdown by its title."""
        lines = [f"# {folder.relative_to(DOCS) if folder.is_relative_to(DOCS) else folder}\n"]
        for path in sorted((self._root / folder).iterdir()):
            if path.is_file():
                source = folder / path.name
                self._waiting.append(source)
                address = posixpath.relpath(self.place(source), self.place(folder).parent)
                lines.append(f"- [{_title(path)}]({address})")
        return "\n".join(lines) + "\n"


def _title(path: Path) -> str:
    if path.suffix != ".md":
        return path.name
    return path.read_text("utf-8").partition("\n")[0].removeprefix("# ")


class _Page(HTMLParser):
    """The ids of a page, its links, and the addresses that a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in {"img", "script", "link", "source", "iframe"}:
            self.loaded += [values[name] for name in ("src", "href", "srcset") if name in values]


def check_links(site: Path) -> Iterator[str]:
    """Yield one line for each link without a target, and for each resource of another host."""
    pages = {path.relative_to(site): _Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    for path, page in sorted(pages.items()):
        for address in page.loaded:
            if "://" in address or address.startswith("//"):
                yield f"{path}: loads {address}"
        for address in [*page.links, *page.loaded]:
            if not re.match(r"[a-z]+:|//", address) and not _leads_somewhere(site, pages, path, address):
                yield f"{path}: {address} leads nowhere"


def _leads_somewhere(site: Path, pages: dict[Path, _Page], path: Path, address: str) -> bool:
    place, _, anchor = address.partition("#")
    target = Path(posixpath.normpath(path.parent / unquote(place))) if place else path
    if (site / target).is_dir():
        target /= "index.html"
    if target.parts[:1] == ("..",) or not (site / target).is_file():
        return False
    return not anchor or target not in pages or unquote(anchor) in pages[target].ids


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("folder", nargs="?", type=Path, default=OUTPUT, help="where to put it")
    folder = parser.parse_args().folder
    try:
        build_site(folder)
    except SiteError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    files = [path for path in folder.rglob("*") if path.is_file()]
    size_mb = sum(path.stat().st_size for path in files) / 1_000_000
    sys.stdout.write(f"{folder}: {len(files)} files, {size_mb:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
