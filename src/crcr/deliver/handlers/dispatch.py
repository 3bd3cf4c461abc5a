"""Sends dispatches, and the effects around them: repository ids, uncertain heads, allowlists to read again."""

from collections.abc import Mapping

from crcr.decide.dispatch.payload import RelayFields
from crcr.decide.github.requests_and_answers import Target
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect, DispatchLoad
from crcr.deliver.allowlist_source import AllowlistRefresher
from crcr.errors import OutsideRefused, OutsideUnsure
from crcr.github.client import GitHubClient, RepositoriesApi
from crcr.ports import Clock
from crcr.record.bisection.bisections import Bisections
from crcr.record.deliveries.dispatch_payloads import DispatchPayloads
from crcr.record.deliveries.head_conflicts import HeadConflicts
from crcr.record.repositories.downstreams import Downstreams


class SendDispatch:
    """`repository_dispatch` to one downstream: one API call when its installation is known."""

    def __init__(
        self,
        loads: DispatchPayloads,
        targets: Downstreams,
        repositories: RepositoriesApi,
        *,
        callback_url: str,
        audience: str,
    ) -> None:
        self._loads = loads
        self._targets = targets
        self._repositories = repositories
        self._callback_url = callback_url
        self._audience = audience

    async def __call__(self, effect: ClaimedEffect) -> bool:
        load = await self._loads.load(effect)
        if load is None:
            return False  # no longer wanted
        await self._deliver(effect.upstream, load, await self._make_body(effect, load))
        return True

    async def plan(self, effect: ClaimedEffect) -> bool:
        """Make the dispatch and record how it is trimmed, and send nothing."""
        load = await self._loads.load(effect)
        if load is not None:
            await self._make_body(effect, load)
        return load is not None

    async def _make_body(self, effect: ClaimedEffect, load: DispatchLoad) -> bytes:
        made = load.payload.dispatch(self._relay(effect.upstream, load))
        if made.trimmed != load.trimmed:
            await self._loads.note_trimmed(effect, made.trimmed)
        return made.body

    async def _deliver(self, upstream: RepoName, load: DispatchLoad, body: bytes) -> None:
        if load.installation_id is None:
            await self._send(load, await self._find(upstream, load.downstream), body)
            return
        try:
            await self._send(load, load.installation_id, body)
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            # Reinstalling the App gives it a new installation id: look it up once more before giving up.
            installation = await self._find(upstream, load.downstream)
            if installation == load.installation_id:
                raise
            await self._send(load, installation, body)

    async def _send(self, load: DispatchLoad, installation_id: int, body: bytes) -> None:
        await self._repositories.dispatch(Target(load.downstream, load.repository_id, installation_id), body)

    async def _find(self, upstream: RepoName, downstream: RepoName) -> int:
        installation_id = await self._repositories.find_installation(downstream)
        await self._targets.set_installation(upstream, downstream, installation_id)
        return installation_id

    def _relay(self, upstream: RepoName, load: DispatchLoad) -> RelayFields:
        return RelayFields(
            upstream=upstream,
            level=load.level,
            callback_url=self._callback_url,
            audience=self._audience,
            purpose=load.purpose,
            reason=load.reason,
            depends_on=load.depends_on,
        )


class IdentifyRepository:
    """Read a newly listed repository's immutable ids before anyone can claim its name."""

    def __init__(self, targets: Downstreams, repositories: RepositoriesApi, clock: Clock) -> None:
        self._targets = targets
        self._repositories = repositories
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> None:
        downstream = RepoName(effect.target)
        installation = await self._repositories.read_installation(downstream)
        if installation is None:
            raise OutsideRefused(f"The App is not installed on {downstream}.", status=404)
        facts = await self._repositories.read(downstream, installation.installation_id)
        await self._targets.identify(effect.upstream, downstream, facts, installation, now=self._clock.now())


class ConfirmHead:
    """Read a pull request's head from GitHub when the order of its webhooks is unclear."""

    def __init__(self, doubts: HeadConflicts, github: GitHubClient, clock: Clock) -> None:
        self._doubts = doubts
        self._github = github
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> None:
        delivery = effect.delivery or ""
        doubt = await self._doubts.in_doubt(effect.upstream, delivery)
        if doubt is None:
            return
        number, installation_id = doubt
        if installation_id is None:
            installation_id = await self._github.repositories.find_installation(effect.upstream)
        facts = await self._github.pull_requests.read(effect.upstream, number, installation_id)
        if not await self._doubts.settle(effect.upstream, delivery, facts, self._clock.now()):
            raise OutsideUnsure("GitHub's answer is older than its webhooks")


class RefreshAllowlist:
    def __init__(self, refreshers: Mapping[str, AllowlistRefresher]) -> None:
        self._refreshers = refreshers

    async def __call__(self, effect: ClaimedEffect) -> None:
        await self._refreshers[effect.upstream.key].refresh()


class AdvanceBisection:
    """Advances a bisection after a result of one of its runs was recorded: its next run is a dispatch."""

    def __init__(self, bisections: Bisections, clock: Clock) -> None:
        self._bisections = bisections
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> None:
        await self._bisections.advance_after(effect.upstream, effect.delivery or "", self._clock.now())
