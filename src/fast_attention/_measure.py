"""The measuring process of ``python -m fast_attention compare``.

It runs as ``python -m fast_attention._measure REQUEST`` in an environment whose BLAS thread
variables were set before NumPy was loaded, and reports in lines of JSON on its standard output:
``facts``, then for each workload ``start``, ``round``s and ``result`` or ``failed``, then ``done``.

Fairness: one process, the same arrays, rounds that alternate between the backends (N F N F ...), so
that a change of clock or a noisy neighbour meets both; the first calls of both are not counted.
Between samples on several threads there is a pause with a call that is not timed, because the
threads of OpenBLAS spin for some 30 ms after a call and would take cores from the native pool.
"""

import functools
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _backend, _bound, _machine, _workloads
from ._attention import scaled_dot_product_attention
from ._descriptor import describe_attention
from ._threads import set_num_threads
from ._version import __version__

SIDES = ("native", "numpy")

LEAST_ROUNDS = 3
MOST_ROUNDS = 301
LEAST_SAMPLE = 500e-6  # seconds; shorter calls are repeated within a sample
SETTLE = 0.05  # seconds until the threads of the other backend sleep
SHORT_CALL = 0.02  # seconds; after a pause, a call shorter than this is warmed up again
REPORT_EVERY = 0.2  # seconds between progress reports, which cost the parent some time

Call = Callable[[], object]


def main() -> int:
    """Measure what the request in the first argument asks for."""
    request = json.loads(sys.argv[1])
    set_num_threads(request["threads"])
    try:
        _emit("facts", **_facts())
        for name in request["workloads"]:
            _measure_or_report(_workloads.BY_NAME[name], request)
        _emit("done")
    except BrokenPipeError:  # the parent is gone, and with it whoever would read the results
        os._exit(1)
    return 0


def _emit(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def _facts() -> dict[str, Any]:
    """Return what this machine is, after one product has made BLAS choose its kernel."""
    np.ones((2, 2)) @ np.ones((2, 2))
    with _backend.using("native"):
        _, isa = _backend.current()
    return {**_machine.machine_facts(), "version": __version__, "isa": isa}


def _measure_or_report(workload: _workloads.Workload, request: dict[str, Any]) -> None:
    """Measure one workload; an error becomes a line of the report and the next one goes on."""
    _emit("start", name=workload.name)
    try:
        result = _measure(workload, request)
    except BrokenPipeError:
        raise
    except Exception as error:
        _emit("failed", name=workload.name, error=f"{type(error).__name__}: {error}")
    else:
        _emit("result", name=workload.name, **result)


def _measure(workload: _workloads.Workload, request: dict[str, Any]) -> dict[str, Any]:
    arrays, options = _workloads.make_call(workload, request["dtype"])
    call: Callable[[], Any] = functools.partial(scaled_dot_product_attention, *arrays, **options)
    outputs = {}
    for side in SIDES:
        with _backend.using(side):
            outputs[side] = call()
    bound = _bound.arithmetic_bound(describe_attention(*arrays, **options))
    agreement = _agreement(outputs, bound)
    gc.collect()
    gc.disable()
    try:
        inner = {side: _repetitions_of(side, call) for side in SIDES}
        samples = _sample(workload.name, call, inner, request)
    finally:
        gc.enable()
    sides = {side: {**statistics(samples[side]), "inner": inner[side]} for side in SIDES}
    speed_up = sides["numpy"]["median"] / sides["native"]["median"]
    return {"speed_up": speed_up, **agreement, **sides}


def _agreement(
    outputs: dict[str, np.ndarray[Any, Any]], bound: np.ndarray[Any, Any]
) -> dict[str, Any]:
    """Return how far the two results lie apart. Each may be a bound away from the exact one."""
    native, fallback = (outputs[side] for side in SIDES)
    difference = np.abs(native.astype(np.float64) - fallback.astype(np.float64))
    in_bounds = _bound.difference_in_bounds(native, fallback, bound)
    return {
        "largest_difference": float(difference.max(initial=0.0)),
        "difference_in_bounds": in_bounds,
        "within_bound": in_bounds <= 2.0,
    }


def _repetitions_of(side: str, call: Call) -> int:
    with _backend.using(side):
        return repetitions(call, LEAST_SAMPLE)


def repetitions(call: Call, least: float) -> int:
    """Return how many calls make a sample of at least `least` seconds."""
    count = 1
    while (elapsed := time_call(call, count) * count) < least:
        count = max(count + 1, min(10 * count, int(1.2 * count * least / elapsed)))
    return count


def time_call(call: Call, count: int) -> float:
    """Return the seconds that one of `count` calls takes."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _sample(
    name: str, call: Call, inner: dict[str, int], request: dict[str, Any]
) -> dict[str, list[float]]:
    """Alternate between the backends until the budget is spent."""
    samples: dict[str, list[float]] = {side: [] for side in SIDES}
    least, most = request["rounds"] or LEAST_ROUNDS, request["rounds"] or MOST_ROUNDS
    deadline = time.perf_counter() + request["seconds"]
    next_report = 0.0
    for done in range(most):
        now = time.perf_counter()
        if done >= least and now > deadline:
            break
        if now > next_report:
            _emit("round", name=name, done=done)
            next_report = now + REPORT_EVERY
        for side in SIDES:
            with _backend.using(side):
                if request["threads"] > 1:
                    _settle(call, samples[side])
                samples[side].append(time_call(call, inner[side]))
    return samples


def _settle(call: Call, earlier: list[float]) -> None:
    """Wait until the other backend's threads sleep, then wake this one's."""
    time.sleep(SETTLE)
    if not earlier or earlier[-1] < SHORT_CALL:
        call()


def statistics(samples: list[float]) -> dict[str, Any]:
    """Return median, quartiles and the samples, in seconds per call."""
    first, median, third = (float(x) for x in np.percentile(samples, (25, 50, 75)))
    return {"median": median, "first_quartile": first, "third_quartile": third, "samples": samples}


if __name__ == "__main__":
    sys.exit(main())
