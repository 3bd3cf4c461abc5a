"""What who joins takes along: allowlist entry, files, commands, badge, all from one wish.

Text comes from `join`, as for `crcr init`. Programs that are put into a repository unchanged are not printed on the
page: they are fetched by their address, and told by their digest.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import urlencode

from crcr.join.files import BRIDGE, REPORTER, NewFile, allowlist_entry, generate, registration
from crcr.join.help_links import doctor_command
from crcr.join.manual_steps import ManualStep, manual_steps
from crcr.join.request import JoinRequest, chosen_programs, unusual_secret_targets
from crcr.join.shipped.texts import bridge_text, reporter_text

PROGRAMS: Mapping[str, tuple[str, str]] = {
    REPORTER: ("/crcr/onboarding/report.py", "report.py"),
    BRIDGE: ("/crcr/onboarding/bridge.py", "bridge.py"),
}
"""Where a program that is the same for everybody is served, by its path in a repository."""


def program_text(name: str) -> str:
    return {"report.py": reporter_text, "bridge.py": bridge_text}[name]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A file on the page: its text, or where to fetch it."""

    number: int
    path: str
    why: str
    address: str
    text: str | None = None
    fetch: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    entry: str
    files: tuple[Shown, ...]
    registration: str | None
    command: str
    doctor: str
    test: str
    badge: str
    needs: tuple[ManualStep, ...]
    """Secrets and settings to make beside the files."""
    unusual: tuple[str, ...]
    """What is not as by default and should be looked at, because the address may be somebody else's."""


def plan_of(wanted: JoinRequest, asked: Mapping[str, str], site: str, *, one_upstream: bool) -> Plan:
    """`asked` is what leads to this wish again; `site` is where readers and programs reach us."""
    files = generate(wanted)
    named = None if one_upstream else wanted.upstream
    return Plan(
        entry=allowlist_entry(wanted),
        files=tuple(_shown(number, each, asked, site) for number, each in enumerate(files, start=1)),
        registration=registration(wanted),
        command=init_command(wanted),
        doctor=doctor_command(wanted.relay_url, wanted.repository, named) + "\n",
        test=doctor_command(wanted.relay_url, wanted.repository, named, test=True) + "\n",
        badge=_badge(wanted, site, one_upstream=one_upstream),
        needs=manual_steps(wanted),
        unusual=(*unusual_secret_targets(wanted), *chosen_programs(wanted)),
    )


def _shown(number: int, file: NewFile, asked: Mapping[str, str], site: str) -> Shown:
    if file.path not in PROGRAMS:
        address = f"/crcr/onboarding/files/{number}?{urlencode(asked, safe='/')}"
        return Shown(number=number, path=file.path, why=file.why, address=address, text=file.text)
    address, _ = PROGRAMS[file.path]
    digest = sha256(file.text.encode()).hexdigest()
    folder = file.path.rpartition("/")[0]
    fetch = (
        f"mkdir -p {folder} && curl -fsS {shlex.quote(site + address)} -o {file.path}"
        f" && echo '{digest}  {file.path}' | sha256sum --check\n"
    )
    return Shown(number=number, path=file.path, why=file.why, address=address, fetch=fetch, digest=digest)


def init_command(wanted: JoinRequest) -> str:
    """`crcr init` with all that was chosen; what is as by default is left out."""
    plain = JoinRequest(
        ci=wanted.ci,
        upstream=wanted.upstream,
        repository=wanted.repository,
        relay_url=wanted.relay_url,
        audience=wanted.audience,
    )
    words = ["crcr", "init", "--relay", wanted.relay_url, "--audience", wanted.audience]
    words += ["--upstream", str(wanted.upstream), "--repo", str(wanted.repository)]
    words += ["--ci", wanted.ci.value, "--level", wanted.level.name]
    for name in ("device", "command", "job_name", "junit", "runs_on", "branch"):
        if getattr(wanted, name) != getattr(plain, name):
            words += [f"--{name.replace('_', '-')}", str(getattr(wanted, name))]
    for each in wanted.oncalls:
        words += ["--oncall", each]
    for name, value in wanted.place.items():
        words += ["--place", f"{name}={value}"]
    if wanted.nightly:
        words.append("--nightly")
    return shlex.join(words) + "\n"


def _badge(wanted: JoinRequest, site: str, *, one_upstream: bool) -> str:
    more = "" if one_upstream else f"?{urlencode({'upstream': str(wanted.upstream)}, safe='/')}"
    name = wanted.repository
    return f"[![crcr]({site}/badge/{name}.svg{more})]({site}/crcr/{name}{more})\n"
