"""What a request to GitHub is about, as one word of a closed set: what calls are counted by.

Read off the address, so that a new call is counted without anybody thinking of it, and so that no name of a repository
ever becomes a label.
"""

from crcr.decide.github.values import CallKind

_OF_APP = {
    "installations": CallKind.TOKEN,
    "hook": CallKind.DELIVERY_LOG,
    "": CallKind.APP,
}
_OF_REPOSITORY = {
    "": CallKind.REPOSITORY,
    "actions": CallKind.ACTIONS,
    "check-runs": CallKind.CHECKS,
    "collaborators": CallKind.PERMISSION,
    "commits": CallKind.COMMITS,
    "compare": CallKind.COMMITS,
    "contents": CallKind.CONTENTS,
    "dispatches": CallKind.DISPATCH,
    "git": CallKind.COMMITS,
    "installation": CallKind.INSTALLATION,
    "issues": CallKind.COMMENTS,
    "pulls": CallKind.PULLS,
}


def kind_of(path: str) -> CallKind:
    parts = path.partition("?")[0].strip("/").split("/")
    if parts[0] == "app":
        return _OF_APP.get(_at(parts, 1), CallKind.OTHER)
    # A renamed repository's calls are sent on to `/repositories/ID/…`.
    subject = {"repos": 3, "repositories": 2}.get(parts[0])
    if subject is None:
        return CallKind.OTHER
    if parts[-1] == "check-runs":
        return CallKind.CHECKS
    return _OF_REPOSITORY.get(_at(parts, subject), CallKind.OTHER)


def status_class(status: int) -> str:
    return f"{status // 100}xx" if 200 <= status < 600 else "other"


def _at(parts: list[str], place: int) -> str:
    return parts[place] if place < len(parts) else ""
