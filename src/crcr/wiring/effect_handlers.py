"""What each kind of effect is done by."""

import httpx

from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.allowlist_source import AllowlistRefresher
from crcr.deliver.handlers.changed_files import AskFiles, ReadGroup
from crcr.deliver.handlers.commands import AnswerCommand, CommentWriter, OfferWaiver
from crcr.deliver.handlers.dispatch import ConfirmHead, IdentifyRepository, RefreshAllowlist, SendDispatch
from crcr.deliver.handlers.forward_result import ForwardResult
from crcr.deliver.handlers.inspect_repository import InspectRepository
from crcr.deliver.handlers.look_up_runs import LookUp
from crcr.deliver.handlers.publish_checks import PublishChecks
from crcr.deliver.handlers.rerun import Rerun
from crcr.deliver.handlers.upstream_target import UpstreamTargets
from crcr.deliver.handlers.verify_commit import VerifyCommit
from crcr.deliver.worker import Handler
from crcr.record.checks.commands import Commands
from crcr.record.checks.reruns import Reruns
from crcr.record.deliveries.dispatch_payloads import DispatchLoads
from crcr.record.deliveries.head_conflicts import Doubts
from crcr.record.deliveries.merge_group_contents import MergeGroups
from crcr.record.deliveries.path_filters import PathQuestions
from crcr.record.reports.tested_commits import Commits
from crcr.record.repositories.inspections import Inspections
from crcr.record.workflow_runs.lookups import Lookups
from crcr.settings import Settings
from crcr.wiring.core import Core, outcomes_of


def effect_handlers(ground: Core, refreshers: dict[str, AllowlistRefresher]) -> dict[EffectKind, Handler]:
    settings, github, clock = ground.settings, ground.github, ground.clock
    return {
        EffectKind.SEND_DISPATCH: SendDispatch(
            DispatchLoads(ground.database),
            ground.targets,
            github.repositories,
            callback_url=f"{settings.public_url.rstrip('/')}/github/callback",
            audience=settings.oidc_audiences[0],
        ),
        EffectKind.IDENTIFY_REPOSITORY: IdentifyRepository(ground.targets, github.repositories, clock),
        EffectKind.CONFIRM_HEAD: ConfirmHead(
            Doubts(ground.database, ground.allowlists, ground.refresher), github, clock
        ),
        EffectKind.REFRESH_ALLOWLIST: RefreshAllowlist(refreshers),
        EffectKind.FORWARD_RESULT: _forwarder(settings, ground.forward_http),
        EffectKind.INSPECT_REPOSITORY: InspectRepository(Inspections(ground.database), github, clock),
        EffectKind.FEED_HISTORY: ground.past.handler(clock),
        **_upstream_handlers(ground),
    }


def _upstream_handlers(ground: Core) -> dict[EffectKind, Handler]:
    """What is asked and said on the upstream's pull requests, and of the downstreams' Actions for it."""
    database, github, clock, refresher = ground.database, ground.github, ground.clock, ground.refresher
    upstreams, voice = UpstreamTargets(ground.targets, github.repositories), CommentWriter(github.comments)
    return {
        EffectKind.PUBLISH_CHECKS: PublishChecks(ground.checks, upstreams, github.checks, clock),
        EffectKind.ASK_FILES: AskFiles(
            PathQuestions(database, ground.allowlists, refresher), upstreams, github, clock
        ),
        EffectKind.READ_GROUP: ReadGroup(
            MergeGroups(database, ground.allowlists, ground.checks, refresher),
            upstreams,
            github.commits,
            clock,
        ),
        EffectKind.RERUN: Rerun(Reruns(database, refresher), github, clock),
        EffectKind.LOOK_UP: LookUp(
            Lookups(database, ground.allowlists, refresher, ground.job_timeout, outcomes_of(ground)),
            github,
            clock,
        ),
        EffectKind.ANSWER_COMMAND: AnswerCommand(
            Commands(database, ground.allowlists, ground.desk, refresher),
            upstreams,
            github.comments,
            voice,
            clock,
            health=ground.health,
        ),
        EffectKind.OFFER_WAIVER: OfferWaiver(ground.desk, upstreams, voice, clock),
        EffectKind.VERIFY_COMMIT: VerifyCommit(Commits(database), upstreams, github.commits, clock),
    }


def _forwarder(settings: Settings, http: httpx.AsyncClient) -> Handler:
    if settings.hud_forward_url is None or settings.hud_forward_token is None:
        return _not_wanted
    return ForwardResult(http, settings.hud_forward_url, settings.hud_forward_token.get_secret_value())


async def _not_wanted(_: ClaimedEffect) -> bool:
    """Forwarding was turned off while results waited for it."""
    return False
