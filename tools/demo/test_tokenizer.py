import unittest

from gguf_model import TokenizerData
from tokenizer import Tokenizer, byte_alphabet, split_pieces


def tiny() -> Tokenizer:
    """All bytes, a few merges, one control token."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w"]
    tokens = ["<|end|>", *byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    kinds = [3] + [1] * (len(tokens) - 1)
    return Tokenizer(TokenizerData(tokens, kinds, merges, bos=0, eos=0))


class SplitPieces(unittest.TestCase):
    def test_digits_stand_alone_and_words_take_their_space(self):
        self.assertEqual(split_pieces("In 1993, it's"), ["In", " ", "1", "9", "9", "3", ",", " it", "'s"])

    def test_white_space_leaves_one_space_to_the_next_word(self):
        self.assertEqual(split_pieces("a   b\n\nc"), ["a", "  ", " b", "\n", "\n", "c"])

    def test_nothing_is_lost(self):
        for text in ("naïve café ½ x_y 日本語\t\t end ", "--(1)--", "'", "\u00a0x", "e\u0301"):
            self.assertEqual("".join(split_pieces(text)), text)


class Merging(unittest.TestCase):
    def test_merges_go_by_rank(self):
        tokenizer = tiny()
        self.assertEqual([tokenizer.decode([i]) for i in tokenizer.encode("hello world")],
                         ["hello", " w", "o", "r", "l", "d"])

    def test_round_trip(self):
        tokenizer = tiny()
        for text in ("", "hello hell 42", "naïve ½ 日本語 \U0001f427\n", "\x00\x7f\u0100"):
            self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)

    def test_control_tokens_only_where_allowed(self):
        tokenizer = tiny()
        self.assertEqual(tokenizer.encode("hello<|end|>", control=True), [tokenizer.encode("hello")[0], 0])
        self.assertNotIn(0, tokenizer.encode("hello<|end|>"))

    def test_half_a_character_is_replaced(self):
        tokenizer = tiny()
        self.assertEqual(tokenizer.decode(tokenizer.encode("é")[:1]), "\ufffd")


if __name__ == "__main__":
    unittest.main()
