"""TorchServe: writes its archive and its configuration, then becomes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from plan import HOST, PLAN

_LOG = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %c %m%n"/>
</Console></Appenders><Loggers><Root level="error"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>"""

if __name__ == "__main__":
    servers = Path(__file__).parent
    programs = Path(sys.executable).parent
    folder = Path(PLAN.folder)
    store = folder / "store"
    store.mkdir()
    os.environ |= {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PEER_SERVERS": str(servers),
        "LOG_LOCATION": f"{folder}/logs",
        "METRICS_LOCATION": f"{folder}/logs",
    }
    archive = ["--model-name", PLAN.model, "--version", "1", "--export-path", str(store)]
    archive += ["--handler", str(servers / "torchserve_rows.py")]
    subprocess.run([str(programs / "torch-model-archiver"), *archive], check=True)
    of_model = {
        "defaultVersion": True,
        "marName": f"{PLAN.model}.mar",
        "minWorkers": PLAN.workers,
        "maxWorkers": PLAN.workers,
        "batchSize": PLAN.max_batch,
        "maxBatchDelay": int(PLAN.wait_ms),
        "responseTimeout": 60,
    }
    http, management, metrics, grpc, grpc_management = PLAN.ports
    properties = {
        "inference_address": f"http://{HOST}:{http}",
        "management_address": f"http://{HOST}:{management}",
        "metrics_address": f"http://{HOST}:{metrics}",
        "grpc_inference_port": grpc,
        "grpc_management_port": grpc_management,
        "disable_token_authorization": "true",
        "enable_envvars_config": "false",
        "enable_metrics_api": "false",
        "install_py_dep_per_model": "false",
        "job_queue_size": PLAN.in_flight,
        "number_of_netty_threads": PLAN.apis,
        "netty_client_threads": PLAN.apis,
        "number_of_gpu": 0,  # the model picks its device itself
        "model_store": store,
        "load_models": f"{PLAN.model}.mar",
        "models": json.dumps({PLAN.model: {"1": of_model}}),
        "vmargs": "-Xmx2g",
    }
    told = folder / "config.properties"
    told.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    log = folder / "log4j2.xml"
    log.write_text(_LOG)
    program = str(programs / "torchserve")
    os.execv(
        program,
        [program, "--foreground", "--ts-config", str(told), "--log-config", str(log)],
    )
