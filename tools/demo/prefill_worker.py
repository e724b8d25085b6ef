"""The prefill process: computes a document's KV, puts it into oasiskvd, and runs the baseline.

Started by run_demo.py; prints events (events.py) and keeps the sequence until its stdin ends.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import oasiskv

import events
from attention import FullAttention
from gguf_model import load_model
from handshake import Baseline, Handshake
from llama import Llama, log_softmax
from prose import TextError, load_prose
from sparse import BLOCK_TOKENS, SCORES, geometry_of
from tokenizer import Tokenizer
from verify import entry_crcs, summary_crcs

IDENTITY = oasiskv.Identity(model="SmolLM2-135M-Instruct", revision="Q4_1")
CHUNK = 512  # tokens of one prefill step; whole blocks


def document_tokens(tokenizer: Tokenizer, text: str, wanted: int) -> list[int]:
    tokens = tokenizer.encode(text)
    if len(tokens) < wanted:
        raise TextError(
            f"the text has {len(tokens)} tokens, but context and continuation need {wanted}; lower --context or name "
            "a longer text with --text"
        )
    return tokens[:wanted]


def store(producer: oasiskv.Producer, cache: FullAttention, first: int, last: int) -> None:
    """Writes and publishes the tokens [first, last) of every layer."""
    for layer in range(producer.geometry.layers):
        keys = cache.keys[layer, :, first:last].swapaxes(0, 1)
        values = cache.values[layer, :, first:last].swapaxes(0, 1)
        producer.write_tokens(layer, first, keys, values)
    producer.commit_written()


def first_queries(model: Llama, cache: FullAttention, token: int, position: int) -> np.ndarray:
    """The queries, [layers, heads, head_dim], of one decode step over the full KV, which is undone after it:
    from them the first top-K is chosen."""
    queries = []

    def attend(layer, q, k_new, v_new):
        queries.append(q[0].copy())
        return cache(layer, q, k_new, v_new)

    model.decode([token], position, attend)
    cache.truncate(position)
    return np.stack(queries)


def teacher_forced(model: Llama, attend, tokens: list[int], context: int) -> tuple[list, list]:
    nll, greedy = [], []
    for position in range(context, len(tokens) - 1):
        logits = model.decode([tokens[position]], position, attend)
        nll.append(float(-log_softmax(logits)[tokens[position + 1]]))
        greedy.append(int(logits.argmax()))
    return nll, greedy


def free_running(model: Llama, cache: FullAttention, token: int, context: int, count: int):
    generated = []
    for step in range(count):
        token = int(model.decode([token], context + step, cache).argmax())
        generated.append(token)
    cache.truncate(context)
    return generated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--sequence", required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--generate", type=int, required=True)
    parser.add_argument("--free-running", type=int, required=True)
    parser.add_argument("--top-k", type=int, required=True)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--fabric", choices=["auto", "shm", "ucx", "verbs"], default="auto")
    parser.add_argument("--verbs-device", default="")
    parser.add_argument("--handshake", type=Path, required=True)
    options = parser.parse_args()
    context = options.context

    events.emit("progress", text="loading the model (SmolLM2-135M-Instruct, Q4_1 -> float32)")
    loaded = load_model()
    model = Llama(loaded)
    tokens = document_tokens(
        Tokenizer(loaded.tokenizer), load_prose(options.text), context + options.generate + 1
    )
    cache = model.new_cache(context + max(options.generate, options.free_running) + 1)

    client = oasiskv.Client(
        options.address, options.fabric, verbs_device=options.verbs_device
    )
    events.emit("progress", text=f"connected: {client.describe()}")
    geometry = geometry_of(loaded.config)
    producer = client.open(
        options.sequence, IDENTITY, geometry, blocks=context // BLOCK_TOKENS, checksums=True
    )
    prefill_seconds = store_seconds = 0.0
    for first in range(0, context, CHUNK):
        last = min(first + CHUNK, context)
        started = time.monotonic()
        model.prefill(tokens[first:last], cache)
        stored = time.monotonic()
        store(producer, cache, first, last)
        prefill_seconds += stored - started
        store_seconds += time.monotonic() - stored
        events.emit("progress", text=f"prefill: {last} of {context} tokens computed and stored")
    queries = first_queries(model, cache, tokens[context], context)
    score = SCORES["normalized"]
    producer.seal(
        context, first_queries=queries, top_k=options.top_k, combine=score.combine, bound_weight=score.bound_weight
    )
    events.emit(
        "progress",
        text=f"sealed, with the first step's top-K; {prefill_seconds:.1f} s of computing, "
        f"{store_seconds:.1f} s of storing",
    )

    crc_file = options.handshake.with_name("crc.npz")
    keys, values = cache.keys[:, :, :context], cache.values[:, :, :context]
    np.savez(
        crc_file,
        entries=entry_crcs(keys, values, BLOCK_TOKENS),
        summaries=summary_crcs(keys, BLOCK_TOKENS),
    )
    events.emit("progress", text="baseline: full attention over the same tokens")
    free = free_running(model, cache, tokens[context], context, options.free_running)
    nll, greedy = teacher_forced(model, cache, tokens, context)
    Handshake(
        address=options.address,
        sequence=options.sequence,
        context_tokens=context,
        tokens=tokens,
        crc_file=str(crc_file),
        prefill_seconds=prefill_seconds,
        store_seconds=store_seconds,
        baseline=Baseline(nll=nll, greedy=greedy, free_running=free),
    ).write(options.handshake)
    events.emit("ready")

    events.wait_until_unwanted()
    client.release_sequence(options.sequence, IDENTITY)
    producer.close()
    client.close()


if __name__ == "__main__":
    main()
