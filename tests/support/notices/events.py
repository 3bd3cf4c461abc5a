"""`tell_people`: notices of every kind in a relay, as if their facts had been recorded."""

from functools import partial

from crcr.decide.model import RepoName
from crcr.decide.notices.notice import KINDS, NoticeEvent, NoticeKind, ThreadStep
from crcr.record.notices.threads import queue_notice
from support.running_relay import UPSTREAM, RunningRelay

HOSTILE = '<script>alert("x")</script> @everyone [click](https://evil.example)'


async def queue(relay: RunningRelay, event: NoticeEvent) -> None:
    await relay.services.database.write(partial(queue_notice, event=event, now=relay.clock.now()))


def make_event(kind: NoticeKind, backend: str | None = "org/reporter", **more: object) -> NoticeEvent:
    fields: dict[str, object] = {
        "summary": f"what happened: {HOSTILE}",
        "details": (f"job: {HOSTILE}",),
        **more,
    }
    name = RepoName(backend) if backend else None
    return NoticeEvent(kind=kind, upstream=RepoName(UPSTREAM), backend=name, **fields)  # type: ignore[arg-type]


async def tell_people(relay: RunningRelay, backend: str = "org/reporter") -> None:
    """Open a thread of every topic, end some, and have the messages of the first ones sent."""
    for kind, (_, step) in KINDS.items():
        if step is not ThreadStep.CLOSE:
            number = 1 if kind in {NoticeKind.GATE_FAILED, NoticeKind.BREAKING} else None
            await queue(relay, make_event(kind, backend, number=number, path=f"/crcr/{backend}"))
    await relay.drain()
    await relay.pass_time(61)
    await queue(relay, make_event(NoticeKind.RECOVERED, backend))
    await queue(relay, make_event(NoticeKind.SETUP_BROKEN, None, item="allowlist"))
    await relay.drain()
