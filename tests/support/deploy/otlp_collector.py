"""`run_collector`: a small OpenTelemetry collector that receives traces over OTLP/HTTP (protobuf) and keeps their spans."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class CollectedSpans:
    url: str = ""
    paths: set[str] = field(default_factory=set)
    services: set[str] = field(default_factory=set)
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {attribute_texts(resource.resource.attributes)["service.name"]}
            for scope in resource.scope_spans:
                self.spans += scope.spans


def attribute_texts(attributes: object) -> dict[str, str]:
    """Attributes as text by their keys."""
    texts = {}
    for attribute in attributes:  # type: ignore[attr-defined]
        kind = attribute.value.WhichOneof("value")
        texts[attribute.key] = str(getattr(attribute.value, kind))
    return texts


@contextmanager
def run_collector() -> Iterator[CollectedSpans]:
    collected = CollectedSpans()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collected.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collected.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collected
        finally:
            server.shutdown()
            thread.join()
