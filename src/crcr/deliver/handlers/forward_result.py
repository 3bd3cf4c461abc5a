"""Forwards a result to another HUD: the stored envelope, unchanged, with that HUD's token.

The lease is checked around the call: a worker that was frozen sends no outcome that another worker has overtaken.
"""

import asyncio
from collections.abc import Callable

import httpx

from crcr.decide.outbox.effect import ClaimedEffect
from crcr.errors import OutsideLimited, OutsideRefused, OutsideUnreachable, OutsideUnsure
from crcr.ports import check_lease

_MOST_WAIT_S = 3600.0


class ForwardResult:
    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        token: Callable[[], str],
        *,
        connect_s: float = 3.0,
        total_s: float = 10.0,
    ) -> None:
        self._http = http
        self._url = url
        self._token = token
        self._total_s = total_s
        self._timeout = httpx.Timeout(total_s, connect=connect_s)

    async def __call__(self, effect: ClaimedEffect) -> None:
        await check_lease.get()()
        answer = await self._post(effect.payload)
        await check_lease.get()()
        _raise_for_status(answer)

    async def _post(self, envelope: bytes | None) -> httpx.Response:
        headers = {"content-type": "application/json", "x-hud-internal-bot": self._token()}
        try:
            # httpx limits each read: a HUD that sends a byte now and then would block its queue for ever.
            async with asyncio.timeout(self._total_s):
                return await self._http.post(
                    self._url, content=envelope, headers=headers, timeout=self._timeout
                )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            raise OutsideUnreachable("the HUD that results are forwarded to cannot be reached") from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise OutsideUnsure(f"forwarding failed: {type(error).__name__}") from None


def _raise_for_status(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    text = f"the HUD answered {answer.status_code}"
    if answer.status_code in {429, 503}:
        raise OutsideLimited(text, retry_after_s=_wait_s(answer.headers.get("retry-after")))
    if answer.status_code == 401:
        # The worker takes a 401 for an expired GitHub token and retries; this token is a setting.
        raise OutsideRefused(text, status=403)
    if answer.status_code in {400, 403, 404, 405, 410, 413, 422}:
        raise OutsideRefused(text, status=answer.status_code)
    raise OutsideUnsure(text)


def _wait_s(header: str | None) -> float:
    return min(float(header), _MOST_WAIT_S) if header and header.isdigit() else 30.0
