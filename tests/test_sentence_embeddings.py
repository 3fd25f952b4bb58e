"""A real model end to end: all-MiniLM-L6-v2 as the example computes it, against other computations.

The references share nothing with the example but the token ids and the file of weights: the
encoder in float64, one sentence at a time, and, where PyTorch is installed, in PyTorch.
"""

import importlib
import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

# On components of vectors of length 1. float32 rounding in 6 layers leaves about 3e-7.
EMBEDDING_TOLERANCE = 1e-5
# Times max(1, |x|): the remainder of the table, 3e-8, and three float32 roundings of 6e-8.
GELU_TOLERANCE = 2.1e-7

# The sentence-transformers documentation (Quickstart) prints these to four decimals.
PUBLISHED_SENTENCES = (
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
)
PUBLISHED_COSINES = ((1.0, 0.6660, 0.1046), (0.6660, 1.0, 0.1411), (0.1046, 0.1411, 1.0))
PUBLISHED_ROUNDING = 0.5e-4 + EMBEDDING_TOLERANCE

PARAPHRASES = (
    "A dog is chasing a ball across the park.",
    "A puppy runs after its toy on the grass.",
    "The central bank has raised interest rates again.",
    "Borrowing money is becoming more expensive.",
    "She plays the violin in an orchestra.",
    "A musician performs a classical concerto.",
)
VARIED = (
    *PARAPHRASES,
    "",
    "?",
    "The café's menu: crème brûlée, $7.50 (naïve <b>pricing</b>)!",
    "ΟΔΥΣΣΕΥΣ и Война и мир",
    "東京は日本の首都です。",
    "zero\u200bwidth\tand\u00a0spaces\nof every\u2003kind\x00",
    "Emoji 🙂 and " + "very" * 30 + " long words",
    "A text of several sentences goes on. " * 12,
    "The last of them is longer than the model takes, so its end is cut off. " * 20,
)

RECORDED_IDS = {
    "": "101 102",
    "A dog is chasing a ball across the park.": (
        "101 1037 3899 2003 11777 1037 3608 2408 1996 2380 1012 102"
    ),
    "The café's menu: crème brûlée, $7.50 (naïve <b>pricing</b>)!": (
        "101 1996 7668 1005 1055 12183 1024 13675 21382 7987 9307 2063 1010 1002 1021 1012 2753 "
        "1006 15743 1026 1038 1028 20874 1026 1013 1038 1028 1007 999 102"
    ),
    "embeddings": "101 7861 8270 4667 2015 102",
    "ΟΔΥΣΣΕΥΣ и мир": (
        "101 1169 29722 29735 29733 29733 29723 29735 29733 1188 1191 10325 16856 102"
    ),
    "東京は日本の首都です。": "101 1879 1755 1672 1864 1876 1671 100 1961 1665 30184 1636 102",
    "zero\u200bwidth\tand\u00a0spaces\x00\ufffd": "101 5717 9148 11927 2232 1998 7258 102",
    "x" * 100 + " " + "y" * 101: "101 22038" + " 20348" * 49 + " 100 102",
    "[CLS] a[MASK]b [sep]": "101 101 1037 103 1038 1031 19802 1033 102",
    "🙂 İstanbul ﬁne": "101 100 9960 1984 2638 102",
}


def installed(package):
    return importlib.util.find_spec(package) is not None


@pytest.fixture(scope="module")
def example():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        return importlib.import_module("sentence_embeddings")


@pytest.fixture(scope="module")
def model(example):
    if not installed(example.PACKAGE):
        pytest.skip(f"needs a model of 83 MB: {example.INSTALL}")
    return example.load_model()


@pytest.fixture(scope="module")
def tokens(example, model):
    return example.tokenise(model, VARIED)


def read_weights(path):
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    return {
        name: np.frombuffer(
            content, "<f4", math.prod(entry["shape"]), start + entry["data_offsets"][0]
        ).reshape(entry["shape"])
        for name, entry in header.items()
        if entry.get("dtype") == "F32"
    }


def plain_attention(query, key, value):
    """(H, L, D), (H, S, D), (H, S, Dv) -> (H, L, Dv), with the whole matrix of scores."""
    scores = np.einsum("hid,hjd->hij", query, key) / math.sqrt(query.shape[-1])
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,hjd->hid", scores / scores.sum(-1, keepdims=True), value)


def embed_float64(weights, ids):
    """One sentence, without padding, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items() if "word" not in name}

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def heads(x):
        return np.stack(np.split(x, 12, axis=-1))

    erf = np.vectorize(math.erf, otypes=[np.float64])
    x = weights["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(6)):
        parts = [dense(x, f"{layer}.attention.self.{part}") for part in ("query", "key", "value")]
        gathered = np.concatenate(plain_attention(*map(heads, parts)), axis=-1)
        x = x + dense(gathered, f"{layer}.attention.output.dense")
        x = norm(x, f"{layer}.attention.output.LayerNorm")
        wide = dense(x, f"{layer}.intermediate.dense")
        wide = wide * (1 + erf(wide / math.sqrt(2))) / 2
        x = norm(x + dense(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    mean = x.mean(axis=0)
    return mean / math.sqrt(mean @ mean)


def embed_torch(weights, tokens):
    """All sentences, padded, in PyTorch."""
    import torch
    from torch.nn import functional

    w = {name: torch.tensor(array) for name, array in weights.items()}
    rows = [torch.tensor(ids) for ids in tokens]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(ids.shape[1]) < lengths[:, None]

    def dense(x, name):
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x, name):
        return functional.layer_norm(x, (384,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    x = functional.embedding(ids, w["embeddings.word_embeddings.weight"])
    x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(6)):
        query, key, value = (
            dense(x, f"{layer}.attention.self.{part}").unflatten(-1, (12, 32)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        gathered = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=real[:, None, None, :]
        )
        x = x + dense(gathered.transpose(1, 2).flatten(2), f"{layer}.attention.output.dense")
        x = norm(x, f"{layer}.attention.output.LayerNorm")
        wide = functional.gelu(dense(x, f"{layer}.intermediate.dense"))
        x = norm(x + dense(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    mean = (x * real[..., None]).sum(1) / lengths[:, None]
    return functional.normalize(mean, dim=-1).numpy()


@pytest.fixture(scope="module", params=["recorded", *["tokenizers"] * installed("tokenizers")])
def known_ids(request, example, model):
    if request.param == "recorded":
        return {text: [int(i) for i in ids.split()] for text, ids in RECORDED_IDS.items()}
    from tokenizers import Tokenizer

    other = Tokenizer.from_file(str(example.model_folder() / "tokenizer.json"))
    other.no_padding()
    other.enable_truncation(256)
    return {text: other.encode(text).ids for text in (*VARIED, *RECORDED_IDS)}


@pytest.fixture(scope="module")
def references(example, tokens):
    weights = read_weights(example.model_folder() / "model.safetensors")
    found = {"float64": np.array([embed_float64(weights, ids) for ids in tokens])}
    if installed("torch"):
        found["torch"] = embed_torch(weights, tokens)
    return found


def test_embeddings_of_varied_sentences_equal_the_references(
    engine, example, model, tokens, references
):
    embeddings = example.embed_tokens(model, tokens, batch_size=4)
    assert embeddings.dtype == np.float32
    for name, reference in references.items():
        np.testing.assert_allclose(
            embeddings, reference, rtol=0, atol=EMBEDDING_TOLERANCE, err_msg=name
        )


def test_embeddings_one_at_a_time_equal_those_of_a_padded_batch(engine, example, model, tokens):
    tokens = tokens[:-1]  # the longest would pad all others to the limit, which takes a second
    alone = example.embed_tokens(model, tokens, batch_size=1)
    together = example.embed_tokens(model, tokens, batch_size=len(tokens))
    np.testing.assert_allclose(alone, together, rtol=0, atol=EMBEDDING_TOLERANCE)


def test_embeddings_with_nan_behind_the_padding_keep_their_bits(engine, example, model, tokens):
    def attend_poisoned(query, key, value, *, kv_lengths, out):
        key, value = key.copy(), value.copy()
        for row, length in enumerate(kv_lengths):
            key[row, :, length:] = value[row, :, length:] = np.nan
        example.scaled_dot_product_attention(query, key, value, kv_lengths=kv_lengths, out=out)

    short = [ids for ids in tokens if len(ids) < 40]
    poisoned = example.embed_tokens(model, short, attend=attend_poisoned)
    np.testing.assert_array_equal(poisoned, example.embed_tokens(model, short))


def test_attention_of_the_example_gets_strided_views_of_the_tokens(example, model, tokens):
    def attend(query, key, value, *, kv_lengths, out):
        n_token = int(kv_lengths.max())
        for heads in (query, key, value, out):
            assert heads.shape == (len(kv_lengths), 12, n_token, 32)
            assert heads.strides == (4 * 384 * n_token, 4 * 32, 4 * 384, 4)
        calls.append(n_token)
        example.scaled_dot_product_attention(query, key, value, kv_lengths=kv_lengths, out=out)

    calls = []
    example.embed_tokens(model, tokens[:3], attend=attend)
    assert len(calls) == model.n_layer


def test_embeddings_give_the_similarities_that_the_model_s_authors_publish(engine, example, model):
    embeddings = example.embed(model, PUBLISHED_SENTENCES)
    cosines = embeddings @ embeddings.T
    np.testing.assert_allclose(cosines, PUBLISHED_COSINES, rtol=0, atol=PUBLISHED_ROUNDING)


def test_embeddings_of_paraphrases_are_nearest_to_each_other(engine, example, model):
    embeddings = example.embed(model, PARAPHRASES)
    cosines = embeddings @ embeddings.T
    np.testing.assert_allclose(cosines.diagonal(), 1, rtol=0, atol=EMBEDDING_TOLERANCE)
    np.fill_diagonal(cosines, -1)
    assert cosines.argmax(axis=1).tolist() == [1, 0, 3, 2, 5, 4]


def test_tokenizer_gives_the_known_ids(model, known_ids):
    assert {text: model.tokenizer.encode(text, 256) for text in known_ids} == known_ids


def test_tokenizer_cuts_long_texts_and_keeps_both_ends(model, tokens):
    assert model.max_tokens == 256
    assert len(tokens[-1]) == 256
    assert (tokens[-1][0], tokens[-1][-1]) == (101, 102)


def test_gelu_equals_its_definition_to_float32_accuracy(example):
    x = np.concatenate([np.linspace(-12, 12, 100_001), [0.0, -0.0, 1e-30, 1e5, -1e5]])
    x = x.astype(np.float32)
    exact = np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()])
    error = np.abs(example.gelu(x) - exact) / np.maximum(1, np.abs(x))
    assert error.max() <= GELU_TOLERANCE


def test_main_prints_the_pairs_best_first(example, model, capsys, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(PARAPHRASES[1:3]), encoding="utf-8")
    options = ["--no-times", "--top", "2", "--file", str(tmp_path / "lines.txt")]
    assert example.main([PARAPHRASES[0], *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(PARAPHRASES[0])
    assert lines[1].strip() == PARAPHRASES[1]
    assert float(lines[0].split()[0]) > float(lines[2].split()[0])
    assert "1 less similar" in lines[-1]


def test_print_times_names_the_numpy_backend_and_the_active_engine(engine, example, model, capsys):
    example.print_times(model, example.tokenise(model, PARAPHRASES[:2]), rounds=1)
    printed = capsys.readouterr().out
    assert "numpy" in printed
    assert all(part in printed for part in engine if part)


def test_main_without_the_model_names_the_install_command(example, capsys, monkeypatch):
    monkeypatch.setattr(example.importlib.util, "find_spec", lambda name: None)
    assert example.main([]) == 1
    assert example.INSTALL in capsys.readouterr().err


def test_main_with_one_sentence_asks_for_two(example, capsys):
    with pytest.raises(SystemExit):
        example.main(["Alone."])
    assert "at least two" in capsys.readouterr().err
