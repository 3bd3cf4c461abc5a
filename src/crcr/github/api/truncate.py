"""Texts cut to GitHub's limits, so that a reader sees that there was more."""

CUT_END = "\n\n… cut"


def clean(text: str) -> str:
    """Replace lone surrogates, which JSON can carry and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def short(text: str, most: int) -> str:
    return clean(text if len(text) <= most else text[: most - 1] + "…")


def long(text: str, most: int) -> str:
    return clean(text if len(text) <= most else text[: most - len(CUT_END)] + CUT_END)


def within_bytes(text: str, most: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    return data[: most - len(CUT_END.encode())].decode(errors="ignore") + CUT_END
