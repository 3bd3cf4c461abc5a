"""Git's hashes of files and trees, and the difference of two trees.

A tree is a mapping of paths to bytes. Equal content has equal hashes.
"""

import hashlib
from collections.abc import Mapping

Tree = Mapping[str, bytes]
# None: the file is gone.
Changes = Mapping[str, bytes | None]


def encode_files(files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    return {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}


def blob_sha(content: bytes) -> str:
    """Git's own hash of a file."""
    return _git_hash(b"blob", content)


def tree_sha(tree: Tree) -> str:
    """Git's own hash of a directory with everything below it."""
    entries: list[tuple[bytes, bytes]] = []
    folders: dict[str, dict[str, bytes]] = {}
    for path, content in tree.items():
        name, below, rest = path.partition("/")
        if below:
            folders.setdefault(name, {})[rest] = content
        else:
            entries.append((name.encode(), _entry(b"100644", name, blob_sha(content))))
    # Git sorts a directory as if its name ended with a slash.
    entries += [
        (f"{name}/".encode(), _entry(b"40000", name, tree_sha(inside))) for name, inside in folders.items()
    ]
    return _git_hash(b"tree", b"".join(entry for _, entry in sorted(entries)))


def _entry(mode: bytes, name: str, sha: str) -> bytes:
    return mode + b" " + name.encode() + b"\0" + bytes.fromhex(sha)


def _git_hash(kind: bytes, body: bytes) -> str:
    return hashlib.sha1(kind + b" %d\0" % len(body) + body, usedforsecurity=False).hexdigest()


def diff_trees(old: Tree, new: Tree) -> dict[str, bytes | None]:
    """What turns `old` into `new`, by path."""
    paths = sorted({*old, *new})
    return {path: new.get(path) for path in paths if old.get(path) != new.get(path)}


def apply_changes(tree: Tree, changes: Changes) -> dict[str, bytes]:
    made = {**tree, **changes}
    return {path: content for path, content in made.items() if content is not None}
