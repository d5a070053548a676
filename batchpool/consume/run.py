"""One run of `batchpool consume`: connections to the brokers and the pool, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

from batchpool.bulk.plan import chosen_outputs
from batchpool.client.aio import AsyncClient
from batchpool.client.served_model import ServedModel, spec_of
from batchpool.consume.consumer import Consumer
from batchpool.consume.known_topics import warn_of_missing_topics
from batchpool.consume.plan import ConsumePlan
from batchpool.consume.rows import RecordRows
from batchpool.consume.values import ValueReader, ValueWriter
from batchpool.core.config.key import shown
from batchpool.core.errors import ConfigError, PoolError, StartError
from batchpool.core.tensors.rows import check_parameters

_LOG = logging.getLogger("batchpool.consume")
_REPORT_S = 10.0
_MOST = 4096  # rows under way, unless the command says otherwise
# Brokers say themselves how large a record may be; beyond this they cut the connection.
_MOST_REQUEST_BYTES = 64 << 20
_SECRET = ("security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_KNOWN = (*_SECRET, "ssl_cafile", "ssl_certfile", "ssl_keyfile", "client_id")


def connection_settings(found: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The settings of a --kafka-config file as aiokafka takes them; ConfigError for others."""
    for name in found:
        if name not in _KNOWN:
            raise ConfigError(f"{source}: unknown setting {name!r}; known: {', '.join(_KNOWN)}")
        if not isinstance(found[name], str):
            raise ConfigError(f"{source}: {name} = {shown(found[name])}: expected a text")
    protocol = found.get("security_protocol", _PROTOCOLS[0])
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            f"{source}: security_protocol = {shown(protocol)}: expected one of"
            f" {', '.join(_PROTOCOLS)}"
        )
    settings = {name: value for name, value in found.items() if not name.startswith("ssl_")}
    if "SSL" in protocol:
        try:
            context = ssl.create_default_context(cafile=found.get("ssl_cafile"))
            if "ssl_certfile" in found:
                context.load_cert_chain(found["ssl_certfile"], found.get("ssl_keyfile"))
        except OSError as exc:
            raise ConfigError(f"{source}: its certificates cannot be read: {exc}") from None
        settings["ssl_context"] = context
    return settings


async def consume(plan: ConsumePlan, socket: str) -> Consumer:
    """Consume until SIGTERM or SIGINT; the consumer, which knows how much it did.

    Raises ConfigError for what cannot work, StartError where pool or brokers cannot be reached.
    """
    kafka: Any = _kafka()
    async with AsyncExitStack() as stack:
        client, served = await _attached(stack, socket, plan.model)
        _check(plan, served)
        reader = ValueReader(spec_of(served), plan.form, plan.columns)
        rows = RecordRows(client, plan, reader, ValueWriter(served.outputs))
        # Both are stopped wherever this ends, since what aiokafka has made is to be stopped, too.
        try:
            producer = kafka.AIOKafkaProducer(
                bootstrap_servers=plan.target.brokers,
                acks="all",
                linger_ms=5,
                max_request_size=_MOST_REQUEST_BYTES,
                **plan.kafka,
            )
            stack.push_async_callback(producer.stop)
            kafka_consumer = kafka.AIOKafkaConsumer(
                bootstrap_servers=plan.source.brokers,
                group_id=plan.group,
                enable_auto_commit=False,
                auto_offset_reset=plan.begins,
                **plan.kafka,
            )
            stack.push_async_callback(kafka_consumer.stop)
        except ValueError as exc:  # settings that do not go together
            raise ConfigError(f"--kafka-config: {exc}") from None
        too_large = (
            kafka.errors.MessageSizeTooLargeError,
            kafka.errors.RecordTooLargeError,
            kafka.errors.RecordListTooLargeError,
        )
        consumer = Consumer(plan, kafka_consumer, producer, rows, plan.most or _MOST, too_large)
        kafka_consumer.subscribe([plan.source.name], listener=_listener(kafka, consumer))
        starting = asyncio.create_task(_start(kafka, plan, producer, kafka_consumer))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _stop, consumer, starting)
            stack.callback(loop.remove_signal_handler, number)
        await asyncio.wait({starting})
        if starting.cancelled():
            return consumer
        await starting
        _LOG.info("%s consumes %s for model %s", plan.group, plan.source.name, plan.model)
        reports = asyncio.create_task(_report(consumer))
        stack.callback(reports.cancel)
        try:
            await consumer.run()
        except kafka.errors.KafkaError as exc:
            raise StartError(
                f"the brokers refused what {plan.group} sent, after {consumer.records:,} records:"
                f" {exc}; a new start goes on from the last offset that is committed"
            ) from exc
        return consumer


async def _start(kafka: Any, plan: ConsumePlan, producer: Any, kafka_consumer: Any) -> None:
    """Connect to the brokers and join the group, which may take as long as its others take."""
    brokers = plan.target.brokers
    try:
        await producer.start()
        brokers = plan.source.brokers
        await warn_of_missing_topics(plan)
        await kafka_consumer.start()
    except kafka.errors.KafkaError as exc:
        raise StartError(f"the brokers {brokers} do not answer: {exc}") from exc


def _stop(consumer: Consumer, starting: asyncio.Task[None]) -> None:
    """A signal: what is under way ends; a start that still waits for the brokers is given up."""
    consumer.stop()
    starting.cancel()


def _kafka() -> Any:
    try:
        module = import_module("aiokafka")
        import_module("aiokafka.errors")
    except ImportError:
        raise StartError(
            "consuming topics needs aiokafka, which is not installed here:"
            " pip install 'batchpool[kafka]'"
        ) from None
    return module


async def _attached(
    stack: AsyncExitStack, socket: str, name: str
) -> tuple[AsyncClient, ServedModel]:
    """A client of the pool, which the stack closes, and the model of this name."""
    try:
        client = await stack.enter_async_context(AsyncClient(socket))
        models = await client.models()
    except PoolError as exc:
        raise StartError(exc.message) from exc
    if name not in models:
        raise ConfigError(
            f"--model: the pool serves no model {name!r}; it serves {', '.join(sorted(models))}"
        )
    return client, models[name]


def _check(plan: ConsumePlan, served: ServedModel) -> None:
    spec = spec_of(served)
    chosen_outputs(spec, plan.outputs)
    try:
        check_parameters(spec, dict(plan.parameters))
    except PoolError as exc:
        raise ConfigError(f"--parameter: {exc.message}") from None


def _listener(kafka: Any, consumer: Consumer) -> Any:
    """The listener of a group's changes, which hands partitions over."""

    class HandOver(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            await consumer.revoke(revoked)

        async def on_partitions_assigned(self, assigned: Any) -> None:
            numbers = sorted(each.partition for each in assigned)
            _LOG.info("partitions %s are consumed here", numbers or "none")

    return HandOver()


async def _report(consumer: Consumer) -> None:
    """Log how much was done, while something is."""
    before = 0
    while True:
        await asyncio.sleep(_REPORT_S)
        if consumer.records > before:
            rate = (consumer.records - before) / _REPORT_S
            before = consumer.records
            _LOG.info(
                "%d records, %d of them dead letters, %.0f a second", before, consumer.failed, rate
            )
