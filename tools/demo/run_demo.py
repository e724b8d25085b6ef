"""Runs the whole service on one machine with a real model's KV: starts oasiskvd, a prefill and a decode
process, compares sparse with full attention, and writes a table, report.json and a plot.

    python tools/demo/run_demo.py --build-dir build/release
"""

import argparse
import json
import os
import subprocess
import sys
import time
from importlib import util
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import report as reporting  # noqa: E402
from daemon import Daemon, DaemonFailed  # noqa: E402
from events import Worker, WorkerFailed  # noqa: E402
from handshake import Handshake  # noqa: E402
from sparse import BLOCK_TOKENS  # noqa: E402

RATIOS = (0.05, 0.2, 1.0)
PREDICTORS = ("previous", "ngram", "oracle")
CAPPED = tuple((ratio, predictor) for ratio in RATIOS for predictor in PREDICTORS)
# Exact mode attends the same blocks whatever was predicted: its rows differ only in bytes and time, so
# each ratio and each predictor is run once.
EXACT = ((0.05, "ngram"), *((0.2, predictor) for predictor in PREDICTORS), (1.0, "ngram"))
QUICK = ((0.05, "ngram"), (0.2, "previous"))
MODEL_CONTEXT = 8192
KV_TOKEN_BYTES = 30 * 3 * 2 * 64 * 2  # layers, KV heads, K and V, head_dim, float16


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build-dir", type=Path, default=Path("build/release"),
                        help="the build folder, with bin/oasiskvd in it")
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="folder for report.json, plot.png and logs")
    parser.add_argument("--context", type=int, default=4096, help="tokens of the text; rounded down to whole blocks of 16")
    parser.add_argument("--generate", type=int, default=128, help="tokens decoded in each row of the comparison")
    parser.add_argument("--free-running", type=int, default=40, help="tokens of the text shown at the end")
    parser.add_argument("--budget", type=int, default=0,
                        help="resident tokens per KV head; 0: a quarter of the context")
    parser.add_argument("--text", type=Path, help="file with a plain or HTML text to use instead of Debian's history")
    parser.add_argument("--fabric", choices=["auto", "shm", "ucx", "verbs"], default="auto")
    parser.add_argument("--verbs-device", default="",
                        help="RDMA device of the two workers; default: the first with an active port")
    parser.add_argument("--daemon-verbs-device", default="",
                        help="RDMA device of the daemon; default: the first with an active port")
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu", help="where the working set is kept")
    parser.add_argument("--compare-cpu", action="store_true",
                        help="also run every row on the cpu backend: the tokens must be the same")
    parser.add_argument("--quick", action="store_true", help="four rows of the comparison instead of fourteen")
    options = parser.parse_args()
    options.context -= options.context % BLOCK_TOKENS
    decoded = max(options.generate, options.free_running)
    if options.generate < 1 or options.free_running < 1:
        parser.error("--generate and --free-running must be at least 1")
    if not 64 * BLOCK_TOKENS // 4 <= options.context <= MODEL_CONTEXT - decoded - 2:
        parser.error(
            f"--context {options.context}: with {decoded} tokens to decode it must be between 256 and "
            f"{MODEL_CONTEXT - decoded - 2}"
        )
    options.budget = options.budget or options.context // 4
    if not BLOCK_TOKENS <= options.budget <= options.context:
        parser.error(f"--budget {options.budget} must be between {BLOCK_TOKENS} and the context")
    return options


def configurations(options: argparse.Namespace) -> list[dict]:
    """The comparison's runs; the first has every block resident, the last uses the published score."""
    blocks = options.budget // BLOCK_TOKENS
    decoded = max(options.generate, options.free_running)
    every_block = (options.context + decoded) // BLOCK_TOKENS + 1
    rows = [dict(mode="exact", ratio=1.0, predictor="previous", budget_blocks=every_block)]
    for mode, pairs in (("capped", CAPPED), ("exact", EXACT)):
        for ratio, predictor in pairs:
            if not options.quick or (ratio, predictor) in QUICK:
                rows.append(dict(mode=mode, ratio=ratio, predictor=predictor, budget_blocks=blocks))
    rows.append(dict(mode="exact", ratio=0.2, predictor="previous", budget_blocks=blocks, score="published"))
    return rows


class BackendMissing(Exception):
    """This machine cannot run the backend that was asked for; the text says why."""


def check_backend(backend: str) -> None:
    """Raises BackendMissing, before half a minute of prefill is spent."""
    if backend != "cuda":
        return
    probe = subprocess.run([sys.executable, HERE / "cuda_backend.py"], capture_output=True, text=True)
    if probe.returncode != 0:
        raise BackendMissing(
            f"--backend=cuda cannot run here: {probe.stderr.strip()}\nIt needs an NVIDIA GPU of compute capability 9.0 "
            "(H100, H200), its driver (does nvidia-smi list the GPU?) and a library built with nvcc. Without them use "
            "--backend=cpu, the default"
        )


def beside_cpu(row: dict) -> str:
    if "same_as_cpu" not in row:
        return ""
    return "; same as on the cpu backend" if row["same_as_cpu"] else "; NOT the same as on the cpu backend"


def draw_plot(report: dict, path: Path) -> str:
    """Draws the plot; returns its path, or why there is none."""
    if not util.find_spec("matplotlib"):
        path.unlink(missing_ok=True)  # of an earlier run
        return "none, since matplotlib is not installed (see tools/demo/requirements.txt)"
    import plot

    plot.draw(report, path)
    return str(path)


def run(options: argparse.Namespace) -> int:
    check_backend(options.backend)
    started = time.monotonic()
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)

    def say(who: str, text: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {who}: {text}", flush=True)

    configs = configurations(options)
    blocks = options.budget // BLOCK_TOKENS
    free = dict(mode="exact", ratio=0.2, predictor="ngram", budget_blocks=blocks)
    kv_bytes = options.context * KV_TOKEN_BYTES
    handshake_file = output / "handshake.json"
    handshake_file.unlink(missing_ok=True)
    workers: list[Worker] = []
    verbs = options.fabric == "verbs"  # only when asked for, since it needs a device
    flags = ["--fabrics=verbs", f"--verbs_device={options.daemon_verbs_device}"] if verbs else []
    over = ["--fabric", options.fabric, "--verbs-device", options.verbs_device]
    with Daemon(options.build_dir / "bin" / "oasiskvd", output, 2 * kv_bytes, flags) as daemon:
        say("daemon", f"oasiskvd serves at {daemon.address}, pool {daemon.pool_bytes >> 20} MiB")
        try:
            prefill = Worker(
                "the prefill worker",
                [
                    str(HERE / "prefill_worker.py"), "--address", daemon.address,
                    "--sequence", f"demo-{os.getpid()}", "--context", str(options.context),
                    "--generate", str(options.generate), "--free-running", str(options.free_running),
                    "--top-k", str(blocks), "--handshake", str(handshake_file),
                    *(["--text", str(options.text)] if options.text else []),
                    *(over if verbs else []),
                ],
                output / "prefill.log",
            )
            workers.append(prefill)
            for event in prefill.events("ready"):
                if event["event"] == "progress":
                    say("prefill", event["text"])
            handshake = Handshake.read(handshake_file)
            decode = Worker(
                "the decode worker",
                [
                    str(HERE / "decode_worker.py"), "--handshake", str(handshake_file),
                    "--configs", json.dumps(configs), "--free-config", json.dumps(free),
                    *over, "--backend", options.backend, *(["--compare-cpu"] if options.compare_cpu else []),
                ],
                output / "decode.log",
            )
            workers.append(decode)
            rows, text = [], {}
            for event in decode.events("done"):
                if event["event"] == "progress":
                    say("decode", event["text"])
                elif event["event"] == "row":
                    row = event["row"]
                    rows.append(row)
                    say(
                        "decode",
                        f"{len(rows)}/{len(configs)} {row['mode']} cap {row['fetch_ratio']:g} "
                        f"{row['predictor']}, {row['budget_blocks']} blocks, {row['score']} score: nll {row['nll_sparse']:.3f}, "
                        f"{row['ms_per_step']:.0f} ms per step{beside_cpu(row)}",
                    )
                elif event["event"] == "text":
                    text = {key: value for key, value in event.items() if key != "event"}
            decode.finish()
            prefill.finish()
        finally:
            for worker in workers:
                worker.kill()
    report = reporting.build(
        handshake, rows[1:-1], backend=options.backend, everything=rows[0], published=rows[-1], text=text,
        kv_token_bytes=KV_TOKEN_BYTES, seconds=time.monotonic() - started,
    )
    reporting.write(report, output / "report.json")
    plot = draw_plot(report, output / "plot.png")
    print()
    print(reporting.table(report))
    print(f"\nReport: {output / 'report.json'}   Plot: {plot}   ({report['seconds']:.0f} s)")
    return 0 if all(good for _, good in reporting.checks(report)) else 1


def main() -> int:
    options = parse()
    try:
        return run(options)
    except (BackendMissing, DaemonFailed, WorkerFailed) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
