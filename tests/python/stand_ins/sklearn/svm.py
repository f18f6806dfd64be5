"""A classifier that knows its data by heart."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray


class SVC:
    def __init__(self, **parameters: float) -> None:
        del parameters

    def fit(self, data: NDArray[numpy.float64], target: NDArray[numpy.int64]) -> SVC:
        self._data = data
        self._target = target
        return self

    def predict(self, values: NDArray[numpy.float32]) -> NDArray[numpy.int64]:
        distances = ((values[:, None] - self._data[None]) ** 2).sum(axis=2)
        labels: NDArray[numpy.int64] = self._target[distances.argmin(axis=1)]
        return labels
