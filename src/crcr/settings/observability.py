"""Settings for who watches the relay: where a worker tells its metrics, where traces go."""

from typing import Annotated

from pydantic import BaseModel

from crcr.settings.readers import values
from crcr.settings.setting import FROZEN, Setting


class ObservabilitySettings(BaseModel):
    model_config = FROZEN

    metrics_port: Annotated[
        int | None,
        Setting(
            "METRICS_PORT",
            "metrics_port",
            values.integer(1, 65535),
            "port on `CRCR_HOST` where `crcr worker` answers `/metrics`, `/healthz` and `/readyz`; not set: nowhere "
            "(`crcr serve` has them on its own port)",
        ),
    ] = None
    otel_endpoint: Annotated[
        str | None,
        Setting(
            "OTEL_ENDPOINT",
            "otel_endpoint",
            values.url,
            "OpenTelemetry collector that gets traces over OTLP/HTTP (`http://127.0.0.1:4318`); needs `crcr[tracing]`; "
            "not set: no traces",
        ),
    ] = None
