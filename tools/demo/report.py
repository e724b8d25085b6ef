"""Makes report.json and a table for the terminal from the rows of the comparison."""

import json
import os
from pathlib import Path

import numpy as np

from handshake import Handshake
from sparse import BLOCK_TOKENS

HEADLINE = ("capped", 0.05, "ngram")  # the row whose figures are at the top of report.json
NLL_LIMIT = 0.05  # what exact mode may cost against full attention


def find(rows: list[dict], mode: str, ratio: float, predictor: str) -> dict | None:
    for row in rows:
        if (row["mode"], row["fetch_ratio"], row["predictor"]) == (mode, ratio, predictor):
            return row
    return None


def build(handshake: Handshake, rows: list[dict], *, backend: str, everything: dict, published: dict, text: dict,
          kv_token_bytes: int, seconds: float) -> dict:
    """rows: the comparison. everything: the run whose K covers all blocks. published: the run with the
    paper's score."""
    headline = find(rows, *HEADLINE) or rows[0]
    agreement = {}
    for predictor in {row["predictor"]: None for row in rows}:
        samples = [row["topk_agreement"] for row in rows if row["predictor"] == predictor]
        agreement[predictor] = float(np.mean(samples))
    every = [*rows, everything, published]
    return {
        "backend": backend,
        "context_tokens": handshake.context_tokens,
        "generated_tokens": len(handshake.baseline.nll),
        "budget_tokens": headline["budget_blocks"] * BLOCK_TOKENS,
        "fetch_ratio": headline["fetch_ratio"],
        "full_kv_bytes": handshake.context_tokens * kv_token_bytes,
        "admission_bytes": headline["admission_bytes"],
        "decode_bytes": headline["decode_bytes"],
        "topk_agreement": agreement,
        "token_match": headline["token_match"],
        "nll_full": float(np.mean(handshake.baseline.nll)),
        "nll_sparse": headline["nll_sparse"],
        "grant_checks": sum(row["grant_checks"] for row in every),
        "stale_reads": sum(row["stale_reads"] for row in every),
        "entries_fetched": sum(row["entries_fetched"] for row in every),
        "entries_checked": sum(row["entries_checked"] for row in every),
        "checksums_verified": sum(row["checksums_verified"] for row in every),
        "checksum_failures": sum(row["checksum_failures"] for row in every),
        "headline": {"mode": headline["mode"], "predictor": headline["predictor"]},
        "rows": rows,
        "all_blocks": everything,
        "published_score": published,
        "text": text,
        "prefill_seconds": handshake.prefill_seconds,
        "store_seconds": handshake.store_seconds,
        "seconds": seconds,
    }


def checks(report: dict) -> list[tuple[str, bool]]:
    """What the run must show, and whether it did."""
    exact = [row["nll_extra"] for row in report["rows"] if row["mode"] == "exact"]
    found = [
        ("with every block resident each token is the same as with full attention",
         report["all_blocks"]["token_match"] == 1.0),
        ("no read was stale", report["stale_reads"] == 0),
        ("every fetched entry has the bytes that the prefill wrote (CRC32C)",
         report["checksum_failures"] == 0 and report["checksums_verified"] == report["entries_fetched"]
         and report["entries_checked"] > 0),
    ]
    compared = [row["same_as_cpu"] for row in [*_every(report), report["text"]] if "same_as_cpu" in row]
    if compared:
        found.append(("every row has the tokens and nlls of the cpu backend, and so has the text", all(compared)))
    if exact:
        found.append(
            (f"exact mode costs at most {NLL_LIMIT} nats per token (it costs {max(exact):+.3f})",
             max(exact) <= NLL_LIMIT)
        )
    return found


def _every(report: dict) -> list[dict]:
    return [report["all_blocks"], *report["rows"], report["published_score"]]


def write(report: dict, path: Path) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(report, indent=2) + "\n")
    os.replace(beside, path)


def size(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"


_COLUMNS = (
    ("mode", 7), ("cap", 5), ("predictor", 10), ("predicted", 11), ("pulled first", 13),
    ("pulled later", 13), ("of full KV", 11), ("nll", 7), ("cost", 14), ("same token", 11), ("ms/step", 8),
)

_LEGEND = """\
  mode         exact: attention always reads the true top blocks; capped: it reads older blocks in place of those
               that the cap did not let in
  cap          share of a head's resident blocks that may change in one step (a limit in capped mode only)
  predictor    the query that predicts the next step: ngram drafts the next token from the text so far, previous
               takes the current query, oracle drafts the true next token (the upper bound)
  predicted    share of the next step's true top blocks that were in the prediction
  pulled       bytes from the daemon: first at admission (summaries and the first working set), later while decoding
  nll, cost    negative log-likelihood of the document's own next tokens, in nats (lower is better), and how much
               more that is than with full attention (mean over the steps and its standard error)
  same token   share of steps with the same most likely token as full attention"""


def _line(row: dict, report: dict) -> str:
    pulled = row["admission_bytes"] + row["decode_bytes"]
    agreement = row["topk_agreement"]
    cells = (
        row["mode"], f"{row['fetch_ratio']:g}", row["predictor"],
        "-" if agreement is None else f"{agreement:.1%}",
        size(row["admission_bytes"]), size(row["decode_bytes"]), f"{pulled / report['full_kv_bytes']:.0%}",
        f"{row['nll_sparse']:.3f}", f"{round(row['nll_extra'], 3) + 0.0:+.3f}±{row['nll_extra_error']:.3f}",
        f"{row['token_match']:.1%}", f"{row['ms_per_step']:.0f}",
    )
    return "  " + "".join(f"{cell:<{width}}" for cell, (_, width) in zip(cells, _COLUMNS))


def _read_by_gpu(report: dict) -> list[str]:
    """Bytes that are not in the table: over shm the GPU reads the daemon's memory itself."""
    if report["backend"] != "cuda":
        return []
    moved = sum(row["bytes_moved"] for row in _every(report))
    return [f"The GPU moved {size(moved)} into its pages while decoding, all rows together. It also checks the grant words "
            "after its own reads; these checks are not counted, and the run ends if one finds a change."]


def _beside_cpu(report: dict) -> list[str]:
    rows = [row for row in _every(report) if "same_as_cpu" in row]
    if not rows:
        return []
    lines = ["", "The same rows on the cpu backend, in the table's order, with all blocks and the published score last:"]
    for row in [*rows[1:-1], rows[0], rows[-1]]:
        steps, counts = report["generated_tokens"], row["cpu_counts"]
        differ = [name for name in counts if counts[name] != row[name]]
        lines.append(
            f"  {row['mode']:<7}{row['fetch_ratio']:<5g}{row['predictor']:<10}{row['cpu_tokens_equal']} of {steps} tokens "
            f"equal, {row['cpu_nlls_equal']} of {steps} nlls to the last bit; counts "
            f"{'equal' if not differ else 'differ in ' + ', '.join(differ)}; {row['cpu_ms_per_step']:.0f} ms per step"
        )
    return lines


def table(report: dict) -> str:
    budget, context = report["budget_tokens"], report["context_tokens"]
    lines = [
        f"Context: {context:,} tokens of real text, KV {size(report['full_kv_bytes'])} in float16. Decoded: "
        f"{report['generated_tokens']} tokens.",
        f"Each KV head keeps {budget:,} tokens ({budget / context:.0%} of the context) resident. "
        f"Full attention: nll {report['nll_full']:.3f}.",
        "",
        "  " + "".join(f"{name:<{width}}" for name, width in _COLUMNS),
        *(_line(row, report) for row in report["rows"]),
        "  and with every block resident:",
        _line(report["all_blocks"], report),
        "  for reference, with the published score instead of the demo's (README.md says how that was chosen):",
        _line(report["published_score"], report),
        "",
        _LEGEND,
        "",
        f"After reads the grant word was checked {report['grant_checks']:,} times; {report['stale_reads']} checks found it "
        f"changed. {report['entries_checked']:,} entries were compared with the prefill's own copy.",
        *_read_by_gpu(report),
        *_beside_cpu(report),
        "",
        f"Generated freely after: ...{report['text']['prompt']!r}",
        f"  full attention: {report['text']['full']!r}",
        f"  sparse (exact): {report['text']['sparse']!r}",
        "",
        *(f"[{'ok' if good else 'NOT MET'}] {what}" for what, good in checks(report)),
    ]
    return "\n".join(lines)
