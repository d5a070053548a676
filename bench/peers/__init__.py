"""batchpool and other servers side by side: same machine, models, load and cores, in turns.

    python -m bench.peers setup [PEER ...]     # a virtual environment each, and wrk if missing
    python -m bench.peers sweep [PEER ...]     # its best setting here, into settings.json
    python -m bench.peers run --save FILE.json # the table
    python -m bench.peers table FILE.json      # the same as markdown

Peers: mosec, litserve, pytriton, torchserve; bentoml and ray with `run --once bentoml ray`, in
the first round only. References without a model: uvicorn and starlette, which echo the body.
What is not installed or does not start is a line of the table with its reason.

Models: y = 2x + 1 on 512 float32, and an MLP 512-2048-2048-512 on one thread; raw bodies of
2 KB, except where a peer has no such road (bench/peers/forms.py).

Load: wrk at 64 and 256 connections for the rate and 1 for the latency. Every answer's status,
length and first values are judged in wrk; before that 96 distinct rows are compared whole.
Every server is started anew in every round, after the one before has ended, and runs at the
setting that `sweep` found for this model on a machine of this size (settings.json).

On a GPU machine: `--device cuda`. The MLP then runs on its first GPU in half precision; y = 2x + 1
stays in numpy. Where nothing can be downloaded, carry there: this checkout, wrk (one binary on
PATH), and a folder of wheels made on a machine of the same Python with

    python -m bench.peers wheels FOLDER [PEER ...]

(30 MB for mosec, 36 litserve, 107 pytriton), and there `setup --wheels FOLDER --torch-here`:
torch is not among them, the environments see the one of the interpreter that runs this.
PyTriton also needs that interpreter's libpython (a Python built with --enable-shared), and
TorchServe Java 11 or newer.
"""
