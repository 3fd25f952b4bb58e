"""Every option together with every other, at the sizes where tiles begin and end."""

from itertools import product

import grid
import numpy as np
import oracle
import pytest
import support

CASES = [(seed, case) for seed in (1, 2) for case in grid.pairwise(grid.FACTORS, seed)]
SIZES = ["0", "1", "T-1", "T", "T+1", "2T+1"]
KEY_SIZES = ["0", "1", "K-1", "K", "K+1", "2K+1"]
WIDTHS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 80, 127, 128, 129]
RANGES = list(product([False, True], [None, (2, None), (None, 1), (1, 1), (0, 0), (-1, 2), 3]))
OFFSETS = [0, 2, -3, 100, -100, "end", np.array([[1, -1, 4], [0, 90, -7]])]
LENGTHS = [None, 0, 4, np.array([[1, 0, 7], [5, 6, 2]])]


def test_pairwise_cover_of_options_is_complete():
    seen = set()
    for _, case in CASES:
        seen |= {(a, str(case[a]), b, str(case[b])) for a in case for b in case if a < b}
    for one, two in product(grid.FACTORS, grid.FACTORS):
        for pair in product(grid.FACTORS[one], grid.FACTORS[two]):
            together = {one: pair[0], two: pair[1]}
            if one < two and not grid._forbidden(together):
                assert (one, str(pair[0]), two, str(pair[1])) in seen


@pytest.mark.parametrize(
    ("seed", "case"), CASES, ids=[f"cover{s}-{i}" for i, (s, _) in enumerate(CASES)]
)
def test_every_option_with_every_other_stays_within_the_bound(engine, tile, seed, case):
    call = grid.Call(case, seed, tile)
    expected = oracle.attention(*call.arrays, **call.options)
    output = support.check(*call.arrays, expected=expected, **call.options)
    if case["out"] != "none":
        assert output is call.options["out"]


@pytest.mark.parametrize("n_key", KEY_SIZES)
@pytest.mark.parametrize("n_query", SIZES)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_sizes_at_tile_edges_stay_within_the_bound(engine, tile, n_query, n_key, is_causal):
    shape = {"n_query": grid.size(n_query, tile), "n_key": grid.size(n_key, tile)}
    arrays = support.qkv(3, heads=2, kv_heads=1, d=8, dv=9, **shape)
    support.check(*arrays, is_causal=is_causal, query_offset="end" if is_causal else None)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n_query", [1, 2, 3, 5, 8, 13])
def test_few_queries_over_several_segments_stay_within_the_bound(engine, n_query, dtype):
    arrays = support.qkv(5, heads=2, n_query=n_query, n_key=41 * oracle.KEY_BLOCK + 3, dtype=dtype)
    support.check(*arrays)
    support.check(*arrays, is_causal=True, query_offset="end")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_head_width_stays_within_the_bound(engine, width):
    for n_query, dtype in product((1, 7), ("f4", "f8", "f2")):
        support.check(*support.qkv(6, n_query=n_query, n_key=20, d=width, dv=5, dtype=dtype))
        support.check(*support.qkv(7, n_query=n_query, n_key=20, d=5, dv=width, dtype=dtype))


@pytest.mark.parametrize(
    ("is_causal", "window"), RANGES, ids=[f"causal={c} window={w}" for c, w in RANGES]
)
def test_causal_window_offset_and_lengths_always_intersect(engine, is_causal, window):
    arrays = support.qkv(8, lead=(2, 3), heads=2, kv_heads=1, n_query=5, n_key=7)
    mask = np.random.default_rng(9).random((2, 1, 2, 5, 7)) < 0.7
    for offset, lengths, given in product(OFFSETS, LENGTHS, (None, mask)):
        support.check(
            *arrays, given, is_causal=is_causal, window=window,
            query_offset=offset, kv_lengths=lengths,
        )  # fmt: skip


@pytest.mark.parametrize("window", [(100, 0), (0, 100), (130, 130), (5, None), (None, 97)])
@pytest.mark.parametrize("offset", ["end", 0, 50, -60])
def test_window_that_cuts_key_blocks_stays_within_the_bound(engine, tile, window, offset):
    arrays = support.qkv(10, n_query=tile + 3, n_key=3 * oracle.KEY_BLOCK + 5)
    support.check(*arrays, window=window, query_offset=offset)
    support.check(*arrays, window=window, query_offset=offset, is_causal=True, kv_lengths=200)


@pytest.mark.parametrize("kind", ["", "k", "v", "kv"])
@pytest.mark.parametrize("n_query", [1, 9])
def test_int8_scales_of_every_broadcast_shape_stay_within_the_bound(engine, kind, n_query):
    rng = np.random.default_rng(11)
    shape = (2, 3, 100)
    key, value = (support.quantised(rng, *shape, 6)[0] for _ in range(2))
    query = support.normal(rng, 2, 6, n_query, 6)
    for scale_shape in [(), (1,), (100,), (3, 1), (3, 100), (2, 1, 1), (2, 1, 100), (2, 3, 100)]:
        scale = (0.01 + 0.02 * rng.random(scale_shape)).astype("f4")
        options = {"k_scale": scale} if "k" in kind else {}
        options |= {"v_scale": scale} if "v" in kind else {}
        given_key = key if "k" in kind else key.astype("f2")
        given_value = value if "v" in kind else value.astype("f2")
        support.check(query, given_key, given_value, **options)
