"""The real model file: loads, and speaks English (which fails if rotary rows or merges are wrong)."""

import unittest

from gguf_model import ModelError, default_model_path, load_model
from llama import Llama
from run_demo import KV_TOKEN_BYTES
from tokenizer import Tokenizer

try:
    MODEL = load_model(default_model_path())
    MISSING = ""
except ModelError as error:
    MODEL, MISSING = None, str(error)


@unittest.skipIf(MODEL is None, MISSING)
class RealModel(unittest.TestCase):
    def test_shape(self):
        c = MODEL.config
        self.assertEqual((c.layers, c.query_heads, c.kv_heads, c.head_dim), (30, 9, 3, 64))
        self.assertEqual(KV_TOKEN_BYTES, c.layers * c.kv_heads * 2 * c.head_dim * 2)

    def test_tokenizer_round_trip_and_known_ids(self):
        tokenizer = Tokenizer(MODEL.tokenizer)
        text = "It's 2026 \u2014 na\u00efve caf\u00e9 \u00bd x_y \u65e5\u672c\u8a9e\n\n\n  tabs\tend  "
        self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)
        self.assertEqual(tokenizer.encode("Hello world"), [19556, 905])

    def test_it_knows_the_capital_of_france(self):
        tokenizer, model = Tokenizer(MODEL.tokenizer), Llama(MODEL)
        prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        tokens = tokenizer.encode(prompt, control=True)
        cache = model.new_cache(len(tokens) + 8)
        logits = model.prefill(tokens, cache)
        answer = []
        for position in range(len(tokens), len(tokens) + 7):
            answer.append(int(logits.argmax()))
            logits = model.decode([answer[-1]], position, cache)
        self.assertEqual(tokenizer.decode(answer), "The capital of France is Paris.")


if __name__ == "__main__":
    unittest.main()
