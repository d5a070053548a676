"""The bytes of shared memory: segment layouts, slot states, the allocation of slots."""
