"""Answering people on pull requests: `/crcr` comments, and the gate's button that offers one.

Rights are asked of GitHub for the comment's author. The answer is decided and recorded first, then given: a
reaction always, words where a reaction would not do. After a lost answer our own comment is looked for.
"""

import json
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from crcr.decide.commands.answers import CommandAnswer, CommandAuthor, comment_marker
from crcr.decide.commands.grammar import Command, InvalidCommand, StatusCommand, parse_commands
from crcr.decide.github.values import Role, Target
from crcr.decide.health.relay import Health
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.handlers.upstream_target import UpstreamTargets
from crcr.errors import OutsideRefused
from crcr.github.client import CommentsApi
from crcr.ports import Clock

log = structlog.get_logger(__name__)

_LOOK_BACK = timedelta(hours=1)
"""Clocks differ, and GitHub may tell of one comment twice."""


class Commands(Protocol):
    async def find_answer(self, upstream: RepoName, comment_id: int) -> CommandAnswer | None: ...
    async def obey(
        self,
        upstream: RepoName,
        speaker: CommandAuthor,
        wanted: tuple[Command | InvalidCommand, ...],
        now: datetime,
        *,
        health: Health | None = None,
    ) -> CommandAnswer: ...
    async def refuse_machine(
        self, upstream: RepoName, speaker: CommandAuthor, now: datetime
    ) -> CommandAnswer: ...


class HealthReading(Protocol):
    async def of(self, upstream: RepoName) -> Health | None:
        """The health of one upstream; None when the store does not answer."""
        ...


class CommentWriter:
    """Says something on a pull request once, however often it is tried.

    Whether it was tried is for the caller to know: an effect that had to wait for GitHub's limits has not counted
    its attempt, and may have spoken in it.
    """

    def __init__(self, comments: CommentsApi) -> None:
        self._comments = comments

    async def say(self, where: Target, number: int, words: str, mark: str) -> None:
        await self._comments.create(where, number, f"{words}\n\n{mark}")

    async def has_said(self, where: Target, number: int, mark: str, since: datetime) -> bool:
        found = await self._comments.list_since(where, number, since - _LOOK_BACK)
        return any(mark in each.body for each in found)


class AnswerCommand:
    def __init__(
        self,
        commands: Commands,
        upstreams: UpstreamTargets,
        comments: CommentsApi,
        voice: CommentWriter,
        clock: Clock,
        *,
        health: HealthReading,
    ) -> None:
        self._commands = commands
        self._health = health
        self._upstreams = upstreams
        self._comments = comments
        self._voice = voice
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        asked = json.loads(effect.payload or b"{}")
        number, comment_id = int(asked["number"]), int(asked["comment_id"])
        where = await self._upstreams.target(effect.upstream)
        mark = comment_marker("answer", str(comment_id))
        answer, said = await self._commands.find_answer(effect.upstream, comment_id), False
        if answer is None:
            answer = await self._decide(effect, where, asked)
        elif answer.comment is not None:
            said = await self._voice.has_said(where, number, mark, effect.created_at)
        if answer.comment is not None and not said:
            await self._voice.say(where, number, f"@{asked['author']}\n\n{answer.comment}", mark)
        await self._react(where, comment_id, "+1" if answer.obeyed else "-1")
        return True

    async def _decide(self, effect: ClaimedEffect, where: Target, asked: dict[str, object]) -> CommandAnswer:
        author, now = str(asked["author"]), self._clock.now()
        role = await self._comments.read_role(where, author) if asked["person"] else Role.NONE
        number, comment_id = int(str(asked["number"])), int(str(asked["comment_id"]))
        spoke_at = datetime.fromisoformat(str(asked["created_at"]))
        speaker = CommandAuthor(
            who=author, role=role, number=number, comment_id=comment_id, spoke_at=spoke_at
        )
        if not asked["person"]:
            return await self._commands.refuse_machine(effect.upstream, speaker, now)
        wanted = parse_commands(str(asked["body"]))
        asks_status = any(isinstance(each, StatusCommand) for each in wanted)
        health = await self._health.of(effect.upstream) if asks_status else None
        return await self._commands.obey(effect.upstream, speaker, wanted, now, health=health)

    async def _react(self, where: Target, comment_id: int, content: str) -> None:
        try:
            await self._comments.react(where, comment_id, content)
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            log.info("comment_gone", comment=comment_id)  # deleted since; what it commanded stands


class Offers(Protocol):
    async def waiver_offers(
        self, upstream: RepoName, head_sha: str, now: datetime
    ) -> tuple[tuple[int, str], ...]:
        """For each pull request on the head whose gate is blocked: its number and the ready commands."""
        ...


class OfferWaiver:
    def __init__(
        self, offers: Offers, upstreams: UpstreamTargets, voice: CommentWriter, clock: Clock
    ) -> None:
        self._offers = offers
        self._upstreams = upstreams
        self._voice = voice
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        head_sha = str(json.loads(effect.payload or b"{}").get("head_sha"))
        offers = await self._offers.waiver_offers(effect.upstream, head_sha, self._clock.now())
        if not offers:
            return False
        where = await self._upstreams.target(effect.upstream)
        mark = comment_marker("offer", effect.delivery or head_sha)
        for number, words in offers:
            if not await self._voice.has_said(where, number, mark, effect.created_at):
                await self._voice.say(where, number, words, mark)
        return True
