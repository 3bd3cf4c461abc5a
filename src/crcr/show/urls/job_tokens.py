"""Tokens that identify a job in an address, with its backend on pages that show several.

A token from a reader may be anything; an invalid one is None, never an error.
"""

from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.views.backend import JobKey
from crcr.decide.views.overview import JobCell, JobView
from crcr.errors import BadRequest
from crcr.show.urls import cursors

_MOST = 6_000
"""Some clients cut longer addresses; the names that reports may have are far shorter."""
_SHAPE = [str, str, str, int, str]
_MOST_ATTEMPTS = 2**31


def encode_job_token(key: JobKey, backend: RepoName | str | None = None) -> str:
    """Return the value of `?job=`; empty for a job whose names are too long for a link."""
    parts = (key.delivery, key.workflow, key.run_id, key.attempt, key.job_name)
    return _encode_parts((*parts, str(backend)) if backend else parts)


def job_token(job: JobCell, *, shared: bool = False) -> str:
    """Return the token of a job in a view; `shared` for pages with jobs of several backends."""
    parts = (job.delivery, job.workflow, job.run_id, job.attempt, job.job_name)
    return _encode_parts((*parts, job.downstream) if shared else parts)


def _encode_parts(parts: tuple[str | int, ...]) -> str:
    token = cursors.encode(parts) or ""
    return token if len(token) <= _MOST else ""


def job_key(job: JobView) -> JobKey:
    return JobKey(
        delivery=job.delivery,
        workflow=job.workflow,
        run_id=job.run_id,
        attempt=job.attempt,
        job_name=job.job_name,
    )


def decode_job_key(text: str | None) -> JobKey | None:
    """Return the job of a token, and ignore the backend that it names."""
    parts = _decode_parts(text)
    return None if parts is None else _make_key(parts)


def decode_backend_job(text: str | None) -> tuple[RepoName, JobKey] | None:
    """Return backend and job of a token of a shared page."""
    parts = _decode_parts(text)
    if parts is None or len(parts) == len(_SHAPE):
        return None
    return RepoName(str(parts[-1])), _make_key(parts)


def _decode_parts(text: str | None) -> tuple[str | int, ...] | None:
    if not text or len(text) > _MOST:
        return None
    try:
        parts = cursors.decode(text)
    except BadRequest:
        return None
    if parts is None or [type(part) for part in parts[:5]] != _SHAPE or not _is_attempt(parts[3]):
        return None
    if any(isinstance(part, str) and "\0" in part for part in parts):
        return None
    return parts if len(parts) == len(_SHAPE) or _names_backend(parts[5:]) else None


def _names_backend(rest: tuple[str | int, ...]) -> bool:
    return len(rest) == 1 and isinstance(rest[0], str) and is_repo_name(rest[0])


def _is_attempt(part: str | int) -> bool:
    return isinstance(part, int) and 0 < part < _MOST_ATTEMPTS


def _make_key(parts: tuple[str | int, ...]) -> JobKey:
    delivery, workflow, run_id, attempt, job_name = parts[:5]
    return JobKey(
        delivery=str(delivery),
        workflow=str(workflow),
        run_id=str(run_id),
        attempt=int(attempt),
        job_name=str(job_name),
    )
