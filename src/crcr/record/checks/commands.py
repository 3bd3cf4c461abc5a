"""`/crcr` commands obeyed: each comment once, with its answer written down before anybody is told it.

Who may command was asked of GitHub before; here stands what a command does, and to whom it is refused.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import bindparam, select, text

from crcr.decide.checks.text.check import gate_words
from crcr.decide.checks.text.markdown import code
from crcr.decide.commands.answers import CommandAnswer, Speaker
from crcr.decide.commands.grammar import (
    MOST_COMMANDS_AN_HOUR,
    Approve,
    Command,
    Misunderstood,
    Retry,
    Status,
    Unwaive,
    Waive,
    refuse,
    spell,
    verb,
)
from crcr.decide.commands.head import KnownHead, refuse_head
from crcr.decide.health.relay import Health
from crcr.decide.model import Level, Pull, RepoName
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.checks.refresh import Publishing
from crcr.record.checks.requests import PeopleRequests
from crcr.record.checks.waivers import NewWaiver, give_waiver, take_back
from crcr.record.deliveries.approvals import approve
from crcr.record.deliveries.held_dispatches import reconsider
from crcr.record.deliveries.merge_groups import live_groups
from crcr.record.deliveries.pull_requests import load_pull, load_twin_heads
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.schema.checks import commands
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from crcr.record.views.relay.health import unpublished_gate

_HOUR = timedelta(hours=1)

_ANSWERED = Statement(
    select(commands.c.outcome, commands.c.answer).where(
        commands.c.comment_id == bindparam("comment_id"), commands.c.upstream == bindparam("upstream")
    )
)
_RECORD = Statement(
    inserting(
        commands, *("comment_id", "upstream", "number", "who", "outcome", "answer", "commands", "at")
    ).on_conflict_do_nothing()
)
_LAST_HOUR = Statement(
    text(
        "SELECT coalesce(sum(commands), 0) AS given FROM commands"
        " WHERE upstream = :upstream AND who = :who AND at > :since"
    )
)
_TOLD_BEFORE = Statement(
    text(
        "SELECT 1 FROM commands WHERE upstream = :upstream AND who = :who AND number = :number"
        " AND outcome = 'refused' AND answer IS NOT NULL LIMIT 1"
    )
)


@dataclass(frozen=True, slots=True)
class _Reply:
    ok: bool
    words: str | None
    counts: bool = True


_DONE = _Reply(ok=True, words=None)


@dataclass(frozen=True, slots=True)
class _Scene:
    """Where a command is obeyed: the transaction, the pull request, and who speaks."""

    tx: Tx
    upstream: RepoName
    speaker: Speaker
    pull: Pull
    head: KnownHead
    health: Health | None
    now: datetime


class Commands:
    def __init__(
        self, database: Database, allowlists: Allowlists, desk: PeopleRequests, publishing: Publishing
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._desk = desk
        self._publishing = publishing

    async def answered(self, upstream: RepoName, comment_id: int) -> CommandAnswer | None:
        """The answer that was decided before, if this comment was obeyed or refused already."""

        async def unit(tx: Tx) -> CommandAnswer | None:
            row = await tx.one(_ANSWERED, comment_id=comment_id, upstream=upstream.key)
            if row is None:
                return None
            return CommandAnswer(obeyed=row["outcome"] == "obeyed", comment=row["answer"])

        return await self._database.quick_read(unit)

    async def obey(
        self,
        upstream: RepoName,
        speaker: Speaker,
        wanted: tuple[Command | Misunderstood, ...],
        now: datetime,
        *,
        health: Health | None = None,
    ) -> CommandAnswer:
        """Do what may be done, refuse the rest, and write down the answer; all of it once.

        `health` was read before, since reading it takes long where much waits; only `status` tells it.
        """

        async def unit(tx: Tx) -> CommandAnswer:
            replies = await self._replies(tx, upstream, speaker, wanted, now, health=health)
            return await _record(tx, upstream, speaker, replies, now)

        return await self._database.write(unit)

    async def refuse_machine(self, upstream: RepoName, speaker: Speaker, now: datetime) -> CommandAnswer:
        """Bots and deleted accounts command nothing; they get no words, lest two machines talk for ever."""
        silent = [_Reply(ok=False, words=None, counts=False)]
        return await self._database.write(lambda tx: _record(tx, upstream, speaker, silent, now))

    async def _replies(
        self,
        tx: Tx,
        upstream: RepoName,
        speaker: Speaker,
        wanted: tuple[Command | Misunderstood, ...],
        now: datetime,
        *,
        health: Health | None,
    ) -> list[_Reply]:
        pull = await load_pull(tx, upstream, speaker.number)
        if pull is None:
            return [_Reply(ok=False, words="this pull request is not known to the relay yet")]
        if await _given_lately(tx, upstream, speaker, now) + len(wanted) > MOST_COMMANDS_AN_HOUR:
            words = f"at most {MOST_COMMANDS_AN_HOUR} commands an hour are taken from a person"
            return [_Reply(ok=False, words=words, counts=False)]
        head = await _known_head(tx, upstream, pull)
        scene = _Scene(tx, upstream, speaker, pull, head, health, now)
        return [await self._one(scene, each) for each in wanted]

    async def _one(self, scene: _Scene, wanted: Command | Misunderstood) -> _Reply:
        if isinstance(wanted, Misunderstood):
            return _Reply(ok=False, words=f"{code(wanted.text)}: {wanted.why}. {wanted.hint}")
        is_author = scene.pull.author.casefold() == scene.speaker.who.casefold()
        refusal = refuse(wanted, role=scene.speaker.role, is_author=is_author)
        refusal = refusal or refuse_head(wanted, scene.head, scene.speaker.spoke_at)
        if refusal is None:
            reply = await self._do(scene, wanted)
        else:
            reply = _Reply(ok=False, words=f"{code(spell(wanted))}: {refusal}")
        await note_act(
            scene.tx,
            scene.upstream,
            who=scene.speaker.who,
            act=verb(wanted),
            subject=f"#{scene.pull.number}",
            now=scene.now,
            command=spell(wanted),
            head=scene.pull.head_sha,
            obeyed=reply.ok,
        )
        return reply

    async def _do(self, scene: _Scene, wanted: Command) -> _Reply:
        match wanted:
            case Waive():
                return await self._waive(scene, wanted)
            case Unwaive():
                return await self._unwaive(scene, wanted)
            case Retry():
                return await self._retry(scene, wanted)
            case Approve():
                return await self._approve(scene)
            case Status():
                return await self._status(scene)

    async def _waive(self, scene: _Scene, wanted: Waive) -> _Reply:
        pull, now = scene.pull, scene.now
        if not pull.is_open:
            return _Reply(ok=False, words="the pull request is closed: there is nothing to waive")
        if not await self._gates(scene, wanted.downstream):
            return _Reply(ok=False, words=f"{code(str(wanted.downstream))} is not a gating (L4) backend")
        waiver = NewWaiver(
            number=pull.number,
            head_sha=pull.head_sha,
            base_ref=pull.base_ref,
            downstream=wanted.downstream,
            job=wanted.job,
            until_at=now + wanted.until if wanted.until else None,
            who=scene.speaker.who,
            reason=wanted.reason,
        )
        await give_waiver(scene.tx, scene.upstream, waiver, now)
        await self._reevaluate(scene)
        return _DONE

    async def _gates(self, scene: _Scene, downstream: RepoName) -> bool:
        """Whether it is listed at L4, or gates this head under a name that it had or will have."""
        entry = (await self._allowlists.in_force(scene.tx, scene.upstream)).find(downstream)
        if entry is not None and entry.level is Level.L4:
            return True
        judgement = await self._desk.judged(scene.tx, scene.upstream, scene.pull.head_sha, scene.now)
        judged = [each.backend for one in judgement.subjects for each in one.backends] if judgement else []
        return any(downstream in (backend.name, backend.recorded_name) for backend in judged)

    async def _unwaive(self, scene: _Scene, wanted: Unwaive) -> _Reply:
        number, who = scene.pull.number, scene.speaker.who
        ended = await take_back(
            scene.tx, scene.upstream, number, wanted.downstream, wanted.job, who=who, now=scene.now
        )
        if not ended:
            return _Reply(ok=False, words=f"{code(spell(wanted))}: there is no such waiver in force")
        await self._reevaluate(scene)
        return _DONE

    async def _retry(self, scene: _Scene, wanted: Retry) -> _Reply:
        head_sha = scene.pull.head_sha
        if await self._desk.retry(scene.tx, scene.upstream, head_sha, wanted.downstream, scene.now):
            return _DONE
        if wanted.downstream is None:
            return _Reply(
                ok=False,
                words="there is nothing to run again: no backend of L3 or L4 fails here, or it is suspended",
            )
        words = (
            f"{code(str(wanted.downstream))} has nothing to run again on this commit, or is not at L3 or L4"
        )
        return _Reply(ok=False, words=words)

    async def _approve(self, scene: _Scene) -> _Reply:
        tx, upstream, pull, now = scene.tx, scene.upstream, scene.pull, scene.now
        if not pull.is_open:
            return _Reply(ok=False, words="the pull request is closed: there is nothing to approve")
        await approve(tx, upstream, pull, who=scene.speaker.who, now=now)
        await reconsider(tx, upstream, pull, await self._allowlists.in_force(tx, upstream), now)
        await self._reevaluate(scene)
        return _DONE

    async def _status(self, scene: _Scene) -> _Reply:
        judgement = await self._desk.judged(scene.tx, scene.upstream, scene.pull.head_sha, scene.now)
        if judgement is None:
            return _Reply(ok=True, words="no open delivery of this pull request's head is recorded")
        words = gate_words(judgement, scene.pull.head_sha)
        late = await self._late(scene, judgement.state.value)
        return _Reply(ok=True, words="\n\n".join([code(words.title), *late, words.summary]))

    async def _late(self, scene: _Scene, state: str) -> list[str]:
        """What GitHub does not show yet, and why the relay is not green."""
        gate = await unpublished_gate(scene.tx, scene.upstream, scene.pull.head_sha, state, scene.now)
        said = [gate.text] if gate else []
        if scene.health is None or not scene.health.reasons:
            return said
        relay = "\n".join(f"- {reason.text}" for reason in scene.health.reasons)
        return [*said, f"The relay is {scene.health.state.value}:\n\n{relay}"]

    async def _reevaluate(self, scene: _Scene) -> None:
        """The pull request's own head, and the merge groups that it may be part of."""
        groups = await live_groups(scene.tx, scene.upstream)
        heads = [scene.pull.head_sha, *(row["head_sha"] for row in groups)]
        await self._publishing.again(scene.tx, scene.upstream, heads, scene.now)
        await note_change(scene.tx, scene.upstream, "gate", number=scene.pull.number, now=scene.now)


async def _known_head(tx: Tx, upstream: RepoName, pull: Pull) -> KnownHead:
    # Of a pull request whose head's own event was missed, the last event that named the head dates it.
    moved_at = pull.head_at or pull.updated_at
    earlier = await load_twin_heads(tx, upstream, pull)
    return KnownHead(
        sha=pull.head_sha,
        moved_at=moved_at,
        earlier=earlier,
        base_ref=pull.base_ref,
        base_at=pull.base_at,
    )


async def _given_lately(tx: Tx, upstream: RepoName, speaker: Speaker, now: datetime) -> int:
    row = await tx.one(_LAST_HOUR, upstream=upstream.key, who=speaker.who, since=to_us(now - _HOUR))
    return row["given"] if row else 0


async def _record(
    tx: Tx, upstream: RepoName, speaker: Speaker, replies: list[_Reply], now: datetime
) -> CommandAnswer:
    """Write down what is answered. Who was told of a refusal on this pull request before gets a reaction only."""
    obeyed = all(reply.ok for reply in replies)
    where = {"upstream": upstream.key, "who": speaker.who, "number": speaker.number}
    told = not obeyed and await tx.one(_TOLD_BEFORE, **where) is not None
    words = [reply.words for reply in replies if reply.words and (reply.ok or not told)]
    answer = CommandAnswer(obeyed=obeyed, comment="\n\n".join(words) or None)
    await tx.run(
        _RECORD,
        comment_id=speaker.comment_id,
        outcome="obeyed" if obeyed else "refused",
        answer=answer.comment,
        commands=sum(reply.counts for reply in replies),
        at=to_us(now),
        **where,
    )
    return answer
