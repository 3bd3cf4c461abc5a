"""`crcr notices`: send a test notice to a channel, and list what was sent."""

from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import ConfigOption, JsonOption, UpstreamOption, examples, read_settings
from crcr.cli.printing import print_json, print_line, print_table

if TYPE_CHECKING:
    from datetime import datetime

    from crcr.decide.model import RepoName
    from crcr.decide.notices.texts import ThreadText
    from crcr.settings import ChannelSetting, Settings

app = CommandLine(
    name="notices",
    help="Notices to people: test a channel, list what was sent.",
    no_args_is_help=True,
)


@app.command(
    "test",
    epilog=examples(
        "crcr notices test team-chat",
        "crcr notices test issues --repo org/backend",
        "crcr notices test pulls --pull 42",
    ),
)
def send_test_notice(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="Name of a [[channel]] of the settings.")],
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="REPO", help="For kind issue: the backend's repository.")
    ] = None,
    pull: Annotated[
        int | None, typer.Option("--pull", min=1, help="For kind comment: the upstream's pull request.")
    ] = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a test notice to a channel now, whatever its quiet hours; the exit code is 1 if it is not accepted.

    Kind issue creates an issue in --repo and closes it; kind comment writes a comment on --pull.
    """
    import asyncio

    from crcr.cli.operator_session import choose_upstream_to_read
    from crcr.decide.model import RepoName, is_repo_name
    from crcr.errors import NotPossible

    settings = read_settings(config)
    found = next((one for one in settings.channels if one.name == channel), None)
    if found is None:
        names = ", ".join(one.name for one in settings.channels) or "none"
        raise typer.BadParameter(f"no channel has the name {channel}; the settings have: {names}")
    if repo is not None and not is_repo_name(repo):
        raise typer.BadParameter("write owner/name", param_hint="--repo")
    if settings.is_shadow:
        raise NotPossible("the relay runs in shadow mode: nothing is sent", hint="turn CRCR_SHADOW off first")
    name = choose_upstream_to_read(tuple(one.name for one in settings.upstreams), upstream)
    place = RepoName(repo) if repo else None
    shown = asyncio.run(_send_test(settings, found, name, repo=place, pull=pull))
    if as_json:
        print_json({"channel": found.name, "kind": found.kind.value, "sent_to": shown})
    else:
        print_line(f"sent to {found.name} ({found.kind.value}: {shown})")


async def _send_test(
    settings: "Settings",
    channel: "ChannelSetting",
    upstream: "RepoName",
    *,
    repo: "RepoName | None",
    pull: int | None,
) -> str:
    from crcr.clock import SystemClock
    from crcr.decide.notices.notice import ChannelKind
    from crcr.deliver.notices.outgoing import MailSender, WebhookSender
    from crcr.deliver.notices.send import ChannelSenders
    from crcr.record.notices.messages import Batch
    from crcr.wiring.effect_handlers import build_channel

    clock = SystemClock()
    thread = _test_thread(upstream, clock.now(), settings.public_url)
    if channel.kind in {ChannelKind.ISSUE, ChannelKind.COMMENT}:
        return await _post_test(settings, channel.kind, thread, repo=repo, pull=pull)
    senders = ChannelSenders(WebhookSender(), MailSender(), clock, settings.public_url)
    # An id of its own: a receiver would take a known one for a repeat.
    await senders.send(build_channel(channel), Batch(thread.thread_id, (thread,), clock.now()))
    return channel.masked_address


async def _post_test(
    settings: "Settings", kind: str, thread: "ThreadText", *, repo: "RepoName | None", pull: int | None
) -> str:
    from crcr.clock import SystemClock
    from crcr.decide.github.requests_and_answers import Target
    from crcr.decide.notices.notice import ChannelKind
    from crcr.decide.notices.texts import comment_body, issue_body, issue_title
    from crcr.github.http.connections import open_http
    from crcr.wiring.core import build_github_client

    where = repo if kind == ChannelKind.ISSUE else thread.upstream
    if where is None:
        raise typer.BadParameter("this channel writes issues: pass --repo owner/name")
    if kind == ChannelKind.COMMENT and pull is None:
        raise typer.BadParameter("this channel comments on pull requests: pass --pull NUMBER")
    async with open_http(settings.github_api_url) as http:
        github = build_github_client(settings, http, SystemClock())
        target = Target(where, None, await github.repositories.find_installation(where))
        if pull is not None and kind == ChannelKind.COMMENT:
            await github.comments.create(target, pull, comment_body([thread], ""))
            return f"{where}#{pull}"
        title, body = issue_title(thread), issue_body(thread, "")
        number = await github.issues.create(target, title, body)
        await github.issues.update(target, number, title=title, body=body, is_open=False)
        return f"{where}#{number}"


def _test_thread(upstream: "RepoName", now: "datetime", hud_url: str) -> "ThreadText":
    from crcr.decide.notices.notice import NoticeKind, ThreadChange
    from crcr.decide.notices.texts import ThreadText

    return ThreadText(
        thread_id=int(now.timestamp()),
        kind=NoticeKind.TEST,
        change=ThreadChange.REPORTED,
        upstream=upstream,
        backend=None,
        number=None,
        summary="this channel works",
        details=(),
        oncalls=(),
        url=f"{hud_url.rstrip('/')}/crcr/notices",
        opened_at=now,
        closed_at=now,
        is_open=False,
    )


@app.command("list", epilog=examples("crcr notices list", "crcr notices list --json"))
def list_notices(
    config: ConfigOption = None, upstream: UpstreamOption = None, as_json: JsonOption = False
) -> None:
    """List the newest 50 notices, with the state of each message."""
    from crcr.cli.operator_session import OperatorSession, run_in_session
    from crcr.decide.views.logs import NoticePage, NoticeQuery

    async def read(session: OperatorSession) -> NoticePage:
        return await session.open_pages().notices(NoticeQuery(upstream=session.upstream_to_read(upstream)))

    page = run_in_session(config, read)
    if as_json:
        from crcr.show.api.models.logs import NOTICES  # the same fields as the API

        print_json(NOTICES.model_validate(page).model_dump(mode="json")["notices"])
        return
    rows = (
        [
            f"{notice.at:%Y-%m-%d %H:%M}",
            notice.kind.value,
            notice.change.value,
            str(notice.backend or ""),
            f"#{notice.number}" if notice.number else "",
            ", ".join(f"{message.channel} {message.state}" for message in notice.messages),
            notice.summary,
        ]
        for notice in page.notices
    )
    print_table(["when", "kind", "thread", "backend", "pull", "channels", "~summary"], rows)
