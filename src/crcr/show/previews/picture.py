"""Draws a preview as a PNG of 1200 by 630 pixels, the size that sites crop least.

Needs Pillow (`crcr[previews]`), whose own font is used: nothing is read from the machine. A picture is drawn once for its
content; texts are short by then, so drawing one takes a bounded time.
"""

from functools import lru_cache
from io import BytesIO

from PIL import Image, ImageDraw, ImageFont

from crcr.show.previews.preview import Preview

WIDTH, HEIGHT = 1200, 630
_KEPT_PICTURES = 64
"""About 30 KB each."""
_MARGIN = 72
_TITLE_LINES = 3
_TITLE_SIZES = (64, 54, 46)
_PAPER, _INK, _SOFT, _LINE = "#ffffff", "#1a2029", "#4a5461", "#d9dee5"
_TONES = {
    "ok": ("#14693a", "#daf2e2"),
    "bad": ("#b3232a", "#fde3e2"),
    "run": ("#11579f", "#deecfb"),
    "wait": ("#5b3fb0", "#ebe6fb"),
    "warn": ("#7f4f00", "#fcecc4"),
    "off": ("#4a5461", "#e7eaef"),
}
"""The tones of the pages: text and background."""
_MOST_FACTS = 5


@lru_cache(_KEPT_PICTURES)
def draw_picture(preview: Preview) -> bytes:
    image = Image.new("RGB", (WIDTH, HEIGHT), _PAPER)
    draw = ImageDraw.Draw(image)
    tone, background = _TONES.get(preview.state.tone, _TONES["off"])
    draw.rectangle((0, 0, 20, HEIGHT), fill=tone)
    draw.text(
        (_MARGIN, 56), f"crcr  ·  {_fit(preview.upstream, 34, WIDTH - 260)}", font=_font(34), fill=_SOFT
    )
    _draw_title(draw, preview.title)
    _draw_state(draw, _state_text(preview), tone, background)
    _draw_facts(draw, preview.facts[:_MOST_FACTS])
    file = BytesIO()
    image.quantize(32, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        file, "PNG", optimize=False, compress_level=6
    )
    return file.getvalue()


def _state_text(preview: Preview) -> str:
    """The letter and the word; the font has no arrows, dashes and dots."""
    letter, word = preview.state.letter, preview.state.word
    return f"{letter}  {word}" if letter.isascii() else word


def _draw_title(draw: ImageDraw.ImageDraw, title: str) -> None:
    """In the largest size in which it fits; the smallest is cut."""
    for size in _TITLE_SIZES:
        lines = wrap_text(title, size, WIDTH - 2 * _MARGIN)
        if len(lines) <= _TITLE_LINES:
            break
    else:
        lines = [*lines[: _TITLE_LINES - 1], f"{lines[_TITLE_LINES - 1]} …"]
    for place, line in enumerate(lines[:_TITLE_LINES]):
        fitting = _fit(line, size, WIDTH - 2 * _MARGIN)
        draw.text(
            (_MARGIN, 124 + place * int(size * 1.2)),
            fitting,
            font=_font(size),
            fill=_INK,
            stroke_width=1,
            stroke_fill=_INK,
        )


def _draw_state(draw: ImageDraw.ImageDraw, text: str, tone: str, background: str) -> None:
    fitting = _fit(text, 46, WIDTH - 2 * _MARGIN - 56)
    width = int(_font(46).getlength(fitting)) + 56
    draw.rounded_rectangle((_MARGIN, 388, _MARGIN + width, 468), radius=14, fill=background)
    draw.text((_MARGIN + 28, 400), fitting, font=_font(46), fill=tone, stroke_width=1, stroke_fill=tone)


def _draw_facts(draw: ImageDraw.ImageDraw, facts: tuple[tuple[str, str], ...]) -> None:
    if not facts:
        return
    draw.line((_MARGIN, 498, WIDTH - _MARGIN, 498), fill=_LINE, width=2)
    width = (WIDTH - 2 * _MARGIN) // len(facts)
    for place, (label, value) in enumerate(facts):
        left = _MARGIN + place * width
        draw.text((left, 516), _fit(label, 26, width - 16), font=_font(26), fill=_SOFT)
        draw.text((left, 550), _fit(value, 38, width - 16), font=_font(38), fill=_INK)


def wrap_text(text: str, size: int, width: int) -> list[str]:
    """Break a text into lines that fit; a word that is longer than a line is broken too."""
    font, lines, line = _font(size), list[str](), ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if font.getlength(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        line = word
        while font.getlength(line) > width:
            cut = max(1, len(_fit(line, size, width)) - 1)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line] if line else lines


def _fit(text: str, size: int, width: int) -> str:
    """Cut a text so that it fits with the mark of the cut."""
    font = _font(size)
    if font.getlength(text) <= width:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if font.getlength(f"{text[:middle]}…") <= width else (low, middle - 1)
    return f"{text[:low]}…"


@lru_cache(16)
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise TypeError("this Pillow was built without FreeType")
    return font
