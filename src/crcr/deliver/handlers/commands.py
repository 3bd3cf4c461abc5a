"""Answers people on pull requests: `/crcr` comments, and the gate's button that offers a waiver.

GitHub says which role the comment's author has. The answer is decided and recorded first, then given: always a reaction,
and a comment where a reaction is not enough. After a lost response our own comment is looked for.
"""

import json
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import structlog

from crcr.decide.commands.answers import CommandAnswer, CommandAuthor, comment_marker
from crcr.decide.commands.grammar import AckCommand, Command, InvalidCommand, StatusCommand, parse_commands
from crcr.decide.github.requests_and_answers import Role, Target
from crcr.decide.health.relay import Health
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.handlers.upstream_facts import BackendTargets, UpstreamTargets
from crcr.errors import OutsideRefused
from crcr.github.client import CommentsApi
from crcr.ports import Clock
from crcr.record.checks.commands import Commands
from crcr.record.checks.requests import PeopleRequests

log = structlog.get_logger(__name__)

_LOOK_BACK = timedelta(hours=1)
"""Clocks differ, and GitHub may deliver one comment twice."""
_UNREADABLE = frozenset({403, 404, 451})


class CommentWriter:
    """Writes a comment on a pull request, with a mark by which a later attempt finds it.

    The attempts of an effect do not tell whether it was written: an attempt that a rate limit ended is not counted, and may
    have written it.
    """

    def __init__(self, comments: CommentsApi) -> None:
        self._comments = comments

    async def write(self, target: Target, number: int, text: str, mark: str) -> None:
        await self._comments.create(target, number, f"{text}\n\n{mark}")

    async def is_written(self, target: Target, number: int, mark: str, since: datetime) -> bool:
        comments = await self._comments.list_since(target, number, since - _LOOK_BACK)
        return any(mark in comment.body for comment in comments)


class AnswerCommand:
    def __init__(
        self,
        commands: Commands,
        upstreams: UpstreamTargets,
        comments: CommentsApi,
        writer: CommentWriter,
        clock: Clock,
        *,
        read_health: Callable[[RepoName], Awaitable[Health | None]],
        backends: BackendTargets,
    ) -> None:
        self._commands = commands
        self._read_health = read_health
        self._backends = backends
        self._upstreams = upstreams
        self._comments = comments
        self._writer = writer
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        request = json.loads(effect.payload or b"{}")
        number, comment_id = int(request["number"]), int(request["comment_id"])
        target = await self._upstreams.target(effect.upstream)
        mark = comment_marker("answer", str(comment_id))
        answer, written = await self._commands.find_answer(effect.upstream, comment_id), False
        if answer is None:
            answer = await self._decide(effect, target, request)
        elif answer.comment is not None:
            written = await self._writer.is_written(target, number, mark, effect.created_at)
        if answer.comment is not None and not written:
            await self._writer.write(target, number, f"@{request['author']}\n\n{answer.comment}", mark)
        await self._react(target, comment_id, "+1" if answer.obeyed else "-1")
        return True

    async def _decide(
        self, effect: ClaimedEffect, target: Target, request: dict[str, object]
    ) -> CommandAnswer:
        author, now = str(request["author"]), self._clock.now()
        role = await self._comments.read_role(target, author) if request["person"] else Role.NONE
        number, comment_id = int(str(request["number"])), int(str(request["comment_id"]))
        spoke_at = datetime.fromisoformat(str(request["created_at"]))
        speaker = CommandAuthor(
            who=author, role=role, number=number, comment_id=comment_id, spoke_at=spoke_at
        )
        if not request["person"]:
            return await self._commands.refuse_machine(effect.upstream, speaker, now)
        commands = parse_commands(str(request["body"]))
        asks_status = any(isinstance(command, StatusCommand) for command in commands)
        health = await self._read_health(effect.upstream) if asks_status else None
        roles = await self._read_backend_roles(effect.upstream, speaker, commands)
        return await self._commands.obey(
            effect.upstream, speaker, commands, now, health=health, backend_roles=roles
        )

    async def _read_backend_roles(
        self, upstream: RepoName, speaker: CommandAuthor, commands: tuple[Command | InvalidCommand, ...]
    ) -> dict[str, Role]:
        """Read the author's roles in the repositories of backends that they may answer for."""
        answers = [command for command in commands if isinstance(command, AckCommand)]
        if not answers:
            return {}
        backends = await self._commands.find_backends_to_ask(
            upstream, speaker.number, speaker.who, answers, self._clock.now()
        )
        return {backend.key: await self._read_role(upstream, backend, speaker.who) for backend in backends}

    async def _read_role(self, upstream: RepoName, backend: RepoName, who: str) -> Role:
        try:
            return await self._comments.read_role(await self._backends.target(upstream, backend), who)
        except OutsideRefused as refusal:
            if refusal.status not in _UNREADABLE:
                raise
            return Role.NONE  # the App is not installed there: only the on-calls may answer

    async def _react(self, target: Target, comment_id: int, content: str) -> None:
        try:
            await self._comments.react(target, comment_id, content)
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            log.info("comment_gone", comment=comment_id)  # deleted since; what it requested stands


class OfferWaiver:
    def __init__(
        self, requests: PeopleRequests, upstreams: UpstreamTargets, writer: CommentWriter, clock: Clock
    ) -> None:
        self._requests = requests
        self._upstreams = upstreams
        self._writer = writer
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        head_sha = str(json.loads(effect.payload or b"{}").get("head_sha"))
        offers = await self._requests.waiver_offers(effect.upstream, head_sha, self._clock.now())
        if not offers:
            return False
        target = await self._upstreams.target(effect.upstream)
        mark = comment_marker("offer", effect.delivery or head_sha)
        for number, text in offers:
            if not await self._writer.is_written(target, number, mark, effect.created_at):
                await self._writer.write(target, number, text, mark)
        return True
