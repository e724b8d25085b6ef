"""The demo's plot: bytes pulled from the daemon, and the quality lost by the sparse path."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen

from report import NLL_LIMIT  # noqa: E402

_MIB = 2.0**20
_PREDICTORS = {"previous": "#c9762b", "ngram": "#2f5d8c", "oracle": "#4b9560"}
_ADMISSION = "#ccd1d9"
_MUTED = "#666666"


class _Clusters:
    """One cluster of bars per (mode, cap), with one bar per predictor; not every mode has all predictors."""

    def __init__(self, rows: list[dict]):
        self.rows = rows
        self._groups = sorted({(row["mode"], row["fetch_ratio"]) for row in rows})
        self._present = {
            group: [name for name in _PREDICTORS
                    if any((row["mode"], row["fetch_ratio"], row["predictor"]) == (*group, name) for row in rows)]
            for group in self._groups
        }
        self.width = 0.84 / max(len(names) for names in self._present.values())

    def x(self, row: dict) -> float:
        group = (row["mode"], row["fetch_ratio"])
        names = self._present[group]
        offset = names.index(row["predictor"]) - (len(names) - 1) / 2
        return self._groups.index(group) + offset * self.width

    def dress(self, axes, label: bool) -> None:
        names = [f"{mode}\ncap {ratio:g}" if label else "" for mode, ratio in self._groups]
        axes.set_xticks(range(len(names)), names)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.55, len(names) - 0.45)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)

    def bars(self, axes, value, text, bottom=None, color=None) -> None:
        for row in self.rows:
            height, base = value(row), bottom(row) if bottom else 0
            axes.bar(self.x(row), height, self.width * 0.92, base,
                     color=color or _PREDICTORS[row["predictor"]])
            if text:
                axes.annotate(text(row), (self.x(row), base + max(height, 0)), (0, 2),
                              textcoords="offset points", ha="center", fontsize=6.5, color=_MUTED)


def _bytes_panel(axes, clusters: _Clusters, report: dict) -> None:
    full = report["full_kv_bytes"] / _MIB
    admission = lambda row: row["admission_bytes"] / _MIB  # noqa: E731
    decode = lambda row: row["decode_bytes"] / _MIB  # noqa: E731
    clusters.bars(axes, admission, None, color=_ADMISSION)
    clusters.bars(axes, decode, lambda row: f"{admission(row) + decode(row):.0f}", bottom=admission)
    axes.axhline(full, color=_MUTED, linestyle="--", linewidth=1.2)
    axes.annotate(f"full KV of the context: {full:.0f} MiB", (-0.5, full), (0, 3),
                  textcoords="offset points", fontsize=9, color=_MUTED)
    axes.set_ylim(0, full * 1.12)
    axes.set_ylabel("MiB pulled from the daemon")
    axes.set_title("Bytes moved: grey at admission, in colour while decoding", fontsize=10, loc="left")
    clusters.dress(axes, label=True)


def _cost_panel(axes, clusters: _Clusters, report: dict) -> None:
    cost = lambda row: row["nll_extra"]  # noqa: E731
    clusters.bars(axes, cost, None)
    high, low = 0.06, 0.0
    for row in clusters.rows:
        x, error = clusters.x(row), row["nll_extra_error"]
        axes.errorbar(x, cost(row), error, color=_MUTED, linewidth=0.8, capsize=1.5)
        axes.annotate(f"{cost(row):+.2f}".replace("0.", "."), (x, 0.02), xycoords=("data", "axes fraction"), ha="center",
                      fontsize=6.5, color=_MUTED)
        high, low = max(high, cost(row) + error), min(low, cost(row) - error)
    published = report["published_score"]["nll_extra"]
    for value, name in ((published, "exact with the\npublished score"), (NLL_LIMIT, "limit of\nexact mode")):
        axes.axhline(value, color=_MUTED, linestyle=":", linewidth=1)
        axes.annotate(name, (1, value), (4, 0), xycoords=("axes fraction", "data"),
                      textcoords="offset points", va="center", fontsize=7.5, color=_MUTED)
    axes.axhline(0, color=_MUTED, linewidth=1)
    high = max(high, published) * 1.1
    axes.set_ylim(low - 0.1 * (high - low), high)  # room for the row of figures at the bottom
    axes.set_ylabel("extra nll, nats per token")
    axes.set_title("Quality lost against full attention, with standard errors (lower is better)", fontsize=10, loc="left")
    clusters.dress(axes, label=False)


def _match_panel(axes, clusters: _Clusters) -> None:
    match = lambda row: 100 * row["token_match"]  # noqa: E731
    clusters.bars(axes, match, lambda row: f"{match(row):.0f}")
    axes.set_ylim(0, 112)
    axes.set_ylabel("% of steps")
    axes.set_title("Steps with the same most likely token as full attention", fontsize=10, loc="left")
    clusters.dress(axes, label=True)


def draw(report: dict, path: Path) -> None:
    clusters = _Clusters(report["rows"])
    figure, panels = plt.subplot_mosaic(
        [["bytes", "cost"], ["bytes", "match"]], figsize=(13, 5.8), layout="constrained",
        height_ratios=[3, 2], width_ratios=[5, 6],
    )
    _bytes_panel(panels["bytes"], clusters, report)
    _cost_panel(panels["cost"], clusters, report)
    _match_panel(panels["match"], clusters)
    agreement = report["topk_agreement"]
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=color, label=f"{name} ({agreement[name]:.0%} of blocks predicted)")
        for name, color in _PREDICTORS.items() if name in agreement
    ]
    figure.legend(handles=handles, title="predictor of the next step", loc="outside lower center", ncols=3,
                  fontsize=9, title_fontsize=9, frameon=False)
    figure.suptitle(
        f"SmolLM2-135M on {report['context_tokens']:,} tokens of real text: "
        f"{report['budget_tokens']:,} tokens resident per KV head, {report['generated_tokens']} decoded",
        fontsize=12,
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)
