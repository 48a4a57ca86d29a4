"""A 2-D Gaussian fitted to a map, as the GAB paper fits position biases and receptive fields.

f(x, y) = amplitude / (2 pi sigma_x sigma_y) exp(-(x - x0)^2 / (2 sigma_x^2) - (y - y0)^2 / (2 sigma_y^2)), x: column.
R^2 = 1 - var(residual) / var(data): variances, so a constant offset is not held against the fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares


@dataclass(frozen=True)
class GaussianFit:
    """What was fitted; sigmas are positive, in the map's own steps."""

    r2: float
    sigma_x: float
    sigma_y: float
    x: float
    y: float
    amplitude: float


def fit_gaussian(values: np.ndarray, subtract_minimum: bool = True) -> GaussianFit:
    """Least squares over five free, unbounded parameters, from the paper's start values (given there for 14 x 14)."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or min(values.shape) < 3 or not np.isfinite(values).all():
        raise ValueError(f"expected a finite map of at least 3 x 3 values, got shape {values.shape}")
    data = values - values.min() if subtract_minimum else values
    rows, columns = np.indices(data.shape)
    height, width = (side - 1 for side in data.shape)
    start = [2.0, 0.8 * width / 2, 0.8 * height / 2, width / 10 / 1.5, height / 6 / 1.5]

    def model(parameters: np.ndarray) -> np.ndarray:
        amplitude, x, y, sigma_x, sigma_y = parameters
        exponent = ((columns - x) / sigma_x) ** 2 / 2 + ((rows - y) / sigma_y) ** 2 / 2
        return amplitude / (2 * np.pi * sigma_x * sigma_y) * np.exp(-exponent)

    found = least_squares(lambda parameters: (model(parameters) - data).ravel(), start, method="lm", max_nfev=20_000).x
    spread = data.var()
    r2 = 1 - (data - model(found)).var() / spread if spread else 0.0
    amplitude, x, y, sigma_x, sigma_y = found
    sign = np.sign(sigma_x * sigma_y)  # only the product of the signs matters
    return GaussianFit(float(r2), abs(float(sigma_x)), abs(float(sigma_y)), float(x), float(y), float(sign * amplitude))
