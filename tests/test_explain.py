"""explain(): the plan is what the call then does; tests/c/test_plan.c counts inside the core."""

import inspect
import tracemalloc

import numpy as np
import pytest
import support

import fast_attention
from fast_attention import _explain, explain, scaled_dot_product_attention

# query rows of a group up to which keys go into the lanes, for tiny and for other heads
FEW = {20: 2, 100: 8}  # keys of 8 numbers each


def zeros(*shape, dtype="f4"):
    return np.zeros(shape, dtype)


def test_plan_names_the_engine_and_the_arithmetic(engine):
    for dtype, arithmetic in (("f4", "float32"), ("f2", "float32"), ("f8", "float64")):
        x = zeros(2, 10, 8, dtype=dtype)
        plan = explain(x, x, x)
        assert (plan.backend, plan.isa) == engine
        assert plan.arithmetic == arithmetic
        for name, entry in plan._asdict().items():
            assert name in str(plan)
            if isinstance(entry, str):
                assert entry in str(plan)


@pytest.mark.parametrize("n_query", [1, 4, 5, 8, 9, 63, 64, 65, 300])
@pytest.mark.parametrize("n_key", FEW)
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_native_plan_counts_tiles_of_grouped_rows(native_engine, n_query, n_key, group, dtype):
    query, key = zeros(3, 2 * group, n_query, 8, dtype=dtype), zeros(3, 2, n_key, 8, dtype=dtype)
    plan = explain(query, key, key)
    rows = n_query * group
    tile = support.tile_rows(native_engine, np.dtype(dtype).name)
    assert plan.kernel == ("few" if rows <= FEW[n_key] else "tile")
    pieces = 6 * (1 if rows <= FEW[n_key] else -(-rows // tile))
    work = 6 * rows * n_key * (8 + 8 + 8)  # multiply-adds, softmax among them
    at_once = min(pieces, max(1, int(30_000 * pieces / work)))  # so many are worth a task
    assert plan.rows_per_task == at_once * min(rows, tile)
    assert plan.tasks == -(-pieces // at_once)


def test_native_plan_leaves_tasks_of_tiny_heads_for_each_thread(native_engine):
    x = zeros(10_000, 8, 16)
    assert explain(x, x, x, num_threads=1).tasks < 1000
    for allowed in (2, 5):
        plan = explain(x, x, x, num_threads=allowed)
        assert plan.threads == allowed
        assert 16 * allowed <= plan.tasks < 1000


def test_native_plan_makes_larger_tiles_where_blocks_of_keys_are_copied(native_engine):
    tile = support.tile_rows(native_engine, "float32")

    def rows(query, key, **options):
        return explain(query, key, key, **({"num_threads": 1} | options)).rows_per_task

    dense, view = zeros(8, 20 * tile, 64), zeros(20 * tile, 8, 64).swapaxes(0, 1)
    assert rows(dense, dense) == tile
    assert rows(dense, view) == rows(dense, dense.astype("f2")) == 4 * tile
    assert rows(dense[:, : tile + 1], view) == tile + 1
    assert rows(zeros(8, 20 * tile, 2000), zeros(8, 100, 2000, dtype="f2")) == tile
    assert rows(dense, view, num_threads=8) < 4 * tile  # which leaves tasks for each of them
    assert rows(dense, view, num_threads=100) == tile


@pytest.mark.parametrize("allowed", [1, 2, 5])
def test_native_plan_uses_the_threads_that_are_allowed_and_worth_it(native_engine, allowed):
    large, small = zeros(4, 2000, 64), zeros(4, 8, 8)
    many = np.broadcast_to(large[:1], (1000, *large.shape))
    assert explain(large, large, large, num_threads=allowed).threads == allowed
    assert explain(small, small, small, num_threads=allowed).threads == 1
    with fast_attention.threads(allowed):
        assert explain(large, large, large).threads == allowed
    assert explain(many, large[:1], large[:1], num_threads=20_000).threads == 256  # of the pool
    one_task = large[:1, :30]
    assert explain(one_task, large[:1], large[:1], num_threads=allowed).threads == 1


PAIRS = {
    "all": ({}, 9 * 20),
    "causal": ({"is_causal": True}, 45),
    "causal at the end": ({"is_causal": True, "query_offset": "end"}, 9 * 11 + 45),
    "window": ({"window": (2, 1), "query_offset": 5}, 9 * 4),
    "window at the edge": ({"window": (2, 0)}, 1 + 2 + 7 * 3),
    "lengths": ({"kv_lengths": 7}, 9 * 7),
    "past all keys": ({"query_offset": 100, "window": 3}, 0),
    "mask": ({"attn_mask": np.zeros((9, 20), bool)}, 9 * 20),
}


@pytest.mark.parametrize(("options", "pairs"), PAIRS.values(), ids=PAIRS)
def test_flops_are_those_of_both_products_over_keys_in_range(engine, options, pairs):
    query, key, value = zeros(2, 4, 9, 8), zeros(2, 2, 20, 8), zeros(2, 2, 20, 5)
    options = {"query_offset": 0} | options
    assert explain(query, key, value, **options).flops == 2 * 4 * pairs * 2 * (8 + 5)


def test_bytes_are_those_of_arguments_and_results_without_what_is_broadcast(engine):
    query, key = zeros(2, 4, 9, 8), zeros(2, 20, 8, dtype="f2")
    mask, bias = np.ones((1, 20), bool), zeros(9, 20, dtype="f8")
    plan = explain(query, key, key, mask, bias=bias, return_lse=True, kv_lengths=[3, 4])
    assert plan.bytes_read == 4 * 576 + 2 * 2 * 320 + 20 + 8 * 180 + 8 * 2
    assert plan.bytes_written == 4 * 576 + 4 * 72
    weights = explain(query, key, key, return_weights=True)
    assert weights.bytes_written == 4 * 576 + 4 * 72 * 20


def test_scratch_does_not_grow_with_the_number_of_keys(engine):
    query = zeros(4, 300, 16)
    plans = [explain(query, x, x) for x in (zeros(4, n, 16) for n in (5000, 50_000))]
    assert 0 < plans[0].bytes_scratch == plans[1].bytes_scratch < 4 << 20


NOTHING = {
    "no batch": (0, 2, 3, 5, 4),
    "no heads": (1, 0, 3, 5, 4),
    "no queries": (1, 2, 0, 5, 4),
    "no columns": (1, 2, 3, 5, 0),
}


@pytest.mark.parametrize(("b", "h", "n", "s", "dv"), NOTHING.values(), ids=NOTHING)
def test_empty_result_needs_nothing(engine, b, h, n, s, dv):
    plan = explain(zeros(b, h, n, 4), zeros(b, h, s, 4), zeros(b, h, s, dv))
    assert (plan.kernel, plan.tasks, plan.bytes_scratch, plan.bytes_written) == ("none", 0, 0, 0)


def test_nothing_is_computed_and_nothing_written(engine):
    x = np.full((2, 9, 4), np.nan, "f4")
    out = np.full((2, 9, 4), 7, "f4")
    explain(x, x, x, out=out)
    assert (out == 7).all()
    huge = np.broadcast_to(x[:1, :1], (1, 10_000_000, 4))
    assert explain(huge, huge, huge).flops == 10**14 * 16


@pytest.mark.thread_unsafe(reason="measures the memory of the whole process")
def test_no_result_is_allocated(engine):
    x = np.broadcast_to(np.float16(1), (2, 20_000, 4))
    options = {"return_lse": True, "return_weights": True}
    tracemalloc.start()
    try:
        plan = explain(x, x, x, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert plan.bytes_written == 2 * 20_000 * (2 * 4 + 4 + 2 * 20_000)
    assert peak < 4 << 20
    small = np.ones((2, 5, 4), "f2")
    results = scaled_dot_product_attention(small, small, small, **options)
    assert explain(small, small, small, **options).bytes_written == sum(r.nbytes for r in results)


def test_options_errors_and_warnings_are_those_of_the_call(engine):
    x, y = zeros(1, 3, 4), zeros(1, 5, 4)
    with pytest.raises(ValueError, match="scale"):
        explain(x, y, y, scale=np.nan)
    with pytest.raises(TypeError, match="no option 'dropout_p'"):
        explain(x, y, y, dropout_p=0.5)
    for options in ({"is_causal": True}, {"attn_mask": np.tril(np.ones((3, 5), "f4"))}):
        with pytest.warns(UserWarning, match=r"query_offset|astype") as caught:
            explain(x, y, y, **options)
        assert [w.filename for w in caught] == [__file__]
    parameters = inspect.signature(scaled_dot_product_attention).parameters
    options = {n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert options == _explain.CallOptions.__optional_keys__


CALL = """
import sys
import numpy as np
import fast_attention as f
x = np.ones((8, 400, 64), "f4")
with f._backend.using(sys.argv[1], sys.argv[2] or None):
    plan = f.explain(x, x, x, num_threads=3)
    f.scaled_dot_product_attention(x, x, x, num_threads=3)
    f.scaled_dot_product_attention(x, x, x, x[0] @ x[0].T > 0, num_threads=3, return_lse=True)
if sys.argv[2]:
    print(plan.threads, f._native.pool_thread_count() + 1)
"""


def test_call_starts_the_threads_of_its_plan(native_engine):
    child = support.run_python(CALL, *native_engine)
    assert child.stdout == "3 3\n", child.stderr
    assert child.stderr == ""


def test_verbose_logs_one_line_for_each_call(engine):
    arguments = CALL, engine[0], engine[1] or ""
    lines = support.run_python(*arguments, FAST_ATTENTION_VERBOSE="1").stderr.splitlines()
    assert len(lines) == 2
    for line in lines:
        for word in ("fast_attention: attention", "(8, 400, 64)", "float32", " ".join(
            filter(None, engine)), "tasks of", "MFLOP", "scratch"):  # fmt: skip
            assert word in line
    for off in ("", "0"):
        assert support.run_python(*arguments, FAST_ATTENTION_VERBOSE=off).stderr == ""


LOGGED = """
import logging
lines = []
class Keep(logging.Handler):
    def emit(self, record): lines.append((record.name, record.levelname, record.getMessage()))
logging.getLogger().addHandler(Keep())
import numpy as np
import fast_attention as f
x = np.ones((2, 3, 4), "f4")
assert (f.scaled_dot_product_attention(x, x, x) == 1).all()
(line,) = lines
assert line[:2] == ("fast_attention", "INFO") and "3, 4" in line[2], line
"""


def test_log_goes_where_the_program_sends_it():
    child = support.run_python(LOGGED, FAST_ATTENTION_VERBOSE="1")
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""


OTHERS = """
import numpy as np
import fast_attention as f
from fast_attention.compat import jax, onnx, torch
x = np.ones((1, 2, 3, 4), "f4")
f.self_attention(x[0, 0])
torch.scaled_dot_product_attention(x, x, x)
jax.dot_product_attention(x, x, x)
onnx.attention(x, x, x)
"""


def test_verbose_logs_attention_under_its_other_names():
    child = support.run_python(OTHERS, FAST_ATTENTION_VERBOSE="1")
    assert child.returncode == 0, child.stderr
    assert len(child.stderr.splitlines()) == 4


@pytest.mark.parametrize("text", ["yes", "2", "-1"])
def test_invalid_variable_is_an_error_that_says_what_is_valid(text):
    child = support.run_python("import fast_attention", FAST_ATTENTION_VERBOSE=text)
    assert "ValueError" in child.stderr
    for word in ("FAST_ATTENTION_VERBOSE", repr(text), "0 or 1"):
        assert word in child.stderr
