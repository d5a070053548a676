"""Texts of real lengths to vectors, over HTTP and through a local client, beside what else does it.

    python -m bench.embed setup [--device cuda]       # an environment for the peer infinity, 2 GiB
    python -m bench.embed run --save bench/results/embed_MACHINE.json [--device cuda]

All-MiniLM-L6-v2, one text a request, texts of 4 to 120 words (bench/support/texts.py), heads that
differ. In turns, round after round, with 1, 8 and 64 requests under way, on a quiet machine and
beside loops that compute:

    batchpool, infer          /v2/models/minilm/infer, JSON in, binary out
    batchpool, embeddings     /v1/embeddings, numbers as base64
    batchpool, local          bp.AsyncClient
    infinity, embeddings      /embeddings of infinity-emb, numbers as base64
    encoder, bare             one process, no pool: tokenizer and encoder, so many texts a call
    encode, bare              SentenceTransformer.encode, so many texts a call

All compute with as many threads as there are cores, which sleep while they wait for one another.
Each vector is compared with that of SentenceTransformer.encode in single precision on the CPU. An
answer with another one ends the run.
"""
