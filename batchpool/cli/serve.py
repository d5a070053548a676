"""`batchpool serve` and `batchpool check`: one configuration, started or only measured."""

from __future__ import annotations

import argparse
import logging
import os

from batchpool.cli.configured import config_of
from batchpool.core.errors import ConfigError, StartError
from batchpool.core.places import socket_path


def serve(args: argparse.Namespace) -> int:
    from batchpool.pool import logs
    from batchpool.pool.activation import take_sockets
    from batchpool.pool.herald import tell_of_survey
    from batchpool.pool.notify import take_notifier
    from batchpool.pool.survey import survey
    from batchpool.shm.limits import check_room, read_limits
    from batchpool.shm.shortage import descriptors_lack, named

    # What systemd passes is for this process: taken before another is started.
    notifier = take_notifier(os.environ, os.getpid())
    try:
        with named("cannot serve"):
            activated = take_sockets(os.environ, os.getpid())
            config = config_of(args)
            server = config.server
            logs.set_up("supervisor", "supervisor", server.log_level, server.log_format)
            path = socket_path(config.server, os.environ, os.getuid())
            config = activated.configured(config, path)
            tell_of_survey(notifier, config)
            plan = survey(config, os.environ)
            check_room(plan.reserved_bytes, read_limits())
            if lack := descriptors_lack(plan.descriptors):
                logging.getLogger("batchpool.supervisor").warning("%s", lack)
            from batchpool.pool import supervisor

            return supervisor.run(plan, notifier, activated, args.words)
    except (ConfigError, StartError) as exc:
        notifier.tell(STATUS=f"could not start: {exc}")
        raise
    finally:
        notifier.close()


def check(args: argparse.Namespace) -> int:
    from batchpool.cli.vacancy import port_state
    from batchpool.pool.survey import survey
    from batchpool.shm.limits import check_room, read_limits
    from batchpool.shm.shortage import descriptors_lack

    plan = survey(config_of(args), os.environ)
    print(plan.text(), flush=True)
    print(f"  port           {port_state(plan.server.host, plan.server.port)}", flush=True)
    check_room(plan.reserved_bytes, read_limits())
    if lack := descriptors_lack(plan.descriptors):
        print(f"  note           {lack}", flush=True)
    return 0
