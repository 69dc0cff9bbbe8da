#!/usr/bin/env python3
"""Tables and plots of bench/RESULTS.md, from what `rowmill-bench SUITE --json` printed.

    report.py tables FILE...          the measurements as Markdown tables, one a suite, and the targets
    report.py grids FILE...           rates and ratios of every format by dimension, and what else `--full` has
    report.py hits FILE...            hit rates of every policy by size, a table a trace
    report.py plots FOLDER FILE...    rows per second against dimension, hit rates against size, as SVG (needs matplotlib)
"""

import json
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path


ISAS = ["avx512", "avx2", "neon", "scalar"]


def figure(value):
    size = abs(value)
    for bound, text in [(1e9, f"{value / 1e9:.2f} G"), (1e6, f"{value / 1e6:.2f} M"), (1e4, f"{value / 1e3:.1f} k"), (100, f"{value:.0f}"), (10, f"{value:.1f}"), (1, f"{value:.2f}")]:
        if size >= bound:
            return text
    return f"{value:.4f}"


def compared(line):
    """What a figure is compared with, and the ratio; empty where there is nothing."""
    against, value, ratio = line["against"], line["against_value"], line["ratio"]
    shown = " ".join(part for part in [against, figure(value) if value is not None else None] if part)
    return shown, f"{ratio:.3f}" if ratio is not None else ""


def read(files):
    lines = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    suites = defaultdict(list)
    for line in lines:
        suites[line["suite"]].append(line)
    return suites


def best_isa(suites):
    """The widest instruction set that was measured: the one that the machine's kernels use."""
    cases = {line["case"] for lines in suites.values() for line in lines}
    return next((isa for isa in ISAS if any(f"isa={isa}" in case for case in cases)), ISAS[-1])


def tables(files):
    suites = read(files)
    text = Path(__file__).with_name("targets.toml").read_text()
    targets = tomllib.loads(text.replace("isa=best", f"isa={best_isa(suites)}"))["target"]
    print("| target | case | figure | against | ratio | bound | outcome |\n|---|---|---|---|---|---|---|")
    for target in targets:
        wanted = (target["case"], target["metric"])
        found = [line for line in suites[target["suite"]] if (line["case"], line["metric"]) == wanted]
        where = f"`{target['suite']} {target['case']}` {target['metric']}"
        if not found:
            print(f"| {target['what']} | {where} | - | - | - | {target['at_least']} | NOT MEASURED |")
            continue
        line = found[0]
        outcome = "PASS" if line[target["figure"]] >= target["at_least"] else "SHORT"
        value, (against, ratio) = f"{figure(line['value'])} {line['unit']}", compared(line)
        print(f"| {target['what']} | {where} | {value} | {against} | {ratio} | {target['at_least']} | {outcome} |")
    for suite, lines in suites.items():
        print(f"\n## {suite}\n\n| case | metric | value | against | ratio |\n|---|---|---|---|---|")
        for line in lines:
            against, ratio = compared(line)
            print(f"| `{line['case']}` | {line['metric']} | {figure(line['value'])} {line['unit']} | {against} | {ratio} |")


DISTS = ["uniform", "zipf-1.05"]
FORMATS = ["f32", "f16", "bf16", "int8", "int8-f16", "int4"]
COLOURS = dict(zip(FORMATS, ["#000000", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00"]))


def curves(lines, dist):
    """For each format its points (dim, our rate, the other's, the ratio): plain sums with f32 results."""
    points = defaultdict(list)
    isa = best_isa({"": lines})
    for line in lines:
        case = re.fullmatch(r"format=([\w-]+)/dim=(\d+)/dist=([\w.-]+)/mode=sum/isa=([\w]+)", line["case"])
        if case and line["metric"] == "rate" and case[3] == dist and case[4] == isa:
            points[case[1]].append((int(case[2]), line["value"], line["against_value"], line["ratio"]))
    return {form: sorted(points[form]) for form in FORMATS if points[form]}


def grids(files):
    suites = read(files)
    for suite in ["pooling", "peers"]:
        for dist in DISTS:
            rows = curves(suites[suite], dist)
            if not rows:
                continue
            dims = sorted({point[0] for points in rows.values() for point in points})
            print(f"\n{suite}, {dist} ids, M rows/s (ratio):\n")
            print("| format | " + " | ".join(f"dim {dim}" for dim in dims) + " |\n|---" + "|---" * len(dims) + "|")
            for form, points in rows.items():
                cells = {dim: f"{ours / 1e6:.1f} ({ratio:.2f})" for dim, ours, _, ratio in points}
                print(f"| {form} | " + " | ".join(cells.get(dim, "-") for dim in dims) + " |")
    others = defaultdict(dict)
    for line in suites["pooling"]:
        case = re.fullmatch(r"format=([\w-]+)/dim=128/dist=uniform/(mode=.*)", line["case"])
        if case and line["metric"] == "rate":
            others[case[2]][case[1]] = f"{line['value'] / 1e6:.1f} ({line['ratio']:.2f})"
    if len(others) > 1:
        print("\npooling, dim 128, uniform ids, M rows/s (ratio):\n")
        print("| case | " + " | ".join(FORMATS) + " |\n|---" + "|---" * len(FORMATS) + "|")
        for case, cells in others.items():
            print(f"| `{case}` | " + " | ".join(cells.get(form, "-") for form in FORMATS) + " |")


def plot(ax, lines, dist, other):
    for form, points in curves(lines, dist).items():
        dims = [p[0] for p in points]
        ax.plot(dims, [p[1] / 1e6 for p in points], "o-", color=COLOURS[form], label=form, markersize=4)
        ax.plot(dims, [p[2] / 1e6 for p in points], "--", color=COLOURS[form], linewidth=1)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = sorted({p[0] for points in curves(lines, dist).values() for p in points})
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_yticks([5, 10, 20, 50, 100, 200, 400], ["5", "10", "20", "50", "100", "200", "400"])
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    ax.set_xlabel("dimensions of a row")
    ax.set_ylabel("million rows a second, one thread")
    ax.set_title(f"{dist} ids (dashed: {other})", fontsize=10)


def hit_rates(lines, access="single"):
    """For each trace, for each policy, per cent of hits by rows cached."""
    rates = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        case = re.fullmatch(r"trace=([^/]+)/rows=(\d+)/policy=([^/]+)/access=(.+)", line["case"])
        if case and line["metric"] == "hit_rate" and case[4] == access:
            rates[case[1]][case[3]][int(case[2])] = 100 * line["value"]
    return rates


def hits(files):
    lines = read(files)["cache"]
    batches = {access: hit_rates(lines, access) for access in ["batch", "batch/waiting=1"]}
    for trace, policies in hit_rates(lines).items():
        columns = {policy: policies[policy] for policy in policies}
        columns |= {access: rates[trace]["adaptive"] for access, rates in batches.items() if trace in rates}
        print(f"\n`{trace}`, per cent of hits:\n\n| rows cached | " + " | ".join(columns) + " |\n|---" + "|---" * len(columns) + "|")
        for rows in sorted({rows for rates in columns.values() for rows in rates}):
            cells = [f"{rates[rows]:.1f}" if rows in rates else "-" for rates in columns.values()]
            print(f"| {rows:,} | " + " | ".join(cells) + " |")


POLICIES = {
    "adaptive": ("#000000", "o-"), "lru": ("#e69f00", "-"), "clock": ("#56b4e9", "-"), "arc": ("#009e73", "-"), "2q": ("#cc79a7", "-"),
    "s3-fifo": ("#d55e00", "-"), "sieve": ("#0072b2", "-"), "w-tinylfu": ("#f0e442", "-"), "slru": ("#999999", "-"), "belady": ("#999999", ":"),
}


def plot_hits(fig, traces):
    for ax, (trace, policies) in zip(fig.axes, traces.items()):
        for policy, (colour, form) in reversed(POLICIES.items()):
            points = sorted(policies[policy].items())
            width = 2 if policy == "adaptive" else 1.2
            ax.plot([p[0] for p in points], [p[1] for p in points], form, color=colour, label=policy, markersize=4, linewidth=width)
        ticks = sorted(policies["adaptive"])
        ax.set_xscale("log")
        ax.set_xticks(ticks, [f"{tick // 1000}k" for tick in ticks])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
        ax.set_title(trace, fontsize=10)
    for ax in fig.axes[len(traces):]:
        ax.axis("off")
    fig.supxlabel("rows cached", fontsize=10)
    fig.supylabel("per cent of lookups that hit", fontsize=10)
    handles, labels = fig.axes[0].get_legend_handles_labels()
    fig.legend(handles[::-1], labels[::-1], loc="lower center", ncols=len(labels), fontsize=8, bbox_to_anchor=(0.5, 1.0))


def plots(folder, files):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rowmill"
    import matplotlib.pyplot as plt

    suites = read(files)
    for suite, other in [("pooling", "gather limit"), ("peers", "PyTorch")]:
        dists = [dist for dist in DISTS if curves(suites[suite], dist)]
        if not dists:
            continue
        fig, axes = plt.subplots(1, len(dists), figsize=(5.5 * len(dists), 4.2), sharey=True, squeeze=False)
        for ax, dist in zip(axes[0], dists):
            plot(ax, suites[suite], dist, other)
        axes[0][0].legend(fontsize=8)
        fig.tight_layout()
        path = Path(folder) / f"{suite}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, metadata={"Date": None})
        print(path)
    if traces := hit_rates(suites["cache"]):
        fig, _ = plt.subplots(-(-len(traces) // 3), 3, figsize=(11, 3 * -(-len(traces) // 3)), squeeze=False)
        plot_hits(fig, traces)
        fig.tight_layout()
        path = Path(folder) / "cache.svg"
        fig.savefig(path, metadata={"Date": None}, bbox_inches="tight")
        print(path)


match sys.argv[1:]:
    case ["tables", *files] if files:
        tables(files)
    case ["grids", *files] if files:
        grids(files)
    case ["hits", *files] if files:
        hits(files)
    case ["plots", folder, *files] if files:
        plots(folder, files)
    case _:
        sys.exit(__doc__)
