"""Forwarding a result to another HUD: the stored envelope, as it is, with that HUD's token."""

import httpx

from crcr.decide.effects import ClaimedEffect
from crcr.errors import OutsideLimited, OutsideRefused, OutsideUnreachable, OutsideUnsure

_TIMEOUT = httpx.Timeout(10.0, connect=3.0)
_MOST_WAIT_S = 3600.0


class ForwardResult:
    def __init__(self, http: httpx.AsyncClient, url: str, token: str) -> None:
        self._http = http
        self._url = url
        self._token = token

    async def __call__(self, effect: ClaimedEffect) -> None:
        headers = {"content-type": "application/json", "x-hud-internal-bot": self._token}
        try:
            answer = await self._http.post(
                self._url, content=effect.payload, headers=headers, timeout=_TIMEOUT
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            raise OutsideUnreachable("the HUD that results are forwarded to cannot be reached") from None
        except httpx.HTTPError as error:
            raise OutsideUnsure(f"forwarding failed: {type(error).__name__}") from None
        _check(answer)


def _check(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    text = f"the HUD answered {answer.status_code}"
    if answer.status_code in {429, 503}:
        raise OutsideLimited(text, retry_after_s=_wait_s(answer.headers.get("retry-after")))
    if answer.status_code == 401:
        # To the worker a 401 is a token of GitHub's that will be renewed; this one is a setting.
        raise OutsideRefused(text, status=403)
    if answer.status_code in {400, 403, 404, 405, 410, 413, 422}:
        raise OutsideRefused(text, status=answer.status_code)
    raise OutsideUnsure(text)


def _wait_s(header: str | None) -> float:
    return min(float(header), _MOST_WAIT_S) if header and header.isdigit() else 30.0
