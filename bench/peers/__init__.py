"""batchpool and other servers side by side: same machine, models, load and cores, in turns.

    python -m bench.peers setup [PEER ...]     # a virtual environment each, and wrk if missing
    python -m bench.peers sweep [PEER ...]     # its best setting here, into settings.json
    python -m bench.peers run --save FILE.json # the table
    python -m bench.peers table FILE.json      # the same as markdown

Peers: mosec, litserve, pytriton, torchserve; bentoml and ray with `run --once bentoml ray`, in
the first round only. References without a model: uvicorn and starlette, which echo the body.
What is not installed or does not start is a line of the table with its reason.

Models: y = 2x + 1 on 512 float32, and an MLP 512-2048-2048-512 on one thread; raw bodies of
2 KB, except where a peer takes no raw bodies (bench/peers/forms.py).

Load: wrk at 64 and 256 connections for the rate and 1 for the latency. Every answer's status,
length and first values are judged in wrk; before that 96 distinct rows are compared whole.
Every server is started anew in every round, after the one before has ended, and runs at the
setting that `sweep` found for this model on a machine of this size (settings.json).

On a GPU machine: `--device cuda`. The MLP then runs on its first GPU in half precision; y = 2x + 1
stays in numpy. Where nothing can be downloaded and time is short, carry there this checkout and
what this collects on a machine with an index and wrk (19 MB for mosec and litserve, 57 MB more for
pytriton):

    python -m bench.peers wheels FOLDER mosec litserve

and there, in eight minutes, a sweep, rounds at 1 to 4,096 connections and an open loop:

    python -m bench.peers short --sites FOLDER --device cuda --out FOLDER_OF_FIGURES

Torch and numpy are those of the interpreter that runs this, which also needs our dependencies;
PyTriton brings an older numpy, and needs the interpreter's libpython: of a Python built with
--enable-shared, or a package of its own. TorchServe needs Java 11 or newer.
"""
