"""Passwords of AWS IAM for PostgreSQL (RDS, Aurora, RDS Proxy): a signed request that is good for 15 minutes.

A token is needed only while a connection is made, so each new connection gets its own and nothing is renewed. Signing
calls no service; only the credentials may have to be fetched, which botocore does and remembers.
"""

import asyncio
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from crcr.errors import StoreUnavailable

_SERVICE = "rds-db"
_GOOD_FOR_S = 900


class IamTokens:
    def __init__(self, url: str, region: str) -> None:
        parts = urlsplit(url)
        user = quote(unquote(parts.username or ""), safe="")
        self._region = region
        self._request_url = f"https://{parts.hostname}:{parts.port or 5432}/?Action=connect&DBUser={user}"  # signed, never sent
        self._session: Any = None

    async def __call__(self) -> str:
        return await asyncio.to_thread(self._sign)

    def _sign(self) -> str:
        from botocore.auth import SigV4QueryAuth  # noqa: PLC0415  an optional extra
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415
        from botocore.session import Session  # noqa: PLC0415

        self._session = self._session or Session()
        credentials = self._session.get_credentials()
        if credentials is None:
            raise StoreUnavailable("there are no AWS credentials to sign in to PostgreSQL with")
        request = AWSRequest("GET", self._request_url)
        signer = SigV4QueryAuth(
            credentials.get_frozen_credentials(), _SERVICE, self._region, expires=_GOOD_FOR_S
        )
        signer.add_auth(request)
        return str(request.url).removeprefix("https://")
