"""Reads reports of `pensieve doctor --report` into the tables of docs/metal.md:

    python3 tests/reference/metal_tables.py docs/metal.md report.json ...

A report is a column. What stands between the page's two markers is written anew, the rest stays. The standard library is enough.
"""

import json
import sys
from pathlib import Path

BEGIN = "<!-- reports begin: written by tests/reference/metal_tables.py -->\n"
END = "<!-- reports end -->\n"
SCHEMA = "pensieve-report/1"
NONE = "–"


class Report:
    """A report, by section."""

    def __init__(self, path):
        self.document = json.loads(Path(path).read_text(encoding="utf-8"))
        if self.document.get("schema") != SCHEMA:
            raise SystemExit(f"{path}: the schema is {self.document.get('schema')!r}, and this reads {SCHEMA!r}")
        self.sections = {section["name"]: section for section in self.document["sections"]}

    def result(self, name):
        """A section's result; an empty one where there is none."""
        return self.sections.get(name, {}).get("result") or {}

    def why(self, name):
        """What to say of a section that was not measured; nothing for one that was."""
        section = self.sections.get(name)
        if section is None:
            return "not reached"
        if section["state"] == "not_here":
            return "not on this machine"
        if section["state"] == "failed":
            return f"failed ({section.get('signal') or shortened(section.get('why') or 'no reason')})"
        return None

    def title(self):
        """The machine."""
        system = self.result("system")
        variables = system.get("variables") or {}
        chip = variables.get("machdep.cpu.brand_string") or system.get("chip") or "unknown chip"
        version = variables.get("kern.osproductversion") or system.get("release") or ""
        build = variables.get("kern.osversion")
        memory = variables.get("hw.memsize") or system.get("memory_bytes") or 0
        parts = [chip, f"{int(memory) / 2**30:.0f} GiB", f"{system.get('system', '')} {version}".strip()]
        return ", ".join(parts) + (f" ({build})" if build else "")


def shortened(text, most=60):
    text = " ".join(str(text).split()).replace("|", "/")
    return text if len(text) <= most else text[: most - 1] + "…"


def number(value, digits=0):
    """A figure as people read it; text, such as `NaN`, as it is."""
    if isinstance(value, (int, float)):
        return f"{value:,.{digits}f}"
    return str(value) if value else NONE


def device(report):
    result = report.result("device")
    families = ", ".join(result.get("families") or [])
    return ": ".join(part for part in (result.get("name") or result.get("device"), families) if part) or None


def limit(name, unit=2**20, suffix=" MiB"):
    def row(report):
        value = report.result("device").get(name)
        return None if value is None else f"{value / unit:,.0f}{suffix}"

    return row


def libraries(report):
    rows = report.result("compiler").get("libraries") or []
    failed = [row["library"] for row in rows if row.get("error")]
    text = f"{len(rows) - len(failed)} of {len(rows)} in {sum(row.get('ms', 0) for row in rows) / 1000:,.1f} s"
    return text + (f"; not {', '.join(failed)}" if failed else "")


def pipelines(report):
    rows = [row for library in report.result("compiler").get("libraries") or [] for row in library.get("pipelines") or []]
    threads = [row["max_threads_per_threadgroup"] for row in rows if "max_threads_per_threadgroup" in row]
    failed = [row["kernel"] for row in rows if row.get("error")]
    text = f"{min(threads)} to {max(threads)}" if threads else NONE
    return text + (f"; not made: {', '.join(failed)}" if failed else "")


def modes(report):
    rows = report.result("guards").get("modes") or []
    return "; ".join(f"{row['mode']}: {', '.join(row['lost']) + ' lost' if row.get('lost') else 'kept'}"
                     if "lost" in row else f"{row['mode']}: {shortened(row.get('error'))}" for row in rows)


def agreeing(section, rows):
    def row(report):
        cases = report.result(section).get(rows) or []

        def is_right(case):
            error = case.get("largest_error")
            return isinstance(error, (int, float)) and error <= case["tolerance"]

        wrong = [case for case in cases if not is_right(case)]
        text = f"{len(cases) - len(wrong)} of {len(cases)}"
        if wrong:
            first = wrong[0]
            name = first.get("case") or first.get("op")
            reason = first.get("error") or f"off by {first.get('largest_error')}"
            text += f"; first wrong: {shortened(name)} ({shortened(reason)})"
        return text

    return row


def laws(section):
    def row(report):
        verdicts = report.result(section).get("verdicts") or []
        tried = [verdict for verdict in verdicts if verdict["outcome"] != "not_tried"]
        broken = [verdict["law"] for verdict in tried if verdict["outcome"] == "broken"]
        text = f"{len(tried) - len(broken)} of {len(tried)} kept"
        return text + (f"; broken: {', '.join(broken)}" if broken else "")

    return row


def product(weights, rows):
    """GB/s of weights for one row, else 10⁹ multiply-adds per second."""

    def row(report):
        products = report.result("products").get("products") or []
        names = ("weights", "outputs", "inputs", "rows")
        of = [product for product in products if tuple(product[name] for name in names) == (weights, 4096, 4096, rows)]
        if not of or "ms" not in of[0]:
            return None
        name = "weight_bytes_per_s" if rows == 1 else "multiply_adds_per_s"
        return f"{number(of[0].get(name, 0) / 1e9)}"

    return row


def step(streams, past, new):
    def row(report):
        steps = report.result("attention").get("steps") or []
        of = [step for step in steps if (step["streams"], step["past"], step["new"]) == (streams, past, new)]
        return number(of[0]["ms"], 2) if of and "ms" in of[0] else None

    return row


def speed(tokens, figure):
    def row(report):
        rows = report.result("speed").get("rows") or []
        of = [row for row in rows if row["prompt_tokens"] == tokens]
        return number(of[0][figure], 1) if of else None

    return row


def figure(section, name, digits=0):
    return lambda report: number(report.result(section).get(name), digits) if report.result(section) else None


def soak_speed(report):
    result = report.result("soak")
    first, last = result.get("first_quarter_tokens_per_s"), result.get("last_quarter_tokens_per_s")
    return f"{number(first, 1)} → {number(last, 1)}" if first and last else None


CORRECTNESS = [
    ("device", "device", device),
    ("recommended working set", "device", limit("recommended_max_working_set_bytes")),
    ("memory of a threadgroup", "device", limit("max_threadgroup_memory_bytes", 1, " B")),
    ("libraries that compile", "compiler", libraries),
    ("threads per pipeline", "compiler", pipelines),
    ("guards against infinities, by math mode", "guards", modes),
    ("our kernels as the formulas", "kernels", agreeing("kernels", "cases")),
    ("candle's ops as on the CPU", "ops", agreeing("ops", "lines")),
    ("laws", "laws", laws("laws")),
    ("laws under validation", "laws_validated", laws("laws_validated")),
]

SPEED = [
    ("Q4_K, 4096 × 4096, 1 row, GB/s of weights", "products", product("Q4_K", 1)),
    ("the same, 512 rows, 10⁹ multiply-adds/s", "products", product("Q4_K", 512)),
    ("attention of 512 tokens after 4,096, ms", "attention", step(1, 4096, 512)),
    ("of one token after 18,000, ms", "attention", step(1, 18000, 1)),
    ("prompt of 512, tokens/s", "speed", speed(512, "prompt_tokens_per_s")),
    ("of 18,000", "speed", speed(18000, "prompt_tokens_per_s")),
    ("decode after 512, tokens/s", "speed", speed(512, "decode_tokens_per_s")),
    ("after 18,000", "speed", speed(18000, "decode_tokens_per_s")),
    ("20 streams over a prefix, tokens/s", "streams", figure("streams", "decode_tokens_per_s", 1)),
    ("the last one's first token, ms", "streams", figure("streams", "first_token_last_ms")),
    ("first token, busy, ms", "idle", figure("idle", "busy_first_token_ms", 1)),
    ("after idling, ms", "idle", figure("idle", "idle_first_token_ms", 1)),
]

ENDURANCE = [
    ("tokens", "soak", figure("soak", "tokens")),
    ("tokens/s, first and last quarter", "soak", soak_speed),
    ("growth for 1,000 tokens, bytes", "soak", figure("soak", "bytes_per_1000_tokens")),
    ("answers that failed", "soak", figure("soak", "failures")),
    ("objects without a pool, at least", "soak", figure("soak", "missing_pools_at_least")),
]


def table(heading, rows, reports):
    lines = [f"### {heading}", "", "| | " + " | ".join(report.title() for report in reports) + " |",
             "|---" * (len(reports) + 1) + "|"]
    for name, section, value in rows:
        cells = [report.why(section) or value(report) or NONE for report in reports]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def tables(reports):
    models = {(report.document.get("model") or {}).get("architecture") or "none" for report in reports}
    quick = any(report.document["quick"] for report in reports)
    count = "one report" if len(reports) == 1 else f"{len(reports)} reports"
    head = f"From {count}; architectures: {', '.join(sorted(models))}."
    if quick:
        head += " Reports made with `--quick` have no ten minutes of answers and small sizes."
    parts = [table("Correctness", CORRECTNESS, reports), table("Speed", SPEED, reports),
             table("Ten minutes of answers", ENDURANCE, reports)]
    return head + "\n\n" + "\n".join(parts)


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    page = Path(sys.argv[1])
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page}: the markers of the tables are missing")
    reports = [Report(path) for path in sys.argv[2:]]
    page.write_text(before + BEGIN + "\n" + tables(reports) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
