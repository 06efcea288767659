#!/usr/bin/env python3
"""Put a peer's rows into the JSON that `lily bench --json` writes (docs/bench.md), and say what the GPU was.

    report.py rows ROWS.jsonl --engine llama.cpp --version V --weights W --out FILE.json   wrap rows
    report.py device FILE.json --samples CSV                                     add device, UUID and clocks to a report
    report.py table FILE.json ...                                                print reports side by side

ROWS.jsonl: facts of the run in the first line, a row in every other one. Rows that ran with another `ubatch` or
`decode_with` than the first go to `other_rows`. CSV: `nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits`, one
line a sample, FIELDS as below. Needs Python alone.
"""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess

FIELDS = "name,uuid,driver_version,clocks.sm,clocks.mem,utilization.gpu,power.draw,temperature.gpu"


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def samples(path):
    """Rows of FIELDS; lines that nvidia-smi could not fill are left out."""
    for line in pathlib.Path(path).read_text().splitlines():
        cells = [c.strip() for c in line.split(",")]
        if len(cells) == len(FIELDS.split(",")) and all(c.replace(".", "").isdigit() for c in cells[3:6]):
            yield cells


def device(rows):
    """What the samples say: name, UUID, and clocks while the GPU was busy (all samples where it never was)."""
    rows = list(rows)
    if not rows:
        return {}
    busy = [r for r in rows if float(r[5]) > 0] or rows
    sm, memory = ([int(float(r[i])) for r in busy] for i in (3, 4))
    clocks = {"sm_mhz": statistics.median_high(sm), "sm_mhz_min": min(sm), "sm_mhz_max": max(sm),
              "memory_mhz": statistics.median_high(memory), "samples": len(busy)}
    return {"device": f"{rows[0][0]}, driver {rows[0][2]}", "device_uuid": rows[0][1].removeprefix("GPU-"), "clocks": clocks}


def one_sample():
    """A single sample now, for a run that nothing watched; nothing where there is no nvidia-smi."""
    try:
        cmd = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
        line = subprocess.run(cmd, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return {}
    cells = [c.strip() for c in line.split(",")]
    return {"device": f"{cells[0]}, driver {cells[2]}", "device_uuid": cells[1].removeprefix("GPU-")}


def report(engine, version, weights, command, facts, rows, notes=()):
    """The whole document. Rows of another setting than the first row's are kept apart."""
    setting = lambda r: (r.get("ubatch"), r.get("decode_with"))
    main = [r for r in rows if setting(r) == setting(rows[0])] if rows else []
    other = [r for r in rows if r not in main]
    doc = {"engine": engine, "version": version, "device": facts.get("device", "unknown"), "device_uuid": None, "date": now(),
           "weights": weights, "command": command, **{k: v for k, v in facts.items() if k != "device"}, **one_sample(),
           "notes": list(notes), "rows": main}
    if other:
        doc["other_rows"] = other
    return doc


def write(path, doc):
    pathlib.Path(path).write_text(json.dumps(doc, indent=2) + "\n")


def table(paths):
    docs = [json.loads(pathlib.Path(p).read_text()) for p in paths]
    contexts = sorted({r["context"] for d in docs for r in d["rows"]})
    for key in ("prefill_tok_s", "decode_tok_s"):
        print(f"| {key} at | " + " | ".join(d["engine"] for d in docs) + " |")
        print("| ---: |" + " ---: |" * len(docs))
        for c in contexts:
            cells = []
            for d in docs:
                value = next((r.get(key) for r in d["rows"] if r["context"] == c), None)
                cells.append("" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}")
            print(f"| {c:,} | " + " | ".join(cells) + " |")
        print()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="what", required=True)
    p = sub.add_parser("rows")
    p.add_argument("rows")
    for name in ("--engine", "--version", "--weights", "--out"):
        p.add_argument(name, required=True)
    p.add_argument("--command", default="")
    p.add_argument("--note", action="append", default=[])
    p = sub.add_parser("device")
    p.add_argument("report")
    p.add_argument("--samples", required=True)
    p = sub.add_parser("table")
    p.add_argument("reports", nargs="+")
    sub.add_parser("fields")
    a = ap.parse_args()
    if a.what == "rows":
        facts, *rows = [json.loads(line) for line in pathlib.Path(a.rows).read_text().splitlines()]
        if not rows:
            raise SystemExit(f"report.py: no row in {a.rows}")
        write(a.out, report(a.engine, a.version, a.weights, a.command, facts, rows, a.note))
    elif a.what == "device":
        doc = json.loads(pathlib.Path(a.report).read_text())
        found = device(samples(a.samples))
        if doc["engine"] == "lily":
            found.pop("device", None)  # it says more itself
        doc.update(found)
        write(a.report, doc)
    elif a.what == "table":
        table(a.reports)
    else:
        print(FIELDS)


if __name__ == "__main__":
    main()
