"""Backends that run a batch on a device: numpy and torch on the CPU, CUDA."""
