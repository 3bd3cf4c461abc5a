"""The effects of notices: routing new ones to channels, and sending what waits for one place of a channel.

Issues and comments always show the newest state of their threads, so writing one twice is harmless. Creating one is preceded
by a row, and after a lost answer it is found by its mark. A message to a webhook or by e-mail has the id of its batch.
"""

import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from crcr.decide.github.requests_and_answers import PostedComment, Target
from crcr.decide.model import RepoName
from crcr.decide.notices.notice import ChannelKind, ThreadChange
from crcr.decide.notices.texts import (
    ThreadText,
    comment_body,
    email_subject,
    email_text,
    issue_body,
    issue_title,
    post_mark,
    slack_body,
    webhook_body,
)
from crcr.decide.outbox.effect import SHADOWED, ClaimedEffect
from crcr.deliver.handlers.upstream_facts import UpstreamTargets
from crcr.deliver.notices.outgoing import (
    Mail,
    MailAccount,
    MailSender,
    WebhookAddress,
    WebhookSender,
    sign_body,
)
from crcr.errors import OutsideLimited, OutsideRefused
from crcr.github.client import GitHubClient
from crcr.ports import Clock
from crcr.record.notices.messages import Batch, MessageQueue, NoticeMessages

_LOOK_BACK = timedelta(hours=1)
"""Clocks differ."""
_GONE = frozenset({404, 410})
_NOT_ALLOWED = frozenset({403, 404, 410, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel with its address."""

    name: str
    kind: ChannelKind
    webhook: WebhookAddress | None = None
    secret: str = ""
    mail: MailAccount | None = None

    def __repr__(self) -> str:
        return f"Channel({self.name!r}, {self.kind.value})"  # the rest is secret


class RouteNotices:
    def __init__(self, messages: NoticeMessages, clock: Clock) -> None:
        self._messages = messages
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        return await self._messages.route(effect.upstream, self._clock.now()) > 0


class ChannelSenders:
    """Sends to channels with an address of their own: webhooks and e-mail."""

    def __init__(self, webhooks: WebhookSender, mails: MailSender, clock: Clock, relay_url: str) -> None:
        self._webhooks = webhooks
        self._mails = mails
        self._clock = clock
        self._relay_url = relay_url.rstrip("/")

    async def send(self, channel: Channel, batch: Batch) -> None:
        if channel.mail is not None:
            await self._mails.send(channel.mail, self._mail(batch))
        elif channel.webhook is not None and channel.kind is ChannelKind.SLACK:
            body = json.dumps(slack_body(batch.threads)).encode()
            await self._webhooks.post(channel.webhook, body, {})
        elif channel.webhook is not None:
            await self._post_signed(channel.webhook, channel.secret, batch)

    async def _post_signed(self, address: WebhookAddress, secret: str, batch: Batch) -> None:
        delivery = f"{self._relay_url}/crcr/notices#{batch.batch_id}"
        body = json.dumps(webhook_body(batch.threads, delivery=delivery, at=batch.at)).encode()
        signed = sign_body(secret, int(self._clock.now().timestamp()), body)
        await self._webhooks.post(address, body, {**signed, "X-Crcr-Delivery": delivery})

    def _mail(self, batch: Batch) -> Mail:
        """The first mail about a single thread is what the later ones about it answer."""
        only = batch.threads[0] if len(batch.threads) == 1 else None
        opens = only is not None and only.change in {ThreadChange.OPENED, ThreadChange.REPORTED}
        relay = f"crcr.{urlsplit(self._relay_url).hostname}"  # relays may share a sender's domain
        own_id = f"{relay}.thread-{only.thread_id}" if only and opens else f"{relay}.batch-{batch.batch_id}"
        reply_to = f"{relay}.thread-{only.thread_id}" if only and not opens else None
        return Mail(email_subject(batch.threads), email_text(batch.threads), own_id, reply_to)


class GitHubPosts:
    """Keeps issues in backends' repositories, and comments on the upstream's pull requests."""

    def __init__(
        self,
        messages: NoticeMessages,
        upstreams: UpstreamTargets,
        github: GitHubClient,
        clock: Clock,
        relay_url: str,
    ) -> None:
        self._messages = messages
        self._upstreams = upstreams
        self._github = github
        self._clock = clock
        self._relay_url = relay_url.rstrip("/")

    async def write_issues(self, queue: MessageQueue, batch: Batch) -> None:
        target = await self._backend_target(queue.upstream, RepoName(queue.destination))
        try:
            for thread in batch.threads:
                await self._write_issue(queue, target, await self._messages.read_current(thread))
        except OutsideRefused as refusal:
            raise _explain(refusal, f"write issues in {target.repository}", "Issues: write") from None

    async def _backend_target(self, upstream: RepoName, backend: RepoName) -> Target:
        name, repository_id, installation_id = await self._messages.find_backend(upstream, backend)
        if installation_id is None:
            installation_id = await self._github.repositories.find_installation(name)
        return Target(name, repository_id, installation_id)

    async def _write_issue(self, queue: MessageQueue, target: Target, thread: ThreadText) -> None:
        title, is_open = issue_title(thread), thread.is_open or thread.change is ThreadChange.REPORTED
        post = await self._messages.find_post(queue, thread.thread_id)
        if post is None and not is_open:
            return  # it ended before anything was written: there is nothing to close
        is_new = post is None
        if post is None:
            post = await self._messages.attempt_post(queue, thread.thread_id, self._clock.now())
        mark = post_mark(self._relay_url, queue.channel, thread.thread_id, post.attempted_at)
        body, number = issue_body(thread, mark), post.remote_id
        if number is None and not is_new:
            since = post.attempted_at - _LOOK_BACK
            number = _find_marked(await self._github.issues.list_since(target, since), mark)
        if number is not None:
            sent = self._github.issues.update(target, number, title=title, body=body, is_open=is_open)
            number = number if await _still_exists(sent) else None
        if number is None and is_open:
            number = await self._github.issues.create(target, title, body)
        await self._messages.record_post(queue, thread.thread_id, number)

    async def write_comment(self, queue: MessageQueue) -> None:
        target, number = await self._upstreams.target(queue.upstream), int(queue.destination)
        threads = await self._messages.read_pull_threads(queue.upstream, number)
        try:
            await self._write_comment(queue, target, number, threads)
        except OutsideRefused as refusal:
            what = f"comment on {target.repository}#{number}"
            raise _explain(refusal, what, "Pull requests: write") from None

    async def _write_comment(
        self, queue: MessageQueue, target: Target, number: int, threads: tuple[ThreadText, ...]
    ) -> None:
        comments, is_blocked = self._github.comments, any(thread.is_open for thread in threads)
        post = await self._messages.find_post(queue, 0)
        if post is None and not is_blocked:
            return
        is_new = post is None
        if post is None:
            post = await self._messages.attempt_post(queue, 0, self._clock.now())
        mark = post_mark(self._relay_url, queue.channel, 0, post.attempted_at)
        body, comment_id = comment_body(threads, mark), post.remote_id
        if comment_id is None and not is_new:
            found = await comments.list_since(target, number, post.attempted_at - _LOOK_BACK)
            comment_id = _find_marked(found, mark)
        if comment_id is not None and not await _still_exists(comments.update(target, comment_id, body)):
            comment_id = None
        if comment_id is None and is_blocked:
            comment_id = await comments.create(target, number, body)
        await self._messages.record_post(queue, 0, comment_id)


async def _still_exists(update: Awaitable[None]) -> bool:
    """Whether what was to be updated is there; a person may have deleted it."""
    try:
        await update
    except OutsideRefused as refusal:
        if refusal.status not in _GONE:
            raise
        return False
    return True


class SendNotices:
    def __init__(
        self,
        messages: NoticeMessages,
        channels: Mapping[str, Channel],
        senders: ChannelSenders,
        posts: GitHubPosts,
        clock: Clock,
    ) -> None:
        self._messages = messages
        self._channels = channels
        self._senders = senders
        self._posts = posts
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        sent = json.loads(effect.payload or b"{}")
        queue = MessageQueue(effect.upstream, str(sent["channel"]), str(sent["destination"]))
        channel = self._channels.get(queue.channel)
        if channel is None:
            note = "the settings no longer have this channel"
            await self._messages.drop_all(queue, note, self._clock.now())
            return False
        # A retry, or an operator's, may come at any hour.
        if until := self._messages.quiet_until(queue, now := self._clock.now()):
            raise OutsideLimited("quiet hours of the channel", retry_after_s=(until - now).total_seconds())
        is_done = False
        while batch := await self._messages.next_batch(queue, self._clock.now()):
            await self._send(channel, queue, batch)
            await self._messages.finish(queue, batch, self._clock.now())
            is_done = True
        return is_done

    async def plan(self, effect: ClaimedEffect) -> bool:
        """Drop what waits, with the reason: nobody wants it later."""
        sent = json.loads(effect.payload or b"{}")
        queue = MessageQueue(effect.upstream, str(sent["channel"]), str(sent["destination"]))
        await self._messages.drop_all(queue, SHADOWED, self._clock.now())
        return True

    async def _send(self, channel: Channel, queue: MessageQueue, batch: Batch) -> None:
        if channel.kind is ChannelKind.ISSUE:
            await self._posts.write_issues(queue, batch)
        elif channel.kind is ChannelKind.COMMENT:
            await self._posts.write_comment(queue)
        else:
            await self._senders.send(channel, batch)


def _find_marked(posts: tuple[PostedComment, ...], mark: str) -> int | None:
    """The oldest one: the mark has the time of our attempt, which nobody else can know before our own is visible."""
    return min((post.comment_id for post in posts if mark in post.body), default=None)


def _explain(refusal: OutsideRefused, what: str, permission: str) -> OutsideRefused:
    """Say which permission is missing; GitHub says only that the resource is not accessible."""
    if refusal.status not in _NOT_ALLOWED:
        return refusal
    text = f"The App may not {what}: grant it {permission} there, or take the channel off. GitHub: {refusal.detail}"
    return OutsideRefused(text, status=refusal.status)
