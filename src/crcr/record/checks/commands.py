"""Execution of `/crcr` commands: each comment once, with its answer recorded before it is posted.

The author's role was read from GitHub before; this module executes a command or refuses it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import bindparam, select, text

from crcr.decide.bisection.request import BisectionRequest
from crcr.decide.checks.text.check import gate_words
from crcr.decide.checks.text.markdown import code, prose
from crcr.decide.commands.answers import (
    CommandAnswer,
    CommandAuthor,
    KnownHead,
    bisection_begun_text,
    failing_jobs_text,
    refuse_head,
    refuse_unknown_job,
)
from crcr.decide.commands.grammar import (
    MOST_COMMANDS_AN_HOUR,
    AckCommand,
    ApproveCommand,
    BisectCommand,
    BisectionTarget,
    Command,
    FailureTarget,
    InvalidCommand,
    KnownCommand,
    RetryCommand,
    StatusCommand,
    TestWithCommand,
    UnknownCommand,
    UnwaiveCommand,
    VerdictCommand,
    WaiveCommand,
    command_verb,
    format_command,
    refuse_role,
)
from crcr.decide.failures.known import KNOWN_FOR, parse_issue_url
from crcr.decide.github.requests_and_answers import Role
from crcr.decide.health.relay import Health
from crcr.decide.model import KnownPull, Level, RepoName
from crcr.decide.notices.announcements import (
    MISSING_NOTE,
    AnnouncementState,
    announcement_state,
    announcement_text,
    choose_answered,
    choose_backends_to_ask,
)
from crcr.decide.pairs.depends_on import PullReference, is_on_site
from crcr.errors import BadRequest, CrcrError, NotFound, NotPossible
from crcr.record.bisection.bisections import Bisections
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.checks.requests import PeopleRequests
from crcr.record.checks.waivers import NewWaiver, add_waiver, revoke_waivers
from crcr.record.deliveries.dispatches import reconsider_held
from crcr.record.deliveries.merge_groups import live_groups
from crcr.record.deliveries.pull_requests import (
    approve,
    find_newest_delivery,
    load_pull,
    load_twin_heads,
)
from crcr.record.failures.known_failures import (
    HeadFailure,
    NewKnownFailure,
    find_head_failures,
    link_failure,
    unlink_failures,
    unlink_issue,
)
from crcr.record.failures.person_verdicts import (
    PersonVerdict,
    add_person_verdict,
    load_failed_jobs,
    load_person_verdicts,
)
from crcr.record.notices.announcements import add_answer, read_answers, read_concerned
from crcr.record.pairs.named_dependencies import request_pair
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.schema.checks import commands
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from crcr.record.views.relay.health import unpublished_gate
from crcr.record.views.visibility import visible_backends

_HOUR = timedelta(hours=1)
_MOST_LISTED = 10
"""Of several failures that a command may mean."""
_MOST_LINE = 1_200

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
class _CommandContext:
    """What a command is executed with: the transaction, the pull request and the comment's author."""

    tx: Tx
    upstream: RepoName
    speaker: CommandAuthor
    pull: KnownPull
    head: KnownHead
    health: Health | None
    backend_roles: Mapping[str, Role]
    now: datetime


class Commands:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        requests: PeopleRequests,
        refresher: CheckRefresher,
        bisections: Bisections,
        *,
        github_url: str,
        hud_url: str,
    ) -> None:
        """`github_url` is the web address of GitHub, which the addresses of issues begin with; `hud_url` is the relay's own."""
        self._github_url = github_url
        self._hud_url = hud_url.rstrip("/")
        self._bisections = bisections
        self._database = database
        self._allowlists = allowlists
        self._requests = requests
        self._refresher = refresher

    async def find_answer(self, upstream: RepoName, comment_id: int) -> CommandAnswer | None:
        """The recorded answer, if this comment was executed or refused before."""

        async def unit(tx: Tx) -> CommandAnswer | None:
            row = await tx.one(_ANSWERED, comment_id=comment_id, upstream=upstream.key)
            if row is None:
                return None
            return CommandAnswer(obeyed=row["outcome"] == "obeyed", comment=row["answer"])

        return await self._database.quick_read(unit)

    async def obey(
        self,
        upstream: RepoName,
        speaker: CommandAuthor,
        commands: tuple[Command | InvalidCommand, ...],
        now: datetime,
        *,
        health: Health | None = None,
        backend_roles: Mapping[str, Role] | None = None,
    ) -> CommandAnswer:
        """Do what may be done, refuse the rest, and write down the answer; all of it once.

        `health` was read before, since reading it takes long with many waiting effects; only `status` uses it.
        `backend_roles` are the author's roles in the repositories that `find_backends_to_ask` returned; for `ack`.
        """

        async def unit(tx: Tx) -> CommandAnswer:
            facts = health, backend_roles or {}
            replies = await self._replies(tx, upstream, speaker, commands, now, facts=facts)
            return await _record(tx, upstream, speaker, replies, now)

        return await self._database.write(unit)

    async def refuse_machine(
        self, upstream: RepoName, speaker: CommandAuthor, now: datetime
    ) -> CommandAnswer:
        """Refuse a bot or deleted account without a comment, so that two machines do not answer each other for ever."""
        silent = [_Reply(ok=False, words=None, counts=False)]
        return await self._database.write(lambda tx: _record(tx, upstream, speaker, silent, now))

    async def _replies(
        self,
        tx: Tx,
        upstream: RepoName,
        speaker: CommandAuthor,
        commands: tuple[Command | InvalidCommand, ...],
        now: datetime,
        *,
        facts: tuple[Health | None, Mapping[str, Role]],
    ) -> list[_Reply]:
        pull = await load_pull(tx, upstream, speaker.number)
        if pull is None:
            return [_Reply(ok=False, words="this pull request is not known to the relay yet")]
        if await _given_lately(tx, upstream, speaker.who, now) + len(commands) > MOST_COMMANDS_AN_HOUR:
            words = f"at most {MOST_COMMANDS_AN_HOUR} commands an hour are accepted from one person"
            return [_Reply(ok=False, words=words, counts=False)]
        head = await _known_head(tx, upstream, pull)
        context = _CommandContext(tx, upstream, speaker, pull, head, *facts, now)
        return [await self._reply(context, line) for line in commands]

    async def _reply(self, context: _CommandContext, command: Command | InvalidCommand) -> _Reply:
        if isinstance(command, InvalidCommand):
            return _Reply(ok=False, words=f"{code(command.text)}: {command.why}. {command.hint}")
        is_author = context.pull.author.casefold() == context.speaker.who.casefold()
        refusal = refuse_role(command, role=context.speaker.role, is_author=is_author)
        refusal = refusal or refuse_head(command, context.head, context.speaker.spoke_at)
        if refusal is None:
            reply = await self._execute(context, command)
        else:
            reply = _Reply(ok=False, words=f"{code(format_command(command))}: {refusal}")
        await note_act(
            context.tx,
            context.upstream,
            who=context.speaker.who,
            act=command_verb(command),
            subject=f"#{context.pull.number}",
            now=context.now,
            command=format_command(command),
            head=context.pull.head_sha,
            obeyed=reply.ok,
        )
        return reply

    async def _execute(self, context: _CommandContext, command: Command) -> _Reply:
        match command:
            case WaiveCommand():
                return await self._waive(context, command)
            case UnwaiveCommand():
                return await self._unwaive(context, command)
            case RetryCommand():
                return await self._retry(context, command)
            case ApproveCommand():
                return await self._approve(context)
            case VerdictCommand():
                return await self._give_verdict(context, command)
            case KnownCommand():
                return await self._link(context, command)
            case UnknownCommand():
                return await self._unlink(context, command)
            case BisectCommand():
                return await self._bisect(context, command)
            case AckCommand():
                return await self._acknowledge(context, command)
            case TestWithCommand():
                return await self._test_with(context, command)
            case StatusCommand():
                return await self._status(context)

    async def _waive(self, context: _CommandContext, command: WaiveCommand) -> _Reply:
        pull, now = context.pull, context.now
        if not pull.is_open:
            return _Reply(ok=False, words="the pull request is closed: there is nothing to waive")
        if not await self._gates(context, command.downstream):
            return _Reply(ok=False, words=f"{code(str(command.downstream))} is not a gating (L4) backend")
        waiver = NewWaiver(
            number=pull.number,
            head_sha=pull.head_sha,
            base_ref=pull.base_ref,
            downstream=command.downstream,
            job=command.job,
            until_at=now + command.until if command.until else None,
            who=context.speaker.who,
            reason=command.reason,
        )
        await add_waiver(context.tx, context.upstream, waiver, now)
        await self._reevaluate(context)
        return _DONE

    async def _gates(self, context: _CommandContext, downstream: RepoName) -> bool:
        """Whether the downstream is listed at L4, or gates this head under a former or new name."""
        entry = (await self._allowlists.in_force(context.tx, context.upstream)).find(downstream)
        if entry is not None and entry.level is Level.L4:
            return True
        judgement = await self._requests.judge(
            context.tx, context.upstream, context.pull.head_sha, context.now
        )
        judged = (
            [backend.backend for subject in judgement.subjects for backend in subject.backends]
            if judgement
            else []
        )
        return any(downstream in (backend.name, backend.recorded_name) for backend in judged)

    async def _unwaive(self, context: _CommandContext, command: UnwaiveCommand) -> _Reply:
        number, who = context.pull.number, context.speaker.who
        ended = await revoke_waivers(
            context.tx, context.upstream, number, command.downstream, command.job, who=who, now=context.now
        )
        if not ended:
            return _Reply(
                ok=False, words=f"{code(format_command(command))}: there is no such waiver in force"
            )
        await self._reevaluate(context)
        return _DONE

    async def _retry(self, context: _CommandContext, command: RetryCommand) -> _Reply:
        head_sha = context.pull.head_sha
        if await self._requests.retry(
            context.tx, context.upstream, head_sha, command.downstream, context.now
        ):
            return _DONE
        if command.downstream is None:
            return _Reply(
                ok=False,
                words="there is nothing to run again: no backend of L3 or L4 fails here, or it is suspended",
            )
        words = (
            f"{code(str(command.downstream))} has nothing to run again on this commit, or is not at L3 or L4"
        )
        return _Reply(ok=False, words=words)

    async def _approve(self, context: _CommandContext) -> _Reply:
        tx, upstream, pull, now = context.tx, context.upstream, context.pull, context.now
        if not pull.is_open:
            return _Reply(ok=False, words="the pull request is closed: there is nothing to approve")
        await approve(tx, upstream, pull, who=context.speaker.who, now=now)
        await reconsider_held(tx, upstream, pull, await self._allowlists.in_force(tx, upstream), now)
        await self._reevaluate(context)
        return _DONE

    async def _link(self, context: _CommandContext, command: KnownCommand) -> _Reply:
        """Link one group to an issue; what could mean several is refused, with a command for each."""
        issue = parse_issue_url(command.url, self._github_url)
        if issue is None:
            words = f"{code(command.url)} is not the address of an issue on {code(self._github_url)}"
            return _Reply(ok=False, words=words)
        target = command.target or FailureTarget()
        fingerprint = target.fingerprint
        if fingerprint is None:
            found = await self._find_groups(context, target)
            if len(found) != 1:
                return _Reply(ok=False, words=await self._explain_groups(context, command, found))
            fingerprint = found[0].fingerprint
        new = NewKnownFailure(
            fingerprint=fingerprint,
            url=issue.url(self._github_url),
            who=context.speaker.who,
            reason=command.reason,
            duration=command.until or KNOWN_FOR,
        )
        if not await link_failure(context.tx, context.upstream, new, context.now):
            return _Reply(ok=False, words=f"no failure with the fingerprint {code(fingerprint)} is recorded")
        return _DONE

    async def _unlink(self, context: _CommandContext, command: UnknownCommand) -> _Reply:
        tx, upstream, target = context.tx, context.upstream, command.target
        if target is None:
            issue = parse_issue_url(command.url or "", self._github_url)
            url = issue.url(self._github_url) if issue else ""
            ended = await unlink_issue(tx, upstream, url, context.now) if issue else 0
        elif target.fingerprint is not None:
            ended = await unlink_failures(tx, upstream, (target.fingerprint,), context.now)
        else:
            groups = await self._find_groups(context, target)
            fingerprints = [group.fingerprint for group in groups]
            ended = await unlink_failures(tx, upstream, fingerprints, context.now)
        if ended:
            return _DONE
        return _Reply(ok=False, words=f"{code(format_command(command))}: no such failure is known")

    async def _bisect(self, context: _CommandContext, command: BisectCommand) -> _Reply:
        """Begin or stop a bisection. A refusal is raised before anything of it is written."""
        tx, upstream, now, who = context.tx, context.upstream, context.now, context.speaker.who
        try:
            if command.target is not None:
                return await self._begin_bisection(context, command.target)
            await self._bisections.stop_in(tx, upstream, command.stop or 0, who=who, now=now)
        except (BadRequest, NotFound, NotPossible) as refusal:
            return _Reply(ok=False, words=f"{code(format_command(command))}: {_explain_refusal(refusal)}")
        return _DONE

    async def _begin_bisection(self, context: _CommandContext, target: BisectionTarget) -> _Reply:
        tx, upstream = context.tx, context.upstream
        request = BisectionRequest(
            downstream=target.downstream,
            job=target.job,
            who=context.speaker.who,
            good=target.good,
            bad=target.bad,
        )
        bisection_id = await self._bisections.start_in(tx, upstream, request, context.now)
        commits = await self._bisections.read_range(tx, upstream, bisection_id)
        visible = await visible_backends(tx, self._allowlists, upstream)
        is_shown = target.downstream.key in visible.reporting
        url = f"{self._hud_url}/crcr/bisections/{bisection_id}?upstream={upstream}" if is_shown else None
        words = bisection_begun_text(bisection_id, target, [commit.sha for commit in commits], url)
        return _Reply(ok=True, words=words)

    async def _test_with(self, context: _CommandContext, command: TestWithCommand) -> _Reply:
        """Record the pair. Whether the other pull request counts is read from GitHub afterwards, and shown on the HUD."""
        reference, pull = command.reference, context.pull
        entry = (await self._allowlists.in_force(context.tx, context.upstream)).find(reference.repository)
        if not pull.is_open:
            refusal: str | None = "the pull request is closed"
        elif entry is None or entry.level < Level.L2 or not is_on_site(reference, self._github_url):
            refusal = f"{code(str(reference.repository), 140)} is not a backend of this upstream whose results are recorded"
        else:
            reference = PullReference(entry.name, reference.number)
            who = context.speaker.who
            refusal = await request_pair(
                context.tx, context.upstream, pull.number, reference, who=who, now=context.now
            )
        if refusal is not None:
            return _Reply(ok=False, words=f"{code(format_command(command))}: {refusal}")
        return _DONE

    async def _find_groups(self, context: _CommandContext, target: FailureTarget) -> list[HeadFailure]:
        """The groups of the head that are meant; where no backend is named, those that every reader may see."""
        found = await find_head_failures(
            context.tx, context.upstream, context.pull.head_sha, target.downstream, target.job
        )
        if target.downstream is not None:
            return found
        visible = await visible_backends(context.tx, self._allowlists, context.upstream)
        return [group for group in found if not group.downstreams.isdisjoint(visible.reporting)]

    async def _explain_groups(
        self, context: _CommandContext, command: KnownCommand, found: list[HeadFailure]
    ) -> str:
        if not found:
            return (
                f"{code(format_command(command))}: no failure with a message is recorded there for this head"
            )
        visible = await visible_backends(context.tx, self._allowlists, context.upstream)
        lines = [
            f"- {code(format_command(replace(command, target=FailureTarget(fingerprint=group.fingerprint))), _MOST_LINE)}"
            + (f" for {code(group.sample)}" if group.downstreams <= visible.reporting.keys() else "")
            for group in found[:_MOST_LISTED]
        ]
        more = [f"- and {len(found) - _MOST_LISTED:,} more"] if len(found) > _MOST_LISTED else []
        title = f"{len(found)} different failures are meant by that. Choose one:"
        return "\n".join([title, "", *lines, *more])

    async def _give_verdict(self, context: _CommandContext, command: VerdictCommand) -> _Reply:
        tx, upstream, pull, now = context.tx, context.upstream, context.pull, context.now
        delivery = await find_newest_delivery(
            tx, upstream, pull.number, head_sha=pull.head_sha, base_ref=pull.base_ref
        )
        failed = (
            await load_failed_jobs(tx, upstream, delivery["guid"], command.downstream) if delivery else {}
        )
        if command.job not in failed:
            words = refuse_unknown_job(command, tuple(failed))
            return _Reply(ok=False, words=f"{code(format_command(command))}: {words}")
        verdict = PersonVerdict(
            number=pull.number,
            head_sha=pull.head_sha,
            downstream=command.downstream,
            job=command.job,
            kind=command.kind,
            who=context.speaker.who,
            reason=command.reason,
        )
        await add_person_verdict(tx, upstream, verdict, failed[command.job], now)
        await note_change(tx, upstream, "job", downstream=command.downstream.key, number=pull.number, now=now)
        return _DONE

    async def find_backends_to_ask(
        self, upstream: RepoName, number: int, who: str, commands: Iterable[AckCommand], now: datetime
    ) -> tuple[RepoName, ...]:
        """The backends in whose repositories the role of a comment's author decides about an `ack`.

        None for a person who is over the limit of commands: GitHub's budget is not spent on them.
        """

        async def unit(tx: Tx) -> tuple[RepoName, ...]:
            pull = await load_pull(tx, upstream, number)
            if pull is None or announcement_state(pull) is not AnnouncementState.ANNOUNCED:
                return ()
            if await _given_lately(tx, upstream, who, now) >= MOST_COMMANDS_AN_HOUR:
                return ()
            allowlist = await self._allowlists.in_force(tx, upstream)
            found = await read_concerned(tx, upstream, pull, allowlist)
            named = [command.downstream for command in commands]
            return tuple(entry.name for entry in choose_backends_to_ask(found.concerned, who, named))

        return await self._database.quick_read(unit)

    async def _acknowledge(self, context: _CommandContext, command: AckCommand) -> _Reply:
        tx, upstream, pull, who = context.tx, context.upstream, context.pull, context.speaker.who
        state = announcement_state(pull)
        if state is not AnnouncementState.ANNOUNCED:
            missing = state is AnnouncementState.INCOMPLETE
            return _Reply(ok=False, words=MISSING_NOTE if missing else "no breaking change is announced here")
        found = await read_concerned(tx, upstream, pull, await self._allowlists.in_force(tx, upstream))
        chosen = choose_answered(found.concerned, who, context.backend_roles, command.downstream)
        if isinstance(chosen, str):
            return _Reply(ok=False, words=f"{code(format_command(command))}: {chosen}")
        await add_answer(tx, upstream, pull.number, chosen.name, who=who, at=context.speaker.spoke_at)
        await note_change(
            tx, upstream, "gate", downstream=chosen.name.key, number=pull.number, now=context.now
        )
        return _DONE

    async def _announcement(self, context: _CommandContext) -> list[str]:
        """State what the pull request announces, and which of the backends that everybody sees have answered."""
        tx, upstream, pull = context.tx, context.upstream, context.pull
        state = announcement_state(pull)
        if state is None or state is AnnouncementState.ENDED:
            return []
        found = await read_concerned(tx, upstream, pull, await self._allowlists.in_force(tx, upstream))
        answers = await read_answers(tx, upstream, pull)
        return [announcement_text(state, found.concerned, answers)]

    async def _status(self, context: _CommandContext) -> _Reply:
        tx, upstream, head_sha = context.tx, context.upstream, context.pull.head_sha
        commit, judgement = await self._requests.judge_commit(tx, upstream, head_sha, context.now)
        announced = await self._announcement(context)
        if judgement is None:
            unknown = "no open delivery of this pull request's head is recorded"
            return _Reply(ok=True, words="\n\n".join([unknown, *announced]))
        words = gate_words(judgement, head_sha)
        late = await self._late(context, judgement.state.value)
        persons = await load_person_verdicts(tx, upstream, head_sha)
        contradictions = {key: (row["who"], row["verdict"], row["reason"]) for key, row in persons.items()}
        failing = failing_jobs_text(commit, context.pull.number, contradictions)
        return _Reply(
            ok=True, words="\n\n".join([code(words.title), *late, words.summary, *failing, *announced])
        )

    async def _late(self, context: _CommandContext, state: str) -> list[str]:
        """State that GitHub does not show yet, and the reasons why the relay is not healthy."""
        gate = await unpublished_gate(context.tx, context.upstream, context.pull.head_sha, state, context.now)
        lines = [gate.text] if gate else []
        if context.health is None or not context.health.reasons:
            return lines
        relay = "\n".join(f"- {reason.text}" for reason in context.health.reasons)
        return [*lines, f"The relay is {context.health.state.value}:\n\n{relay}"]

    async def _reevaluate(self, context: _CommandContext) -> None:
        """Refresh the checks of the pull request's head, and of the merge groups that it may be part of."""
        groups = await live_groups(context.tx, context.upstream)
        heads = [context.pull.head_sha, *(row["head_sha"] for row in groups)]
        await self._refresher.request_refresh(context.tx, context.upstream, heads, context.now)
        await note_change(context.tx, context.upstream, "gate", number=context.pull.number, now=context.now)


def _explain_refusal(refusal: CrcrError) -> str:
    detail = prose(refusal.detail, _MOST_LINE)
    return f"{detail}. {prose(refusal.hint, _MOST_LINE)}" if refusal.hint else detail


async def _known_head(tx: Tx, upstream: RepoName, pull: KnownPull) -> KnownHead:
    # When the event of the head itself was missed, the last event that names the head dates it.
    moved_at = pull.head_at or pull.updated_at
    earlier = await load_twin_heads(tx, upstream, pull)
    return KnownHead(
        sha=pull.head_sha,
        moved_at=moved_at,
        earlier=earlier,
        base_ref=pull.base_ref,
        base_at=pull.base_at,
    )


async def _given_lately(tx: Tx, upstream: RepoName, who: str, now: datetime) -> int:
    row = await tx.one(_LAST_HOUR, upstream=upstream.key, who=who, since=to_us(now - _HOUR))
    return row["given"] if row else 0


async def _record(
    tx: Tx, upstream: RepoName, speaker: CommandAuthor, replies: list[_Reply], now: datetime
) -> CommandAnswer:
    """Record the answer. An author who got a refusal on this pull request before gets a reaction only."""
    obeyed = all(reply.ok for reply in replies)
    command_key = {"upstream": upstream.key, "who": speaker.who, "number": speaker.number}
    already_answered = not obeyed and await tx.one(_TOLD_BEFORE, **command_key) is not None
    words = [reply.words for reply in replies if reply.words and (reply.ok or not already_answered)]
    answer = CommandAnswer(obeyed=obeyed, comment="\n\n".join(words) or None)
    await tx.run(
        _RECORD,
        comment_id=speaker.comment_id,
        outcome="obeyed" if obeyed else "refused",
        answer=answer.comment,
        commands=sum(reply.counts for reply in replies),
        at=to_us(now),
        **command_key,
    )
    return answer
