"""The engine of `batchpool.models.causal_lm`: any decoder of transformers, its code unchanged, over
a KV cache with a slot for each running sequence.

    model_folder   facts of a folder, read without torch; what is refused by its configuration
    buckets        shapes of calls: how many slots, how many tokens, how far back they look
    slot_cache     keys and values of the slots, as a cache of transformers
    slot_check     refuses a model that gives other logits with slots than with its own cache
    slot_state     what the device knows of the sequences that run
    slot_calls     one decode or prefill call, on tensors with fixed addresses
    packed_calls   both in one call, without padding; with packed_attention and packed_cache, where
                   the device has attention of sequences that stand one behind another
    graphs         these calls as CUDA graphs
    sampling       temperature, top-k, top-p and the noise of a seed, on the device
    sequences      a running sequence, and the slots that are free
    engine         join, step, leave; packed_engine: the same with packed calls
    build          the engine that fits a model and its device
"""
