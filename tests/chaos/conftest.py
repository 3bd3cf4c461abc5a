"""Fixtures for the chaos tests."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def quiet_logs() -> Iterator[None]:
    """Log nothing but critical lines: thousands of steps would fill the output."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()
