"""Tensor specifications, and rows checked against them."""
