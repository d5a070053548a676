"""The deployment plan: devices, models, slots, bytes, and how plans differ."""
