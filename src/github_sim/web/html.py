"""Safe HTML for the simulator's pages: `Html` is our own markup, and every other text is escaped.

`render_markdown` renders check summaries and comments with markdown-it-py, with raw HTML and images off. The content
policy allows the one style sheet by its hash, so no text on a page can add another style or a script.
"""

import base64
import hashlib
import html
import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore

from github_sim.rest.exchange import Reply
from github_sim.world.records import CheckRun

STYLE = """
:root{color-scheme:light dark;--text:#1f2328;--soft:#59636e;--back:#fff;--card:#f6f8fa;--line:#d1d9e0;
--link:#0969da;--good:#1a7f37;--bad:#cf222e;--wait:#9a6700;--grey:#59636e}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--soft:#9198a1;--back:#0d1117;--card:#161b22;
--line:#3d444d;--link:#58a6ff;--good:#3fb950;--bad:#f85149;--wait:#d29922;--grey:#9198a1}}
*{box-sizing:border-box}
body{margin:0;font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);overflow-wrap:anywhere}
header{padding:.6rem 1rem;border-bottom:1px solid var(--line);background:var(--card)}
header strong{color:var(--wait)}
main{max-width:74rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;margin:.3rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}h3,h4{font-size:1rem;margin:.6rem 0}
a{color:var(--link)}code,pre{font:13px/1.45 ui-monospace,monospace}
pre{overflow-x:auto;padding:.6rem;background:var(--card)}
table{border-collapse:collapse;display:block;overflow-x:auto}th,td{border:1px solid var(--line);padding:.25rem .6rem;
text-align:left;vertical-align:top;overflow-wrap:break-word}th,td:first-child{white-space:nowrap}
.soft{color:var(--soft)}.card{border:1px solid var(--line);border-radius:6px;padding:.6rem .9rem;margin:.6rem 0}
.card>:first-child{margin-top:0}.card>:last-child{margin-bottom:0}
.label{border:1px solid var(--line);border-radius:1em;padding:0 .6em;font-size:13px;white-space:nowrap}
.mark{display:inline-block;width:1.6em;border-radius:4px;text-align:center;font-weight:700;color:var(--back);
background:var(--grey)}
.good{border-left:4px solid var(--good)}.mark.good{background:var(--good);border:0}
.bad{border-left:4px solid var(--bad)}.mark.bad{background:var(--bad);border:0}
.card.grey{border-left:4px solid var(--grey)}.wait{border-left:4px solid var(--wait)}.mark.wait{background:var(--wait);border:0}
ul.plain{list-style:none;padding:0}ul.plain li{margin:.35rem 0}summary{cursor:pointer}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"
_MARKS = {
    "success": ("P", "good"),
    "failure": ("F", "bad"),
    "timed_out": ("T", "bad"),
    "action_required": ("A", "bad"),
    "cancelled": ("C", "bad"),
    "neutral": ("N", "grey"),
    "skipped": ("S", "grey"),
    "in_progress": ("R", "wait"),
    "queued": ("Q", "wait"),
}


class Html(str):
    """Markup that is safe to show. `+` escapes an operand that is not Html; `text` escapes a value."""

    __slots__ = ()

    def __add__(self, other: str) -> "Html":
        return Html(str(self) + (other if isinstance(other, Html) else text(other)))


def text(words: object) -> Html:
    return Html(html.escape(str(words)))


def tag(name: str, *inside: object, **attributes: str) -> Html:
    """An element; content that is not Html is escaped. `class_` is the attribute class."""
    given = "".join(f' {key.rstrip("_")}="{text(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>{concat(*inside)}</{name}>")


def concat(*parts: object) -> Html:
    return Html("".join(part if isinstance(part, Html) else text(part) for part in parts))


def link(address: str, words: object) -> Html:
    return tag("a", words, href=address)


def status_badge(state: str) -> Html:
    """A letter and a colour for a status or conclusion. The page has the word beside it."""
    letter, colour = _MARKS.get(state, ("?", "grey"))
    return tag("span", letter, class_=f"mark {colour}", title=state)


def status_colour(state: str) -> str:
    return _MARKS.get(state, ("?", "grey"))[1]


def check_state(check: CheckRun) -> str:
    return check.conclusion or check.status


_COMMENT_LINE = re.compile(r"\s*<!--.*-->\s*")


def _hidden_comment(state: StateBlock, start: int, _end: int, silent: bool) -> bool:  # noqa: FBT001 - markdown-it's interface
    """Hide an HTML comment on a line of its own, as GitHub does. It would be shown as text with HTML off."""
    if not _COMMENT_LINE.fullmatch(state.src[state.bMarks[start] : state.eMarks[start]]):
        return False
    if not silent:
        state.line = start + 1
    return True


def _fit_into_page(state: StateCore) -> None:
    """Keep headings below the page's own, and drop inline styles, which the content policy refuses."""
    for token in state.tokens:
        if token.type in {"heading_open", "heading_close"}:
            token.tag = "h3" if token.tag in {"h1", "h2"} else "h4"
        token.attrs.pop("style", None)


def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("js-default", {"html": False, "breaks": True}).disable("image")
    markdown.block.ruler.before("heading", "hidden_comment", _hidden_comment, {"alt": ["paragraph"]})
    markdown.core.ruler.push("fit_into_page", _fit_into_page)
    markdown.validateLink = lambda url: url.startswith(("https://", "http://"))  # type: ignore[method-assign]
    return markdown


_MARKDOWN = _markdown()


def render_markdown(markdown: str) -> Html:
    return Html(_MARKDOWN.render(markdown))


def page(title: str, body: Html) -> Reply:
    head = concat(
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'),
        Html('<meta http-equiv="refresh" content="3">'),
        tag("title", f"{title} · simulated GitHub"),
        Html(f"<style>{STYLE}</style>"),
    )
    banner = tag(
        "header",
        link("/", "Pull requests"),
        " · ",
        tag("strong", "This is the simulated GitHub, not github.com."),
    )
    whole = concat(
        Html("<!doctype html>"),
        tag("html", tag("head", head), tag("body", banner, tag("main", body)), lang="en"),
    )
    headers = {"content-security-policy": POLICY, "cache-control": "no-store"}
    return Reply(200, raw=whole.encode(), headers=headers, media="text/html; charset=utf-8")
