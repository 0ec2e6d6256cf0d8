"""The table and the figure of docs/cluster.md: what `regard cluster plan` says of 64 to 1024 ranks.

    python bench/cluster/plan.py --regard target/release/regard --figure docs/cluster_plan.svg        # prints the table
"""

import argparse
import json
import subprocess
from pathlib import Path

RANKS, TOKENS, NETS = [64, 256, 1024], {"1M": "#0072B2", "4M": "#D55E00", "16M": "#009E73"}, ["10GbE", "100GbE"]
LEFT, RIGHT, TOP, BOTTOM, LEAST = 70, 640, 30, 330, 0.7


def plan(program, tokens, net):
    words = ["--heads", "32/8", "--dim", "128", "--ranks", ",".join(map(str, RANKS)), "--rate", "2624"]
    done = subprocess.run([program, "cluster", "plan", "--tokens", tokens, "--net", net, *words, "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)[0]["rows"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regard", required=True)
    parser.add_argument("--figure", type=Path, required=True)
    args = parser.parse_args()
    places = [LEFT + 40 + (RIGHT - LEFT - 80) * i / (len(RANKS) - 1) for i in range(len(RANKS))]
    height = lambda efficiency: BOTTOM - (efficiency - LEAST) / (1 - LEAST) * (BOTTOM - TOP)
    svg = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 380" font-family="sans-serif" font-size="13">',
        "<title>Efficiency of a causal forward pass by the number of ranks</title>",
        '<rect width="720" height="380" fill="white"/>',
    ]
    for tenth in range(round(LEAST * 20), 21):
        y, label = height(tenth / 20), f"{tenth / 20:.2f}"
        svg.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/><text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    svg += [f'<text x="{x:.1f}" y="{BOTTOM + 20}" text-anchor="middle">{ranks}</text>' for x, ranks in zip(places, RANKS)]
    middle = (TOP + BOTTOM) / 2
    svg.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 42}" text-anchor="middle">ranks</text>')
    svg.append(f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">efficiency, by the model</text>')
    print("| tokens | ranks | network of a rank | seconds | efficiency | link in use | received by a rank | memory of a rank |\n|---|---|---|---|---|---|---|---|")
    key = BOTTOM - 20 * len(TOKENS) * len(NETS)
    for tokens, colour in TOKENS.items():
        for net in NETS:
            rows, dashed = plan(args.regard, tokens, net), ' stroke-dasharray="6 4"' if net == NETS[0] else ""
            assert all(row["efficiency"] > LEAST for row in rows), "the figure begins too high"
            points = [(x, height(row["efficiency"])) for x, row in zip(places, rows)]
            svg.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')
            for x, y in points:
                square = f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="white" stroke="{colour}" stroke-width="1.5"/>'
                svg.append(square if dashed else f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
            svg.append(f'<line x1="80" x2="115" y1="{key}" y2="{key}" stroke="{colour}" stroke-width="2"{dashed}/><text x="122" y="{key + 4}">{tokens} tokens, {net}</text>')
            key += 20
            for row in rows:
                print(
                    f"| {tokens} | {row['ranks']} | {net} | {row['seconds']:,.1f} | {row['efficiency']:.3f} | {row['link']:.1%} | "
                    f"{row['received_gb']:.2f} GB | {row['memory_gb']:.2f} GB |".replace("%", " %")
                )
    args.figure.write_text("\n".join([*svg, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
