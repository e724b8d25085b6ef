"""Draws the fetch-cap sweep of `oasis-bench step --json` beside the published one.

    oasis-bench step --ratios=0.01,0.02,0.05,0.1,0.2,1.0 --json > sweep.json
    python3 plot.py sweep.json sweep.png
"""

import json
import sys

# Qwen3-8B, AIME24, H100 80 GB: ratio, GB a step, GB/s, tokens/s; dense 1,235 tokens/s.
PUBLISHED = [
    (0.01, 0.30, 5.0, 2178),
    (0.02, 0.60, 9.8, 2066),
    (0.05, 1.49, 23.8, 2083),
    (0.10, 2.87, 31.4, 1421),
    (0.20, 4.34, 34.0, 1035),
    (1.00, 5.05, 33.5, 824),
]
PUBLISHED_DENSE = 1235


def read(path):
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.startswith("{")]
    dense = [r for r in rows if r["kind"] == "dense"]
    sparse = sorted((r for r in rows if r["kind"] == "sparse" and r["spare"] == 0), key=lambda r: r["ratio"])
    if not dense or not sparse:
        sys.exit(f"{path}: needs a dense and a sparse line; run `oasis-bench step --ratios=... --json`")
    return max(dense, key=lambda r: r["tokens_per_second"]), sparse


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    dense, sparse = read(sys.argv[1])
    base = dense["tokens_per_second"]
    figure, (relative, rate) = pyplot.subplots(1, 2, figsize=(12, 4.6))

    ratios = [r["ratio"] for r in sparse]
    relative.errorbar(
        ratios,
        [r["tokens_per_second"] / base for r in sparse],
        yerr=[r["tokens_per_second_half_iqr"] / base for r in sparse],
        marker="o",
        label=f"measured, {sparse[0]['model']} on {sparse[0]['gpu']}",
    )
    relative.plot(
        ratios,
        [r["batch"] / (r["bound_ms"] * 1e-3) / base for r in sparse],
        linestyle="--",
        color="tab:blue",
        label="its bound: max(HBM bytes / HBM rate, link bytes / gather rate)",
    )
    relative.plot(
        [p[0] for p in PUBLISHED],
        [p[3] / PUBLISHED_DENSE for p in PUBLISHED],
        marker="s",
        color="tab:red",
        label="published, H100, 1,235 tokens/s dense",
    )
    relative.axhline(1, color="gray", linewidth=0.8)
    relative.set_xscale("log")
    relative.set_xlabel("fetch ratio")
    relative.set_ylabel(f"tokens/s over dense ({base:.0f})")
    relative.legend(fontsize=8)

    rate.plot(ratios, [r["link_gbps"] for r in sparse], marker="o", label="link GB/s, measured")
    rate.plot(ratios, [r["link_gb"] for r in sparse], marker="^", color="tab:cyan",
              label="GB a step, measured")
    rate.plot([p[0] for p in PUBLISHED], [p[2] for p in PUBLISHED], marker="s", color="tab:red",
              label="link GB/s, published")
    rate.plot([p[0] for p in PUBLISHED], [p[1] for p in PUBLISHED], marker="v", color="tab:orange",
              label="GB a step, published")
    rate.set_xscale("log")
    rate.set_xlabel("fetch ratio")
    rate.legend(fontsize=8)

    figure.suptitle(
        f"{sparse[0]['context']} tokens, {dense['hbm_bytes'] / 2**30:.0f} GiB HBM, K = "
        f"{sparse[0]['resident']}, churn {sparse[0]['churn']:.1f}; batch {sparse[0]['batch']} "
        f"against {dense['batch']} dense"
    )
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=120)


if __name__ == "__main__":
    main()
