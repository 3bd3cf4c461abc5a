"""Bytes to typed JSON, with every way in which that fails told as one error that names the place.

The decoders are narrow: they skip what they do not declare. Skipped parts are checked for JSON's grammar, and
the whole body for UTF-8, so that a later full reading of the same bytes does not fail on their form.
"""

from typing import TypeVar

import msgspec

from crcr.errors import BadRequest

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes, refuse: type[BadRequest]) -> T:
    """Decode `body` or raise `refuse` with the field's path (`$.repository.id`)."""
    try:
        if not body.isascii():
            body.decode()
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise refuse(str(exc)) from None
    except msgspec.DecodeError as exc:
        raise refuse(f"the body is not JSON: {exc}") from None
    except UnicodeDecodeError as exc:
        raise refuse(f"the body is not UTF-8: {exc.reason} at byte {exc.start}") from None
    except RecursionError:
        raise refuse("the body is nested too deeply") from None
