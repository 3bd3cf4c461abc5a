"""How a repository on no allowlist tries its workflow: it sends itself the dispatch that the relay cannot send it.

The dispatch is a test (`crcr_test`): the workflow of `crcr init` runs as it is, without its build, and reports to the
relay, which keeps the report in the sandbox. Who may write to the repository sends it with GitHub's own command line.
"""

import json
import shlex
from typing import Any
from urllib.parse import urlsplit

from crcr.decide.model import TEST_EVENT, RepoName

DELIVERY = "sandbox-trial"
"""Any text would do: there is no such delivery, and the sandbox asks for none."""
_THIS_CHECKOUT = "{owner}/{repo}"
"""`gh` fills this in from the checkout that it runs in."""

_THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "::1"})


def trial(callback_url: str, audience: str, upstream: RepoName) -> dict[str, Any]:
    """Body of the `repository_dispatch`, in the shape of the relay's own."""
    relay = {"callback_url": callback_url, "audience": audience, "upstream": str(upstream)}
    return {
        "event_type": TEST_EVENT,
        "client_payload": {"delivery_id": DELIVERY, "event_type": TEST_EVENT, "relay": relay},
    }


def is_simulated(github_url: str) -> bool:
    """Whether this is the demo's GitHub, which `gh` cannot speak to."""
    return urlsplit(github_url).hostname in _THIS_MACHINE


def try_command(
    repository: RepoName | None,
    callback_url: str,
    audience: str,
    upstream: RepoName,
    *,
    github_url: str = "https://github.com",
) -> str:
    """What a maintainer runs; without a repository, in a checkout of it."""
    if is_simulated(github_url):
        name = str(repository or "me/my-backend")
        return f"{shlex.join(['crcr', 'demo-join', name, '--unlisted', '--github', github_url])}\n"
    body = json.dumps(trial(callback_url, audience, upstream), indent=2)
    words = ["gh", "api", f"repos/{repository or _THIS_CHECKOUT}/dispatches"]
    host = urlsplit(github_url).netloc
    words += [] if host in ("", "github.com") else ["--hostname", host]
    # Nothing is expanded between the marks, and no line of JSON is just END.
    return f"{shlex.join([*words, '--input', '-'])} <<'END'\n{body}\nEND\n"
