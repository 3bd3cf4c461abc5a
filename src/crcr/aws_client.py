"""Clients of AWS services: botocore's, each with time-outs, imported only where a setting names AWS.

Calls block, so callers outside the start of a process make them in threads. Errors of botocore become `OutsideFault`s here;
their texts name the service and the kind of the fault, and never quote what was sent or received.
"""

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from crcr.errors import OutsideFault, OutsideLimited, OutsideRefused, OutsideUnreachable, OutsideUnsure

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.signers import RequestSigner

CONNECT_S = 3.0
ANSWER_S = 10.0
_RETRY_AFTER_S = 5.0
_TOKEN_LIFE_S = 900
_TOKEN_KEPT_S = 600.0
_THROTTLED = frozenset(
    (
        *("ThrottlingException", "Throttling", "ThrottledException", "TooManyRequestsException"),
        *(
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "LimitExceededException",
            "SlowDown",
        ),
    )
)
# AWS answers 400 to these, although the same request succeeds with renewed credentials.
_STALE_CREDENTIALS = frozenset(
    (
        *("ExpiredTokenException", "ExpiredToken", "RequestExpired", "UnrecognizedClientException"),
        *("InvalidClientTokenId", "InvalidSignatureException", "IncompleteSignature"),
    )
)


def open_client(
    service: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    attempts: int = 1,
    answer_s: float = ANSWER_S,
) -> "BaseClient":
    """Return a client; the region and the address come from AWS's own variables where they are not given."""
    from botocore.config import Config  # noqa: PLC0415  an optional extra
    from botocore.session import get_session  # noqa: PLC0415

    for name in ("botocore", "urllib3"):
        # At debug they log bodies with secrets and signed headers.
        logging.getLogger(name).setLevel(logging.WARNING)
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=answer_s,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        tcp_keepalive=True,
        user_agent_extra="crcr",
    )
    return get_session().create_client(
        service,
        region_name=region or os.environ.get("AWS_REGION") or None,
        endpoint_url=endpoint,
        config=config,
    )


class ElastiCacheTokens:
    """Passwords of a user of ElastiCache: requests to sign in, signed by IAM, which are valid for 15 minutes."""

    def __init__(
        self,
        user: str,
        cache: str,
        *,
        region: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cache` is the name of a cache, or `serverless/` and the name of a serverless one."""
        self._user = user
        self._kind, _, self._cache = cache.rpartition("/")
        self._region = region
        self._monotonic = monotonic
        self._token: tuple[float, str] | None = None
        self._signer: RequestSigner | None = None

    def __call__(self) -> str:
        now = self._monotonic()
        if self._token is None or now - self._token[0] > _TOKEN_KEPT_S:
            self._token = now, self._sign()
        return self._token[1]

    def _sign(self) -> str:
        query = {"Action": "connect", "User": self._user}
        if self._kind:
            query["ResourceType"] = "ServerlessCache"
        url = f"https://{self._cache}/?{urlencode(query)}"
        request = {"method": "GET", "url": url, "body": {}, "headers": {}, "context": {}}
        self._signer = self._signer or self._make_signer()
        signed: str = self._signer.generate_presigned_url(
            request, "connect", _TOKEN_LIFE_S, self._signer.region_name
        )
        return signed.removeprefix("https://")

    def _make_signer(self) -> "RequestSigner":
        from botocore.model import ServiceId  # noqa: PLC0415
        from botocore.session import get_session  # noqa: PLC0415
        from botocore.signers import RequestSigner  # noqa: PLC0415

        session = get_session()
        region = self._region or os.environ.get("AWS_REGION") or session.get_config_variable("region") or ""
        credentials = session.get_credentials()
        if credentials is None:
            raise OutsideUnreachable("there are no AWS credentials to sign in to ElastiCache with")
        events = session.get_component("event_emitter")
        return RequestSigner(ServiceId("elasticache"), region, "elasticache", "v4", credentials, events)


def error_code(fault: BaseException) -> str:
    """Return AWS's code of an error, or the kind of botocore's own."""
    response: Any = getattr(fault, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return str(code or type(fault).__name__)[:100]


def outside_fault(fault: BaseException, service: str) -> OutsideFault:
    """Return our error for one of botocore's."""
    from botocore import exceptions  # noqa: PLC0415

    code, text = error_code(fault), f"{service} failed: {error_code(fault)}"
    if isinstance(fault, exceptions.ClientError):
        status = int(fault.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in _THROTTLED or status == 429:
            return OutsideLimited(f"{service} throttles: {code}", retry_after_s=_RETRY_AFTER_S)
        if code in _STALE_CREDENTIALS:
            return OutsideUnreachable(f"{service} does not accept the credentials: {code}")
        if status >= 500 or status == 0:
            return OutsideUnsure(text)
        return OutsideRefused(text, status=status)
    never_sent = (
        exceptions.EndpointConnectionError,
        exceptions.ConnectTimeoutError,
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
    )
    return OutsideUnreachable(text) if isinstance(fault, never_sent) else OutsideUnsure(text)
