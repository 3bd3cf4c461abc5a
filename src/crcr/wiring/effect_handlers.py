"""The handler of each effect kind."""

from collections.abc import Mapping

from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.allowlist_source import AllowlistRefresher
from crcr.deliver.handlers.changed_files import AskFiles, ReadGroup
from crcr.deliver.handlers.commands import AnswerCommand, CommentWriter, OfferWaiver
from crcr.deliver.handlers.dispatch import (
    AdvanceBisection,
    ConfirmHead,
    IdentifyRepository,
    RefreshAllowlist,
    SendDispatch,
)
from crcr.deliver.handlers.dynamodb import DynamoDbTable, WriteDynamoDb
from crcr.deliver.handlers.forward_result import ForwardResult
from crcr.deliver.handlers.inspect_repository import InspectRepository
from crcr.deliver.handlers.look_up_runs import LookUp
from crcr.deliver.handlers.publish_checks import PublishChecks
from crcr.deliver.handlers.read_dependency import ReadDependencies
from crcr.deliver.handlers.rerun import Rerun
from crcr.deliver.handlers.upstream_facts import BackendTargets, ReadIssue, UpstreamTargets, VerifyCommit
from crcr.deliver.notices.outgoing import MailAccount, MailSender, WebhookAddress, WebhookSender
from crcr.deliver.notices.send import Channel, ChannelSenders, GitHubPosts, RouteNotices, SendNotices
from crcr.deliver.worker import Handler
from crcr.record.checks.commands import Commands
from crcr.record.checks.reruns import Reruns
from crcr.record.deliveries.dispatch_payloads import DispatchPayloads
from crcr.record.deliveries.head_conflicts import HeadConflicts
from crcr.record.deliveries.merge_group_contents import MergeGroups
from crcr.record.deliveries.path_filters import PathFilters
from crcr.record.jobs.tested_commits import ReportedCommits
from crcr.record.notices.messages import NoticeMessages
from crcr.record.repositories.inspections import Inspections
from crcr.record.workflow_runs.lookups import Lookups
from crcr.settings import ChannelSetting
from crcr.wiring.core import Core, build_failure_recorder, build_outcomes, web_url


def shadow_plans(handlers: Mapping[EffectKind, Handler]) -> dict[EffectKind, Handler]:
    """What shadow mode does in place of handlers that write outside: it decides and records, and calls nobody."""
    planning = {kind: getattr(handler, "plan", None) for kind, handler in handlers.items()}
    return {kind: plan for kind, plan in planning.items() if plan is not None}


def effect_handlers(core: Core, refreshers: dict[str, AllowlistRefresher]) -> dict[EffectKind, Handler]:
    settings, github, clock = core.settings, core.github, core.clock
    return {
        EffectKind.SEND_DISPATCH: SendDispatch(
            DispatchPayloads(core.database),
            core.targets,
            github.repositories,
            callback_url=f"{settings.public_url.rstrip('/')}/github/callback",
            audience=settings.oidc_audiences[0],
        ),
        EffectKind.IDENTIFY_REPOSITORY: IdentifyRepository(core.targets, github.repositories, clock),
        EffectKind.CONFIRM_HEAD: ConfirmHead(
            HeadConflicts(core.database, core.allowlists, core.refresher), github, clock
        ),
        EffectKind.REFRESH_ALLOWLIST: RefreshAllowlist(refreshers),
        EffectKind.FORWARD_RESULT: _forwarder(core),
        EffectKind.WRITE_DYNAMODB: _table_writer(core),
        EffectKind.INSPECT_REPOSITORY: InspectRepository(Inspections(core.database), github, clock),
        EffectKind.ADVANCE_BISECTION: AdvanceBisection(core.bisections, clock),
        EffectKind.FEED_HISTORY: core.clickhouse.handler(clock),
        **_upstream_handlers(core),
        **_notice_handlers(core),
    }


def _notice_handlers(core: Core) -> dict[EffectKind, Handler]:
    settings, clock = core.settings, core.clock
    messages = NoticeMessages(
        core.database,
        core.allowlists,
        core.targets,
        channels={channel.name: channel.rules for channel in settings.channels},
        upstream_channels={upstream.name.key: upstream.channels for upstream in settings.upstreams},
        hud_url=settings.public_url,
    )
    upstreams = UpstreamTargets(core.targets, core.github.repositories)
    channels = {channel.name: build_channel(channel) for channel in settings.channels}
    core.secrets.follow(
        lambda new: channels.update({channel.name: build_channel(channel) for channel in new.channels})
    )
    return {
        EffectKind.ROUTE_NOTICES: RouteNotices(messages, clock),
        EffectKind.SEND_NOTICES: SendNotices(
            messages,
            channels,
            ChannelSenders(WebhookSender(), MailSender(), clock, settings.public_url),
            GitHubPosts(messages, upstreams, core.github, clock, settings.public_url),
            clock,
        ),
    }


def build_channel(setting: ChannelSetting) -> Channel:
    url, smtp = setting.url, setting.smtp
    return Channel(
        name=setting.name,
        kind=setting.kind,
        webhook=WebhookAddress(url.get_secret_value(), setting.private_hosts) if url else None,
        secret=setting.secret.get_secret_value() if setting.secret else "",
        mail=MailAccount(smtp.get_secret_value(), setting.sender or "", setting.to) if smtp else None,
    )


def _upstream_handlers(core: Core) -> dict[EffectKind, Handler]:
    """Handlers that read and write the upstream's pull requests, or look up the downstreams' runs."""
    database, github, clock, refresher = core.database, core.github, core.clock, core.refresher
    upstreams, writer = UpstreamTargets(core.targets, github.repositories), CommentWriter(github.comments)
    return {
        EffectKind.PUBLISH_CHECKS: PublishChecks(core.checks, upstreams, github.checks, clock),
        EffectKind.ASK_FILES: AskFiles(
            PathFilters(database, core.allowlists, refresher, build_failure_recorder(core)),
            upstreams,
            github,
            clock,
        ),
        EffectKind.READ_GROUP: ReadGroup(
            MergeGroups(database, core.allowlists, core.checks, refresher),
            upstreams,
            github.commits,
            clock,
        ),
        EffectKind.RERUN: Rerun(Reruns(database, refresher), github, clock),
        EffectKind.LOOK_UP: LookUp(
            Lookups(database, core.allowlists, refresher, core.job_timeout, build_outcomes(core)),
            github,
            clock,
        ),
        EffectKind.ANSWER_COMMAND: AnswerCommand(
            Commands(
                database,
                core.allowlists,
                core.people_requests,
                refresher,
                core.bisections,
                github_url=web_url(core.settings),
                hud_url=core.settings.public_url,
            ),
            upstreams,
            github.comments,
            writer,
            clock,
            read_health=core.health.read_upstream,
            backends=BackendTargets(core.targets, github.repositories),
        ),
        EffectKind.READ_DEPENDENCY: ReadDependencies(
            core.pairs, upstreams, github, clock, github_url=web_url(core.settings)
        ),
        EffectKind.OFFER_WAIVER: OfferWaiver(core.people_requests, upstreams, writer, clock),
        EffectKind.READ_ISSUE: ReadIssue(core.known_failures, upstreams, github.issues, clock),
        EffectKind.VERIFY_COMMIT: VerifyCommit(ReportedCommits(database), upstreams, github.commits, clock),
    }


def _forwarder(core: Core) -> Handler:
    def current_token() -> str:
        token = core.secrets.current.hud_forward_token
        return token.get_secret_value() if token else ""

    url = core.settings.hud_forward_url
    return _drop_effect if url is None else ForwardResult(core.forward_http, url, current_token)


def _table_writer(core: Core) -> Handler:
    settings = core.settings
    if settings.dynamodb_table is None:
        return _drop_effect
    table = DynamoDbTable(
        settings.dynamodb_table, region=settings.dynamodb_region, endpoint=settings.dynamodb_endpoint
    )
    return WriteDynamoDb(table)


async def _drop_effect(_: ClaimedEffect) -> bool:
    """Drop a result that was queued before forwarding was turned off."""
    return False
