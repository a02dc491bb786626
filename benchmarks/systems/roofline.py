"""Measures what the processor can do: matrix products at a model's shapes, in GFLOP/s."""

from __future__ import annotations

import time
from typing import Any

import torch
from channel import Commands, serve, use_threads

SECONDS = 0.4
"""Time spent on one shape."""


def rate(rows: int, shape: list[int], dtype: torch.dtype, seconds: float) -> float:
    """Seconds that x Wᵀ takes, x [rows, in], W [out, in]: the median of as many runs as fit."""
    size_out, size_in = shape
    x, weight = torch.randn(rows, size_in).to(dtype), torch.randn(size_out, size_in).to(dtype)
    times = []
    torch.nn.functional.linear(x, weight)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(times) < 3:
        start = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def load(config: dict[str, Any]) -> Commands:
    use_threads(config)

    def step(shapes: list[list[int]], counts: list[int], rows: list[int], dtypes: list[str]) -> dict[str, Any]:
        """GFLOP/s over all shapes, each as often as the model has it, by dtype and number of rows."""
        result: dict[str, dict[str, float]] = {}
        for name in dtypes:
            for num in rows:
                with torch.inference_mode():
                    seconds = [rate(num, shape, getattr(torch, name), config.get("time", SECONDS)) for shape in shapes]
                flops = sum(2 * num * a * b * n for (a, b), n in zip(shapes, counts, strict=True))
                spent = sum(s * n for s, n in zip(seconds, counts, strict=True))
                result.setdefault(name, {})[str(num)] = flops / spent / 1e9
        return result

    return {"step": step}


if __name__ == "__main__":
    serve(load)
