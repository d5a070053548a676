"""Tokens of a decoder by engines that form batches in different ways, over loads of mixed lengths.

    python -m bench.generate
    python -m bench.generate --load nano --model qwen2 --device cuda --slots 256 --save FILE.json
    python -m bench.generate --path build/SmolLM2-135M-Instruct --engines bare static

bare      CausalLM in a loop, without a pool
local     a pool, one stream of a bp.AsyncClient a request, from several processes
http      a pool, one event stream of /generate_stream a request
static    batches of `model.generate` in order of arrival, each as long as its longest row
library   continuous batching of transformers

Every token is compared with that of the bare loop. On a CPU in single precision all have to be the
same; in half precision the share of equal sequences is told. A request is answered by as many
tokens as the load says, since the end token is ignored. `tokens/s` are of all requests together;
"first" is from sending a request to its first token, "gap" from one token to the next of the same
sequence, where a reader that gets several at once sees gaps of 0.
"""
