"""A merge group whose dispatches wait for what GitHub says of it, as both sides of the question know it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupToRead:
    delivery: str
    head_sha: str
    base_sha: str
    head_ref: str
