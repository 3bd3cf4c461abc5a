"""The JSON API's models of the relay's own logs, the allowlist, refused reports and the sandbox."""

from datetime import datetime

from pydantic import computed_field

from crcr.decide.health import relay
from crcr.decide.views import joining, logs
from crcr.decide.views import overview as views
from crcr.show.api.models import examples
from crcr.show.api.models.derive import Model, Name, Next, derive_model
from crcr.show.api.models.shared import DISPATCH, JOB, JUDGED_JOB
from crcr.show.render.status import refusal_meaning, waiting_reason

DISPATCH_WITH_JOBS = derive_model(
    views.DispatchView,
    "DispatchWithJobs",
    base=DISPATCH,
    only=("jobs",),
    types={"jobs": list[JOB]},  # type: ignore[valid-type]
)
DELIVERY = derive_model(views.DeliveryView, "Delivery")
DELIVERY_WITH_JOBS = derive_model(
    views.DeliveryView,
    "DeliveryWithJobs",
    base=DELIVERY,
    only=("dispatches",),
    types={"dispatches": list[DISPATCH_WITH_JOBS]},  # type: ignore[valid-type]
)
JOBS = derive_model(
    views.JobPage,
    "Jobs",
    types={"jobs": list[JUDGED_JOB], "next": Next},  # type: ignore[valid-type]
    example=examples.JOBS,
)
DELIVERIES = derive_model(
    views.DeliveryPage,
    "Deliveries",
    without=("cursor", "outbox"),
    types={"next": Next},
    example=examples.DELIVERIES,
)
EFFECT_COUNT = derive_model(views.EffectCount, "EffectCount")
PARKED_EFFECT = derive_model(views.ParkedEffect, "ParkedEffect")
EFFECTS = derive_model(
    views.EffectsView,
    "Effects",
    "Counts of open and parked effects and of those that ended in the last hour; the newest parked ones.",
)
EFFECT = derive_model(
    logs.EffectView,
    "Effect",
    types={"waits_for": (str | None, None)},
    described={
        "last_error": "For administrators; null for everybody else.",
        "held_by": "The GitHub limit that holds it back until `due_at`.",
        "fault": "Why the last call to the outside service failed.",
        "waits_for": "Why it waits, in words; null while it waits for its turn.",
    },
)
EFFECT_LIST = derive_model(logs.EffectPage, "EffectList", without=("cursor", "outbox"), types={"next": Next})
HELD_CLASS = derive_model(
    relay.HeldClass, "HeldClass", "Effects of one class that GitHub's limits hold back, even briefly."
)
RELAY_HEALTH = derive_model(
    relay.Health,
    "RelayHealth",
    "The relay's health for one upstream; `reasons` are sentences, the most serious first.",
    only=("state", "reasons", "held"),
    types={"upstream": Name, "at": datetime},
    example=examples.HEALTH,
)
ACT = derive_model(logs.AuditView, "Act")
AUDIT = derive_model(logs.AuditPage, "Audit", without=("cursor",), types={"next": Next})
NOTICE_MESSAGE = derive_model(
    logs.NoticeMessageView,
    "NoticeMessage",
    described={
        "channel": "Its name. This, `destination`, `address` (masked), `reason` and `oncalls` are for administrators.",
        "note": "Why it was dropped.",
    },
)
NOTICE = derive_model(
    logs.NoticeView,
    "Notice",
    "One event of a thread, and what was sent about it.",
    described={"path": "The relay's page about its subject."},
)
NOTICES = derive_model(logs.NoticePage, "Notices", without=("cursor",), types={"next": Next})
LISTED_BACKEND = derive_model(
    views.ListedBackend, "ListedBackend", described={"hidden": "Shown to administrators only."}
)
ALLOWLIST = derive_model(views.AllowlistView, "Allowlist")


class _WithMeaning(Model):
    @computed_field(description="The code in words.")  # type: ignore[prop-decorator]
    @property
    def meaning(self) -> str:
        return refusal_meaning(getattr(self, "code"))  # noqa: B009  a field of the derived models


REFUSAL = derive_model(
    joining.RefusalView,
    "Refusal",
    "A refused report. `delivery`, `run_id` and so on are what it claimed, and null where its body was not read.",
    base=_WithMeaning,
    described={
        "code": "The code of the response; the protocol's table of errors lists all.",
        "hint": "How to fix it.",
        "delivery_known": "Whether this delivery exists.",
        "settled": "Whether a result of the same job was accepted since: nothing is left to do.",
    },
)
REFUSALS = derive_model(
    joining.RefusalList,
    "Refusals",
    "A backend's refused reports of the last 14 days, newest first, 50 at most.",
    example=examples.REFUSALS,
)
SANDBOX_JOB = derive_model(
    joining.SandboxJob,
    "SandboxJob",
    described={
        "repository": "Null where the repository is private; administrators see it.",
        "workflow_name": "Null where `repository` is.",
        "job_name": "Null where `repository` is.",
        "failed_tests_more": "Failed tests beyond the ones listed.",
    },
)
SANDBOX = derive_model(
    joining.SandboxPage,
    "Sandbox",
    "Test reports of repositories that are not on the allowlist. They are not verified, do not count, and are deleted after 48 hours.",
    types={"next": Next},
    example=examples.SANDBOX,
)


def describe_effects(page: logs.EffectPage, now: datetime) -> Model:
    """Return the page with the reason why each effect waits."""
    effects = [
        EFFECT.model_validate(effect).model_copy(update={"waits_for": waiting_reason(effect, now)})
        for effect in page.effects
    ]
    return EFFECT_LIST.model_validate({"effects": effects, "next": page.next})
