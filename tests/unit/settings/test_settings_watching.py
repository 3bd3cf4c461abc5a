"""Settings of the worker's metrics port and of traces: off by default, and errors are reported."""

from pathlib import Path

import pytest

from crcr.errors import BadSettings
from crcr.settings import Settings, load_settings
from support.data.operator_database import relay_environment


def load(folder: Path, **more: str) -> Settings:
    return load_settings(config=None, environ=relay_environment(folder, **more), cwd=folder)


def test_metrics_port_and_traces_are_off_by_default(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert (settings.metrics_port, settings.otel_endpoint) == (None, None)


def test_a_port_and_a_collector_are_read(tmp_path: Path) -> None:
    settings = load(tmp_path, CRCR_METRICS_PORT="9100", CRCR_OTEL_ENDPOINT="http://127.0.0.1:4318")
    assert (settings.metrics_port, settings.otel_endpoint) == (9100, "http://127.0.0.1:4318")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CRCR_METRICS_PORT", "0"),
        ("CRCR_METRICS_PORT", "a port"),
        ("CRCR_OTEL_ENDPOINT", "127.0.0.1:4318"),
        ("CRCR_OTEL_ENDPOINT", "grpc://127.0.0.1:4317"),
    ],
)
def test_an_invalid_port_or_endpoint_is_reported_by_name(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(BadSettings, match=name):
        load(tmp_path, **{name: value})
