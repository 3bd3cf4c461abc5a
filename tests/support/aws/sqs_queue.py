"""A queue of moto's SQS on loopback, and Lambda's part in front of it: batches, deletion, redelivery of failed messages.

`QueueGate` lies between the functions and moto: while it is closed, a message is on its way and does not arrive.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from botocore.session import Session
from moto.server import ThreadedMotoServer

from support.aws.lambda_runtime import LambdaFunction

REGION = "eu-central-1"


def _open_client(endpoint: str) -> Any:
    return Session().create_client(
        "sqs",
        region_name=REGION,
        endpoint_url=endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


class TestQueue:
    __test__ = False

    def __init__(self, endpoint: str, gate: "QueueGate") -> None:
        self._client = _open_client(endpoint)
        self.gate = gate
        attributes = {"VisibilityTimeout": "0"}
        self.url: str = self._client.create_queue(QueueName="crcr-wakeups", Attributes=attributes)["QueueUrl"]

    async def receive(self) -> dict[str, Any] | None:
        """Return the event of the next batch, or None when no message is visible."""
        found = await asyncio.to_thread(
            self._client.receive_message,
            QueueUrl=self.url,
            MaxNumberOfMessages=10,
            AttributeNames=["All"],
        )
        messages = found.get("Messages", [])
        return {"Records": [_record(message) for message in messages]} if messages else None

    async def deliver(self, function: LambdaFunction, event: dict[str, Any]) -> dict[str, Any]:
        """Invoke the function with a batch; delete the messages that it does not name as failed."""
        answer: dict[str, Any] = await function.invoke(event, timeout_s=60)
        failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        for record in event["Records"]:
            if record["messageId"] not in failed:
                await asyncio.to_thread(
                    self._client.delete_message, QueueUrl=self.url, ReceiptHandle=record["receiptHandle"]
                )
        return answer

    async def waiting(self) -> int:
        """Return how many messages there are, with those that are delayed."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"]
        found = await asyncio.to_thread(
            self._client.get_queue_attributes, QueueUrl=self.url, AttributeNames=names
        )
        return sum(int(found["Attributes"][name]) for name in names)

    async def purge(self) -> None:
        await asyncio.to_thread(self._client.purge_queue, QueueUrl=self.url)


def _record(message: dict[str, Any]) -> dict[str, Any]:
    """https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html"""
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {},
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:123456789012:crcr-wakeups",
        "awsRegion": REGION,
    }


class QueueGate:
    """A TCP relay to moto that can be closed: then messages are taken and lost, without an answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.is_open = True
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(
            self._pass_on(reader, inner_writer), self._pass_on(inner_reader, writer), return_exceptions=True
        )

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if self.is_open:
                writer.write(data)
        writer.close()


@asynccontextmanager
async def run_queue() -> AsyncIterator[TestQueue]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    await asyncio.to_thread(moto.start)
    host, port = moto.get_host_and_port()
    gate = QueueGate(port)
    server = await asyncio.start_server(gate.serve, "127.0.0.1", 0)
    gate.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield await asyncio.to_thread(TestQueue, f"http://{host}:{port}", gate)
    finally:
        server.close()
        await asyncio.to_thread(moto.stop)
