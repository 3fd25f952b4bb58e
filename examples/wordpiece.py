"""The tokenizer of BERT, in pure Python: text to the numbers of the pieces of its words.

    "The café's closed."  ->  the cafe ' s closed .  ->  101 1996 7668 1005 1055 2701 1012 102

The text is normalised (control characters, accents and capitals go), split into words at spaces
and around punctuation, and each word is cut from the left into the longest pieces that the
vocabulary has. A piece that continues a word is marked: embeddings = em ##bed ##ding ##s. All
stands between [CLS], 101, and [SEP], 102.

References
----------
Devlin et al., "BERT", arXiv:1810.04805, and its tokenization.py.
Song et al., "Fast WordPiece Tokenization", arXiv:2012.15524 (the longest-match rule).
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

CJK_IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)


def is_dropped(char: str) -> bool:
    """Control, format, private-use and surrogate characters, and the replacement character."""
    if char in "\t\n\r":
        return False
    return char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs")


def is_punctuation(char: str) -> bool:
    """Unicode punctuation, and every ASCII symbol ($, +, <, ... as well)."""
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")


def normalise(text: str) -> str:
    """BERT's normalisation: clean, space out ideographs, strip accents, lower-case."""
    text = "".join(" " if char.isspace() else char for char in text if not is_dropped(char))
    text = CJK_IDEOGRAPH.sub(r" \g<0> ", text)  # languages without spaces: one word each
    text = unicodedata.normalize("NFD", text)  # é becomes e and a combining accent
    # One character at a time: str.lower of a whole word would treat a final sigma differently.
    return "".join(char.lower() for char in text if unicodedata.category(char) != "Mn")


@dataclass(frozen=True)
class WordPiece:
    """BERT's tokenizer: words cut greedily into the longest pieces of a vocabulary."""

    vocabulary: dict[str, int]
    special: tuple[str, ...]  # "[CLS]" and its like, recognised in the text as they stand
    max_word: int  # a longer word is unknown

    @classmethod
    def read(cls, path: Path) -> WordPiece:
        """Read the vocabulary of a tokenizer.json."""
        content = json.loads(path.read_text("utf-8"))
        return cls(
            vocabulary=content["model"]["vocab"],
            special=tuple(token["content"] for token in content["added_tokens"]),
            max_word=content["model"]["max_input_chars_per_word"],
        )

    def encode(self, text: str, max_tokens: int) -> list[int]:
        """Token ids of a text between [CLS] and [SEP], at most ``max_tokens`` in all."""
        pieces: list[int] = []
        pattern = "|".join(re.escape(token) for token in self.special)
        for part in re.split(f"({pattern})", text):
            if part in self.special:
                pieces.append(self.vocabulary[part])
                continue
            spaced = (f" {c} " if is_punctuation(c) else c for c in normalise(part))
            for word in "".join(spaced).split():
                pieces.extend(self.cut(word))
        return [self.vocabulary["[CLS]"], *pieces[: max_tokens - 2], self.vocabulary["[SEP]"]]

    def cut(self, word: str) -> list[int]:
        """Ids of the pieces of one word, [UNK] if it cannot be made of pieces."""
        unknown = [self.vocabulary["[UNK]"]]
        if len(word) > self.max_word:
            return unknown
        pieces: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""  # marks a piece that continues a word
            for end in range(len(word), start, -1):
                piece = self.vocabulary.get(prefix + word[start:end])
                if piece is not None:
                    break
            else:
                return unknown
            pieces.append(piece)
            start = end
        return pieces
