"""Why an effect waits, in words that every reader may see; what went wrong in detail is for administrators."""

from datetime import datetime

from crcr.decide.health.texts import called_service, effect_class, waiting_words
from crcr.decide.views.logs import EffectView
from crcr.decide.views.operator import EffectLine


def waits_for(effect: EffectView | EffectLine, now: datetime) -> str | None:
    """Return the limit or the fault that an effect waits for; None while it waits for its turn."""
    service = called_service(effect_class(effect.kind, effect.target))
    return waiting_words(effect, now, service)
