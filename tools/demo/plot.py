"""The demo's plot: what crossed from the daemon, and what the sparse path cost in quality."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen

_ADMISSION, _DECODE, _FULL = "#9db7d5", "#2f5d8c", "#8c8c8c"
_PREDICTORS = {"previous": "#c9762b", "ngram": "#2f5d8c", "oracle": "#4b9560"}


def _groups(rows: list[dict]) -> list[tuple[str, float]]:
    return sorted({(row["mode"], row["fetch_ratio"]) for row in rows})


def _label(group: tuple[str, float]) -> str:
    return f"{group[0]}\ncap {group[1]:g}"


def _bars(axes, rows, value, label_format):
    """One cluster of bars a (mode, cap), one bar a predictor."""
    groups, names = _groups(rows), [n for n in _PREDICTORS if any(r["predictor"] == n for r in rows)]
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        for at, group in enumerate(groups):
            found = [r for r in rows if (r["mode"], r["fetch_ratio"], r["predictor"]) == (*group, name)]
            if not found:
                continue
            x = at + (index - (len(names) - 1) / 2) * width
            height = value(found[0])
            axes.bar(x, height, width * 0.92, color=_PREDICTORS[name], label=name if at == 0 else None)
            axes.annotate(label_format(height), (x, max(height, 0)), (0, 2), textcoords="offset points",
                          ha="center", fontsize=6.5, color="#444444")
    axes.set_xticks(range(len(groups)), [_label(group) for group in groups])


def _bytes_panel(axes, report: dict) -> None:
    mib = 2.0**20
    rows, names = report["rows"], list(_PREDICTORS)
    groups = _groups(rows)
    width = 0.8 / len(names)
    for row in rows:
        at = groups.index((row["mode"], row["fetch_ratio"]))
        x = at + (names.index(row["predictor"]) - 1) * width
        first, later = row["admission_bytes"] / mib, row["decode_bytes"] / mib
        axes.bar(x, first, width * 0.92, color=_ADMISSION)
        axes.bar(x, later, width * 0.92, bottom=first, color=_PREDICTORS[row["predictor"]])
    full = report["full_kv_bytes"] / mib
    axes.axhline(full, color=_FULL, linestyle="--", linewidth=1.2)
    axes.text(-0.45, full, f"all of the context's KV: {full:.0f} MiB", va="bottom", fontsize=8, color="#555555")
    axes.set_ylim(0, full * 1.14)
    axes.set_xticks(range(len(groups)), [_label(group) for group in groups])
    axes.set_ylabel("MiB pulled from the daemon")
    axes.set_title("Bytes moved: admission (pale), while decoding (full colour)", fontsize=10, loc="left")


def draw(report: dict, path: Path) -> None:
    rows = report["rows"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 4.8), layout="constrained")
    _bytes_panel(left, report)
    _bars(right, rows, lambda row: row["nll_sparse"] - report["nll_full"], lambda v: f"{v:+.2f}")
    right.axhline(0, color=_FULL, linewidth=1)
    costs = [row["nll_sparse"] - report["nll_full"] for row in rows]
    right.set_ylim(min(0, min(costs)) * 1.15 - 0.005, max(0.06, max(costs) * 1.45))
    right.set_ylabel("extra nll against full attention, nats a token")
    right.set_title("Quality lost (bars), same most likely token (dots, right axis)", fontsize=10, loc="left")
    match = right.twinx()
    groups, names = _groups(rows), [n for n in _PREDICTORS if any(r["predictor"] == n for r in rows)]
    width = 0.8 / len(names)
    for row in rows:
        x = groups.index((row["mode"], row["fetch_ratio"]))
        x += (names.index(row["predictor"]) - (len(names) - 1) / 2) * width
        match.plot(x, 100 * row["token_match"], "o", color=_PREDICTORS[row["predictor"]],
                   markeredgecolor="white", markersize=6)
    match.set_ylim(0, 104)
    match.set_ylabel("% of steps with full attention's token")
    agreement = report["topk_agreement"]
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=color, label=f"{name}: {agreement[name]:.0%} of blocks foreseen")
        for name, color in _PREDICTORS.items() if name in agreement
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.suptitle(
        f"OasisKV on SmolLM2-135M: {report['context_tokens']:,} tokens of context, "
        f"{report['budget_tokens']:,} resident per KV head, {report['generated_tokens']} decoded",
        fontsize=12,
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    match.spines["top"].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
