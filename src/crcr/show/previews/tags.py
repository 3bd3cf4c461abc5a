"""The tags by which a pasted link gets a preview: Open Graph and Twitter cards, on pages that everybody may read.

Where access is not public there are none: a site that fetches them is not signed in, and must learn nothing.
"""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from crcr.show.pages.frame import Frame
from crcr.show.previews.preview import Preview
from crcr.show.urls.location import PageLocation


@dataclass(frozen=True, slots=True)
class PreviewTags:
    title: str
    description: str
    url: str
    image: str | None
    """None where the library that draws pictures is not installed."""
    image_text: str


@cache
def can_draw() -> bool:
    """Whether pictures can be drawn; the library itself is imported with the first one."""
    return find_spec("PIL") is not None


def make_tags(
    frame: Frame, location: PageLocation, preview: Preview, picture: str, **kept: str
) -> PreviewTags | None:
    """Return the tags of a page whose picture is at `/og/{picture}.png`; `kept` are the parameters that find it."""
    if not frame.is_public:
        return None
    text = f"{preview.title}: {preview.state.word}"
    return PreviewTags(
        title=f"{preview.title} · {preview.upstream}",
        description=preview.description,
        url=f"{frame.site}{location.with_defaults().url(**kept)}",
        image=f"{frame.site}{location.url(f'/og/{picture}.png', **kept)}" if can_draw() else None,
        image_text=text,
    )
