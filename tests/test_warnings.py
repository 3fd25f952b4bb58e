"""The warning of two alignments, and silence elsewhere; test_new_user.py has the other one."""

import numpy as np
import pytest
import support

from fast_attention import scaled_dot_product_attention

DEPENDENT = {
    "causal": {"is_causal": True},
    "window": {"window": 2},
    "left": {"window": (2, None)},
    "right": {"window": (-1, 2)},
    "alibi": {"alibi_slopes": [0.5]},
    "causal with a mask": {"is_causal": True, "attn_mask": np.ones((3, 5), bool)},
    "causal with lengths": {"is_causal": True, "kv_lengths": 3},
}
INDEPENDENT = {
    "nothing": {},
    "open window": {"window": (None, None)},
    "open window as -1": {"window": -1},
    "mask": {"attn_mask": np.ones((3, 5), bool)},
    "lengths": {"kv_lengths": 3},
    "softcap": {"softcap": 1.0},
}


@pytest.mark.parametrize("options", DEPENDENT.values(), ids=DEPENDENT)
def test_lengths_that_differ_without_an_offset_warn_of_both_alignments(engine, options):
    with pytest.warns(UserWarning, match="query_offset") as caught:
        output = scaled_dot_product_attention(*support.qkv(1), **options)
    assert len(caught) == 1
    assert caught[0].category is UserWarning
    assert caught[0].filename == __file__
    text = str(caught[0].message)
    for word in ("top-left", "bottom-right", '"end"', "3", "5"):
        assert word in text.replace("'", '"').lower()
    explicit = scaled_dot_product_attention(*support.qkv(1), **options, query_offset=0)
    support.assert_same_bits(output, explicit)


@pytest.mark.parametrize("offset", [0, 2, -1, "end"])
@pytest.mark.parametrize("options", DEPENDENT.values(), ids=DEPENDENT)
def test_given_offset_does_not_warn(engine, options, offset):
    support.check(*support.qkv(2), **options, query_offset=offset)


@pytest.mark.parametrize("options", INDEPENDENT.values(), ids=INDEPENDENT)
def test_options_that_do_not_depend_on_the_alignment_do_not_warn(engine, options):
    support.check(*support.qkv(3), **options)


@pytest.mark.parametrize("options", [DEPENDENT["causal"], DEPENDENT["window"], DEPENDENT["alibi"]])
def test_equal_lengths_do_not_warn(engine, options):
    support.check(*support.qkv(4, n_query=5), **options)


@pytest.mark.filterwarnings("error")
def test_warning_as_error_leaves_out_alone(engine):
    query, key, value = support.qkv(5)
    out = np.full(query.shape, 7, "f4")
    with pytest.raises(UserWarning, match="query_offset"):
        scaled_dot_product_attention(query, key, value, is_causal=True, out=out)
    assert (out == 7).all()
