"""`batchpool serve` starts the pool of a configuration; `batchpool check` only prints its plan."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from batchpool.cli.config_source import config_of
from batchpool.core.config.paths import batch_folder, socket_path, task_folder
from batchpool.core.errors import ConfigError, StartError

if TYPE_CHECKING:
    from batchpool.supervisor.plan.plan import Plan


def serve(args: argparse.Namespace) -> int:
    from batchpool.log import setup
    from batchpool.shm.memory_limits import check_room, read_limits
    from batchpool.shm.resource_errors import descriptors_lack, named
    from batchpool.supervisor.host.sd_notify import take_notifier
    from batchpool.supervisor.host.service_status import notify_discovery
    from batchpool.supervisor.host.socket_activation import take_sockets
    from batchpool.supervisor.plan.discover import discover_plan
    from batchpool.supervisor.plan.probe_model import model_label

    # What systemd passes is for this process only: it is taken before any child is started.
    notifier = take_notifier(os.environ, os.getpid())
    try:
        with named("cannot serve"):
            activated = take_sockets(os.environ, os.getpid())
            config = config_of(args)
            server = config.server
            setup.set_up("supervisor", "supervisor", server.log_level, server.log_format)
            path = socket_path(config.server, os.environ, os.getuid())
            config = activated.configured(config, path)
            notify_discovery(notifier, config)
            names = ", ".join(map(model_label, config.models))
            log = logging.getLogger("batchpool.supervisor")
            log.info("starting: reading the declarations of %s", names)
            plan = discover_plan(config, os.environ)
            check_room(plan.reserved_bytes, read_limits())
            if lack := descriptors_lack(plan.descriptors):
                log.warning("%s", lack)
            from batchpool.supervisor import supervisor

            return supervisor.run(plan, notifier, activated, args.words)
    except (ConfigError, StartError) as exc:
        notifier.notify(STATUS=f"could not start: {exc}")
        raise
    finally:
        notifier.close()


def check(args: argparse.Namespace) -> int:
    from batchpool.cli.folder_check import check_batch_folder, check_task_folder
    from batchpool.cli.port_check import port_state
    from batchpool.cli.store_check import check_task_store
    from batchpool.shm.memory_limits import check_room, read_limits
    from batchpool.shm.resource_errors import descriptors_lack
    from batchpool.supervisor.plan.discover import discover_plan
    from batchpool.tasks.alerts import missing_program

    plan = discover_plan(config_of(args), os.environ)
    shared = plan.server.tasks_store if plan.server.tasks else ""
    has_folder = plan.server.tasks and not shared
    folder = task_folder(plan.server, os.environ, os.getuid()) if has_folder else ""
    where = f"at {shared}" if shared else folder and f"in {folder}"
    print(plan.text(os.environ, where), flush=True)
    if plan.server.port:
        tls = bool(plan.server.ssl_certfile)
        state = port_state(plan.server.host, plan.server.port, tls=tls)
        print(f"  port           {state}", flush=True)
    if folder and (unseen := check_task_folder(Path(folder))):
        print(f"  note           {unseen}", flush=True)
    if plan.server.batches:
        files = batch_folder(plan.server, os.environ, os.getuid())
        print(f"  batches        in {files}", flush=True)
        check_batch_folder(Path(files))
    if shared:
        for line in check_task_store(plan.server):
            print(f"  note           {line}", flush=True)
    if plan.server.tasks and (missing := missing_program(plan.server.task_alert_command)):
        print(f"  note           {missing}", flush=True)
    check_room(plan.reserved_bytes, read_limits())
    if lack := descriptors_lack(plan.descriptors):
        print(f"  note           {lack}", flush=True)
    if args.load:
        _try_models(plan)
    return 0


def _try_models(plan: Plan) -> None:
    """Load each model as a worker would, one after the other, and print what that took."""
    from batchpool.core.tensors.stages import Stage
    from batchpool.supervisor.plan.trial import try_model

    failed = 0
    for model in plan.models:
        print(f"\nmodel {model.spec.name}", flush=True)
        try:
            for stage in sorted(model.stages):  # infer first
                worker = model.workers_of(stage)[0]
                trial = try_model(model, plan.server, worker=worker)
                what = "loaded" if stage is Stage.INFER else stage.label
                print(f"  {what:<14} {trial.text()}", flush=True)
                for warning in trial.warnings:
                    print(f"  note           {warning}", flush=True)
        except (ConfigError, StartError) as exc:
            failed += 1
            print(f"  failed         {exc}", flush=True)
    if failed:
        raise StartError(f"{failed} of {len(plan.models)} models cannot be served")
