"""Seconds of steps, as ratios in one run; no tables."""
