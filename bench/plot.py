"""Draws results/latest.json: one row per workload, a dot per thread count, a line where both are equal."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RESULTS = Path(__file__).parent / "results"
# Okabe and Ito's palette; shapes differ too, for print without colour.
LOOKS = [("#0072B2", "o"), ("#D55E00", "D"), ("#009E73", "s"), ("#CC79A7", "^")]


def draw(report):
    results = report["results"]
    names = list(dict.fromkeys(entry["workload"] for entry in results))
    threads = sorted({entry["threads"] for entry in results})
    plt.rcParams.update({"font.size": 12, "svg.fonttype": "none", "svg.hashsalt": "regard"})
    figure, axes = plt.subplots(figsize=(9, 1.6 + 0.42 * len(names)), layout="constrained")
    axes.axvline(1.0, color="black", linewidth=1)
    low, high = 1.0, 1.0
    for row, name in enumerate(names):
        found = sorted((e for e in results if e["workload"] == name), key=lambda e: e["ratio"])
        axes.plot([found[0]["ratio"], found[-1]["ratio"]], [row, row], color="0.75", linewidth=2, zorder=1)
        for entry in found:
            colour, marker = LOOKS[threads.index(entry["threads"]) % len(LOOKS)]
            axes.plot(entry["ratio"], row, marker, color=colour, markersize=8, zorder=2)
            side = -1 if entry is found[0] and len(found) > 1 else 1
            axes.annotate(
                f"{entry['ratio']:.2f}", (entry["ratio"], row), (8 * side, 0), textcoords="offset points",
                ha="right" if side < 0 else "left", va="center", fontsize=10, color=colour,
            )
            low, high = min(low, entry["ratio"]), max(high, entry["ratio"])
    axes.set_xscale("log")
    axes.set_xlim(low / 1.35, high * 1.35)
    steps = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low / 1.35 <= t <= high * 1.35]
    axes.set_xticks(steps, [f"{t:g}x" for t in steps])
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("time of PyTorch / time of regard (right of the line: regard is faster)")
    for place, count in enumerate(threads):
        colour, marker = LOOKS[place % len(LOOKS)]
        axes.plot([], [], marker, color=colour, markersize=8, label=f"{count} thread" + "s" * (count > 1))
    figure.legend(loc="outside upper right", ncols=len(threads), frameon=False)
    figure.text(0.01, 0.995, report["machine"]["cpu"], va="top", fontsize=11)
    return figure


def main():
    path = RESULTS / "latest.json"
    if not path.exists():
        sys.exit("there is no bench/results/latest.json yet: run bench/run.py first")
    report = json.loads(path.read_text())
    if not report["results"]:
        sys.exit("bench/results/latest.json holds no result")
    figure = draw(report)
    figure.savefig(RESULTS / "ratios.svg", metadata={"Date": None})
    figure.savefig(RESULTS / "ratios.png", dpi=150)
    print(f"wrote {RESULTS / 'ratios.svg'} and ratios.png")


if __name__ == "__main__":
    main()
