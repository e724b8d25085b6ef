"""Byte-level BPE from the vocabulary and merges that the GGUF file carries.

SmolLM2's pre-tokenizer first puts every digit on its own, then splits the rest as GPT-2 does
(contractions, words with their leading space, punctuation, white space). Each piece is written in
GPT-2's printable alphabet of 256 characters, one per byte, and merged by rank.
"""

import re
import unicodedata
from functools import lru_cache

from gguf_model import TokenizerData

_CONTROL = 3  # GGUF's token type of <|im_start|> and similar tokens

# No digit reaches this expression, so `[^\W_]` is exactly the letters.
_PIECES = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself if it is printable Latin-1, else one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet, spare = [], 0x100
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(spare))
            spare += 1
    return alphabet


def split_pieces(text: str) -> list[str]:
    """The pre-tokenizer: pieces within which merges may happen."""
    pieces: list[str] = []
    start = 0
    for index, character in enumerate(text):
        if unicodedata.category(character)[0] == "N":
            pieces += _PIECES.findall(text[start:index])
            pieces.append(character)
            start = index + 1
    pieces += _PIECES.findall(text[start:])
    return pieces


class Tokenizer:
    """Thread contract: none; the merge cache is filled by encode()."""

    def __init__(self, data: TokenizerData):
        self._tokens = data.tokens
        self._ids = {token: index for index, token in enumerate(data.tokens)}
        self._ranks = {
            tuple(merge.split(" ")): rank for rank, merge in enumerate(data.merges)
        }
        self._control = {
            token: index
            for index, (token, kind) in enumerate(zip(data.tokens, data.token_types))
            if kind == _CONTROL
        }
        longest_first = sorted(self._control, key=len, reverse=True)
        self._control_split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._alphabet = byte_alphabet()
        self._bytes = {character: byte for byte, character in enumerate(self._alphabet)}
        self.bos, self.eos = data.bos, data.eos
        self._merge = lru_cache(maxsize=1 << 16)(self._merge_piece)

    def encode(self, text: str, control: bool = False) -> list[int]:
        """Token ids of `text`; with `control`, spelled-out control tokens become their ids."""
        if not control or not self._control:
            return self._encode_plain(text)
        ids: list[int] = []
        for part in self._control_split.split(text):
            if part in self._control:
                ids.append(self._control[part])
            elif part:
                ids += self._encode_plain(part)
        return ids

    def decode(self, ids) -> str:
        """Text of `ids`; bytes that do not form UTF-8 (a token may end inside one) are replaced."""
        out = bytearray()
        for token_id in ids:
            token = self._tokens[token_id]
            if token in self._control:
                out += token.encode()
            else:
                out += bytes(self._bytes[character] for character in token)
        return out.decode("utf-8", errors="replace")

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in split_pieces(text):
            ids += self._merge("".join(self._alphabet[byte] for byte in piece.encode()))
        return ids

    def _merge_piece(self, piece: str) -> tuple[int, ...]:
        parts = list(piece)
        while len(parts) > 1:
            ranked = [
                (rank, index)
                for index, pair in enumerate(zip(parts, parts[1:]))
                if (rank := self._ranks.get(pair)) is not None
            ]
            if not ranked:
                break
            _, index = min(ranked)
            parts[index : index + 2] = [parts[index] + parts[index + 1]]
        return tuple(self._ids[part] for part in parts)
