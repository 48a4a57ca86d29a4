"""Trained weights in, arrays out; no plots."""
