"""The decode process: attaches the sequence and decodes with sparse attention, once for each row of
the comparison. It has the model and the tokens; it fetches the context's KV.

Started by run_demo.py; prints events (events.py).
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import oasiskv

import events
from gguf_model import load_model
from handshake import Handshake
from llama import Llama, log_softmax
from predictors import PREDICTORS
from prefill_worker import IDENTITY
from sparse import SCORES, SparseAttend, SparseConfig, geometry_of
from tokenizer import Tokenizer
from verify import EntryChecker, check_summaries


def make_working_set(backend: str, decoded: int, *arguments, **options):
    """decoded: tokens that may be appended to the context."""
    if backend == "cpu":
        return oasiskv.WorkingSet(*arguments, **options)
    from cuda_backend import CudaWorkingSet  # needs a driver

    return CudaWorkingSet(*arguments, max_new_tokens=decoded, **options)


class Session:
    """One attachment: reader, source and working set, and what it counted."""

    def __init__(self, client: oasiskv.Client, handshake: Handshake, model: Llama, config: SparseConfig, crcs,
                 backend: str):
        self._client = client
        self._before = client.stats()
        geometry, score = geometry_of(model.config), SCORES[config.score]
        self.reader = client.attach(handshake.sequence, IDENTITY, geometry)
        # The cuda backend keeps what it fetches itself, and reads over shm without a fetch.
        cache = oasiskv.HostCache.ALWAYS if backend == "cpu" else oasiskv.HostCache.NEVER
        self.source = oasiskv.Source(self.reader, host_cache=cache)
        decoded = max(len(handshake.tokens) - handshake.context_tokens, len(handshake.baseline.free_running))
        self.working_set = make_working_set(
            backend,
            decoded,
            geometry,
            model.config.query_heads,
            resident_blocks=config.budget_blocks,
            fetch_ratio=config.ratio,
            mode=oasiskv.Mode.EXACT if config.mode == "exact" else oasiskv.Mode.CAPPED,
            combine=score.combine,
            bound_weight=score.bound_weight,
        )
        self.slot = self.working_set.admit(self.source)
        self.admission_bytes = self.source.stats()["remote_bytes"]
        self.checker = EntryChecker(crcs)
        self.attend = SparseAttend(
            self.working_set, self.slot, exact=config.mode == "exact", observe=self.checker
        )

    def counts(self) -> dict:
        for layer in range(self.reader.geometry.layers):  # the last step's transfers count, too
            self.working_set.wait(layer, self.slot)
        stats, now = self.working_set.stats(), self._client.stats()
        source = self.source.stats()
        samples = stats["agreement_samples"]
        return {
            "admission_bytes": self.admission_bytes,
            "decode_bytes": source["remote_bytes"] - self.admission_bytes,
            "topk_agreement": stats["agreement_sum"] / samples if samples else None,
            "predicted": stats["predicted"],
            "hit": stats["hit"],
            "admitted": stats["admitted"],
            "demanded": stats["demanded"],
            "refused_by_cap": stats["refused_by_cap"],
            "late": stats["late"],
            "bytes_moved": stats["bytes_moved"],
            "bytes_used": stats["bytes_used"],
            "entries_fetched": source["remote_entries"],
            "entries_checked": self.checker.checked,
            **{
                name: now[name] - self._before[name]
                for name in ("grant_checks", "stale_reads", "checksums_verified", "checksum_failures")
            },
        }

    def close(self) -> None:
        self.working_set.leave(self.slot)
        self.working_set.close()
        self.source.close()
        self.reader.close()


def with_draft(tokens: list[int], position: int, predictor: str) -> list[int]:
    draft = PREDICTORS[predictor](tokens, position)
    return [tokens[position]] if draft is None else [tokens[position], draft]


def standard_error(samples: np.ndarray) -> float:
    """Of the samples' mean; 0 for one sample."""
    return float(np.std(samples, ddof=1) / len(samples) ** 0.5) if len(samples) > 1 else 0.0


def run_config(session: Session, model: Llama, handshake: Handshake, config: SparseConfig):
    """Decodes the document's own continuation (teacher-forced); returns the row, and each step's most likely
    token and nll."""
    tokens, context = handshake.tokens, handshake.context_tokens
    nll, greedy, drafted = [], [], 0
    started = time.monotonic()
    for position in range(context, len(tokens) - 1):
        rows = with_draft(tokens, position, config.predictor)
        drafted += len(rows) - 1
        logits = model.decode(rows, position, session.attend)
        nll.append(float(-log_softmax(logits)[tokens[position + 1]]))
        greedy.append(int(logits.argmax()))
    seconds = time.monotonic() - started
    extra = np.array(nll) - np.array(handshake.baseline.nll)
    return {
        "mode": config.mode,
        "fetch_ratio": config.ratio,
        "predictor": config.predictor,
        "budget_blocks": config.budget_blocks,
        "score": config.score,
        "nll_sparse": float(np.mean(nll)),
        "nll_extra": float(np.mean(extra)),
        "nll_extra_error": standard_error(extra),
        "token_match": float(np.mean(np.array(greedy) == np.array(handshake.baseline.greedy))),
        "drafted_steps": drafted,
        "ms_per_step": 1000 * seconds / len(nll),
        **session.counts(),
    }, greedy, nll


def agreement_with_cpu(ours, cpu) -> dict:
    """ours, cpu: results of run_config. Equal blocks are attended in equal order, so nlls are equal to the last bit."""
    (_, tokens, nlls), (row, cpu_tokens, cpu_nlls) = ours, cpu
    tokens_equal = sum(a == b for a, b in zip(tokens, cpu_tokens))
    nlls_equal = sum(a == b for a, b in zip(nlls, cpu_nlls))
    return {
        "same_as_cpu": tokens_equal == nlls_equal == len(tokens),
        "cpu_tokens_equal": tokens_equal,
        "cpu_nlls_equal": nlls_equal,
        "cpu_nll": row["nll_sparse"],
        "cpu_ms_per_step": row["ms_per_step"],
        "cpu_counts": {name: row[name] for name in ("predicted", "hit", "admitted", "demanded", "refused_by_cap")},
    }


def run_free(session: Session, model: Llama, handshake: Handshake, config: SparseConfig, count: int):
    """Generates `count` tokens, each fed back."""
    context = handshake.context_tokens
    tokens = handshake.tokens[: context + 1]
    for position in range(context, context + count):
        rows = with_draft(tokens, position, config.predictor)
        tokens.append(int(model.decode(rows, position, session.attend).argmax()))
    return tokens[context + 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--handshake", type=Path, required=True)
    parser.add_argument("--configs", required=True, help="JSON list of SparseConfig fields")
    parser.add_argument("--free-config", required=True, help="JSON SparseConfig fields")
    parser.add_argument("--fabric", choices=["auto", "shm", "ucx", "verbs"], default="auto")
    parser.add_argument("--verbs-device", default="")
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compare-cpu", action="store_true",
                        help="also run every row on the cpu backend, and say whether the tokens are the same")
    options = parser.parse_args()
    handshake = Handshake.read(options.handshake)
    configs = [SparseConfig(**fields) for fields in json.loads(options.configs)]
    free_config = SparseConfig(**json.loads(options.free_config))
    crcs = np.load(handshake.crc_file)

    events.emit("progress", text="loading the model")
    loaded = load_model()
    model, tokenizer = Llama(loaded), Tokenizer(loaded.tokenizer)
    fabric = options.fabric
    with oasiskv.Client(
        handshake.address, fabric, verify_checksums=True, verbs_device=options.verbs_device
    ) as client:
        events.emit("progress", text=f"connected: {client.describe()}")
        with client.attach(handshake.sequence, IDENTITY, geometry_of(model.config)) as reader:
            check_summaries(reader, crcs["summaries"])
        events.emit("progress", text="all summaries equal those of the prefill's own keys (CRC32C)")

        def in_session(config: SparseConfig, run, backend=options.backend):
            session = Session(client, handshake, model, config, crcs["entries"], backend)
            try:
                return run(session)
            finally:
                session.close()

        for config in configs:
            run = in_session(config, lambda s: run_config(s, model, handshake, config))
            row = run[0]
            if options.compare_cpu:
                cpu = in_session(config, lambda s: run_config(s, model, handshake, config), "cpu")
                row |= agreement_with_cpu(run, cpu)
            events.emit("row", row=row)
        count = len(handshake.baseline.free_running)
        free = in_session(free_config, lambda s: run_free(s, model, handshake, free_config, count))
        same = {}
        if options.compare_cpu:
            cpu = in_session(free_config, lambda s: run_free(s, model, handshake, free_config, count), "cpu")
            same["same_as_cpu"] = free == cpu
        events.emit(
            "text",
            **same,
            full=tokenizer.decode(handshake.baseline.free_running),
            sparse=tokenizer.decode(free),
            prompt=tokenizer.decode(handshake.tokens[: handshake.context_tokens + 1][-24:]),
        )
    events.emit("done")


if __name__ == "__main__":
    main()
