"""Traces over OTLP/HTTP: each step of a delivery as a span of the trace that its GUID names.

Imported only where `CRCR_OTEL_ENDPOINT` is set; needs `crcr[tracing]`. Spans wait in a bounded queue for a thread of
their own. An unreachable collector loses spans and has no other effect. Headers, certificates and proxies are those of
the usual `OTEL_EXPORTER_OTLP_…` variables, which the library reads itself.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

from crcr import __version__
from crcr.decide.trace_steps import TraceStep, fixed_span, parent_span, trace_id

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SENT = TraceFlags(TraceFlags.SAMPLED)
_ANSWER_S = 3.0
"""Time limit of the collector per batch."""
_KINDS = {
    TraceStep.WEBHOOK: SpanKind.SERVER,
    TraceStep.CALLBACK: SpanKind.SERVER,
    TraceStep.DISPATCH: SpanKind.PRODUCER,
    TraceStep.EFFECT: SpanKind.CLIENT,
}


class OtlpTrace:
    """Implements `ports.Trace`. Call `note` on the event loop only."""

    def __init__(self, endpoint: str, *, patience_s: float = 5.0) -> None:
        self._exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=_ANSWER_S)
        self._ids = _Ids()
        self._patience_s = patience_s
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": "crcr", "service.version": __version__}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("crcr", __version__)

    def note(
        self,
        step: TraceStep,
        delivery: str,
        began_at: datetime,
        ended_at: datetime,
        *,
        downstream: str | None = None,
        **facts: str | int,
    ) -> None:
        self._ids.next_trace = trace_id(delivery)
        self._ids.next_span = fixed_span(step, delivery, downstream)
        known = {"delivery": delivery, **({"downstream": downstream} if downstream else {}), **facts}
        span = self._tracer.start_span(
            step.value,
            context=_context(delivery, parent_span(step, delivery, downstream)),
            kind=_KINDS.get(step, SpanKind.INTERNAL),
            attributes={f"crcr.{name}": value for name, value in known.items()},
            start_time=_ns(began_at),
        )
        span.end(_ns(max(began_at, ended_at)))

    async def close(self) -> None:
        """Send queued spans, for a few seconds at most."""
        ending = Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, self._patience_s)
        if ending.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library has no types here


class _Ids(IdGenerator):
    """Returns the prepared ids, otherwise random ones."""

    def __init__(self) -> None:
        self._chance = RandomIdGenerator()
        self.next_trace: int | None = None
        self.next_span: int | None = None

    def generate_trace_id(self) -> int:
        return self.next_trace or self._chance.generate_trace_id()

    def generate_span_id(self) -> int:
        return self.next_span or self._chance.generate_span_id()


def _context(delivery: str, parent: int | None) -> Context:
    """Return the parent's context; an empty one without a parent, so that no other span becomes the parent."""
    if parent is None:
        return Context()
    before = SpanContext(trace_id(delivery), parent, is_remote=True, trace_flags=_SENT)
    return set_span_in_context(NonRecordingSpan(before), Context())


def _ns(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND * 1000
