"""Whose tokens the relay takes: each issuer that is in use, whether its keys can be read, and each registration."""

import asyncio
from collections.abc import Iterator

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.report.identity import IssuerKind
from crcr.decide.report.registration import RULES, Registration
from crcr.errors import KeysUnavailable
from crcr.join.findings.finding import SetupFinding, ok, problem, warning
from crcr.receive.oidc.issuers import TrustedIssuer
from crcr.receive.oidc.jwks import Fetch, read_keys
from crcr.settings import Settings
from crcr.wiring.intakes import build_issuer_table


async def issuer_findings(settings: Settings, fetch: Fetch) -> tuple[SetupFinding, ...]:
    """Those that the settings name, and GitHub's; the public ones that nobody is registered with are not asked."""
    named = {each.issuer for each in settings.oidc_issuers}
    named |= {each.issuer for each in settings.oidc_registrations}
    table = build_issuer_table(settings).values()
    used = [each for each in table if each.issuer in named or each.kind is IssuerKind.GITHUB]
    found = await asyncio.gather(*(_issuer(each, fetch) for each in used))
    if any(each.kind is IssuerKind.GITHUB for each in used):
        return tuple(found)
    hint = "with a GitHub Enterprise Server, name its issuer in CRCR_OIDC_ISSUERS"
    return (warning("issuer", "No issuer of GitHub Actions is known: its tokens are refused.", hint), *found)


async def _issuer(issuer: TrustedIssuer, fetch: Fetch) -> SetupFinding:
    try:
        keys = await read_keys(fetch, issuer)
    except KeysUnavailable as fault:
        hint = "reports from there are answered with 503 until its keys can be read: check address and proxy"
        return problem("issuer", f"{issuer.issuer} ({issuer.kind.value}): {fault.detail}.", hint)
    return ok(
        "issuer",
        f"{issuer.issuer} ({issuer.kind.value}): {len(keys)} key{'s' if len(keys) != 1 else ''} can be read.",
    )


def registration_findings(
    registrations: tuple[Registration, ...], lists: tuple[Allowlist, ...]
) -> Iterator[SetupFinding]:
    for each in registrations:
        ids = ", ".join(f"{name} {value}" for name, value in each.ids.items())
        what = f"{each.repository}: {each.kind.value} ({ids})"
        if not any(listed.find(each.repository) for listed in lists):
            yield warning(
                "registration",
                f"{what} is on no allowlist: its reports are refused.",
                "correct the name, or remove it",
            )
        elif each.by_slugs:
            yield warning(
                "registration",
                f"{what} goes by names, which others can take over.",
                "register the ids instead",
            )
        elif not each.tells_steps_apart:
            yield warning(
                "registration",
                f"{what} speaks for it with any of its steps, those that run a pull request's code too.",
                f"unless none does, add {RULES[each.kind].wise}",
            )
        else:
            yield ok("registration", f"{what} speaks for it.")
