"""`batchpool consume`: the records of a Kafka topic through a model of a running pool."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tomllib
from typing import Any

from batchpool.cli.config_source import add_socket_arguments, pool_socket
from batchpool.cli.numbers import whole_number
from batchpool.cli.run import names_of, pairs_of, parameters_of
from batchpool.core.errors import ConfigError

CONSUME_HELP = "run the records of a Kafka topic through a model, into another topic"
CONSUME_EPILOG = """\
From a topic of records {"body": "some text"} and a pool that serves the model minilm (`batchpool
serve --model ...`, on the same machine), the command
  batchpool consume kafka://broker:9092/texts --model minilm --map text=body --to kafka:///vectors
makes records {"embedding": [0.12, -0.03, ...]}, and goes on with every record that comes, until it
is stopped. The topics are there before: the source, --to and --dead, here texts.dead. It needs
pip install 'batchpool[kafka]'.

Each record's value is a row: a JSON object with a value for each input of the model, or with
--value raw the bytes of its only input. The result is a JSON object of the outputs, with the
record's key and headers, in the topic --to. A record that fails for good (its value is wrong, or
the model failed with it every time) goes as it came to the topic --dead, with the error in headers.

Consumers with one --group share the partitions, whatever box they run on. Offsets are committed
behind records whose result or dead letter the brokers have: each record has one at least once. What
the pool refuses for the moment (full, restarting, reloading) is sent again; meanwhile no more is
fetched. SIGTERM and Ctrl+C end the consumer when what is under way has ended.

--kafka-config FILE is TOML with security_protocol, sasl_mechanism, sasl_plain_username,
sasl_plain_password, ssl_cafile, ssl_certfile, ssl_keyfile, client_id.

examples:
  batchpool consume kafka://broker:9092/texts --model minilm --to kafka:///vectors
  batchpool consume kafka://b1:9092,b2:9092/orders --model fraud --map x=features \\
      --to kafka:///scores --dead kafka:///orders-failed --group fraud-v2

"""
CONSUME_EXITS = ("stopped by a signal, with nothing under way", "no pool or broker, or one is lost")


def add_consume_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `batchpool consume`."""
    parser.add_argument("source", metavar="kafka://HOST:PORT/TOPIC", help="the topic of records")
    parser.add_argument(
        "--model", metavar="NAME", required=True, help="a model of the running pool"
    )
    parser.add_argument(
        "--to", metavar="kafka:///TOPIC", required=True, help="the topic of results"
    )
    parser.add_argument(
        "--dead", metavar="kafka:///TOPIC", default="",
        help="the topic of records that failed for good (default: the source's name + .dead)",
    )  # fmt: skip
    parser.add_argument(
        "--group", metavar="NAME", default="",
        help="the consumer group: its members share the partitions, and another name begins anew"
        " (default: batchpool-MODEL)",
    )  # fmt: skip
    parser.add_argument(
        "--value",
        choices=("json", "raw"),
        default="json",
        help="the records' values are JSON, or the bytes of the only input (default: json)",
    )
    parser.add_argument(
        "--map", metavar="INPUT=MEMBER", action="append", default=[],
        help="the member of a record's object that an input takes; several with commas, or given"
        " several times (default: the one of the input's name)",
    )  # fmt: skip
    parser.add_argument(
        "--outputs", metavar="NAMES", default="", help="outputs in a result (default: all)"
    )
    parser.add_argument(
        "--parameter", metavar="NAME=VALUE", action="append", default=[],
        help="a parameter of the model, for all records; JSON or a text",
    )  # fmt: skip
    parser.add_argument(
        "--most",
        metavar="N",
        type=whole_number(10**6),
        default=0,
        help="most records under way; no more are fetched meanwhile (default 4096)",
    )  # fmt: skip
    parser.add_argument(
        "--begin", choices=("earliest", "latest"), default="earliest",
        help="where a group begins that has committed nothing (default: earliest)",
    )  # fmt: skip
    parser.add_argument(
        "--kafka-config",
        metavar="FILE",
        default="",
        help="TLS and SASL of the connections, as below",
    )
    add_socket_arguments(parser)
    parser.set_defaults(config=None)


def consume(args: argparse.Namespace) -> int:
    from batchpool.consume.plan import ConsumePlan
    from batchpool.consume.run import connection_settings
    from batchpool.consume.run import consume as consume_until_stopped
    from batchpool.consume.topics import Topic, topic_of
    from batchpool.log.setup import set_up

    source = topic_of(args.source, "the source")
    target = topic_of(args.to, "--to", source.brokers)
    dead = Topic(target.brokers, f"{source.name}.dead")
    if args.dead:
        dead = topic_of(args.dead, "--dead", target.brokers)
    if dead.brokers != target.brokers:
        raise ConfigError(
            f"--dead names the brokers {dead.brokers}, and --to {target.brokers}; the same were"
            " expected"
        )
    if source.name in (target.name, dead.name) and source.brokers == target.brokers:
        raise ConfigError(
            f"topic {source.name!r} is the source and a target, so that its results would be"
            " consumed; another one was expected"
        )
    settings = _settings(args.kafka_config)
    plan = ConsumePlan(
        source=source,
        target=target,
        dead=dead,
        model=args.model,
        group=args.group or f"batchpool-{args.model}",
        columns=pairs_of("--map", args.map),
        form=args.value,
        outputs=names_of(args.outputs),
        parameters=parameters_of(args.parameter),
        kafka=connection_settings(settings, f"--kafka-config {args.kafka_config}"),
        most=args.most,
        begins=args.begin,
    )
    set_up("consume", plan.group, "info", "human")
    # Its steps of joining a group say less than the lines here do; its warnings and errors stay.
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    done = asyncio.run(consume_until_stopped(plan, pool_socket(args)))
    print(f"{done.records:,} records, {done.failed:,} of them dead letters", file=sys.stderr)
    return 0


def _settings(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as exc:
        raise ConfigError(f"cannot read --kafka-config {path}: {exc.strerror}") from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"--kafka-config {path} is no TOML: {exc}") from None
