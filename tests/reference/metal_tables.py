"""Reads reports of `pensieve doctor --report` into the tables of docs/metal.md:

    python3 tests/reference/metal_tables.py docs/metal.md report.json ...

A report is a column, whose head says if the report is incomplete or comes from a debug build. What stands between the page's two
markers is written anew, the rest stays. A report that cannot be read changes nothing: `PATH: why`, and status 1. The standard
library is enough.
"""

import json
import sys
from pathlib import Path

BEGIN = "<!-- reports begin: written by tests/reference/metal_tables.py -->\n"
END = "<!-- reports end -->\n"
SCHEMA = "pensieve-report/1"
NONE = "–"
SERVED = ("speed", "streams", "idle", "soak")
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def read(path):
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SystemExit(f"{path}: it is not UTF-8") from None


class Report:
    """A report, by section."""

    def __init__(self, path):
        self.path = path
        try:
            self.document = json.loads(read(path))
        except (ValueError, RecursionError) as error:
            raise SystemExit(f"{path}: it is not JSON: {error}") from None
        if not isinstance(self.document, dict) or "schema" not in self.document:
            raise SystemExit(f"{path}: it is not a report of `pensieve doctor`")
        if self.document["schema"] != SCHEMA:
            raise SystemExit(f"{path}: the schema is {self.document['schema']!r}, and this reads {SCHEMA!r}")
        sections = self.document.get("sections")
        if not isinstance(sections, list):
            raise SystemExit(f"{path}: it has no list of sections")
        for section in sections:
            if not isinstance(section, dict) or not {"name", "state"} <= section.keys():
                raise SystemExit(f"{path}: a section has no name or no state")
            if section["state"] not in ("measured", "not_here", "failed"):
                raise SystemExit(f"{path}: section '{section['name']}' has the state {section['state']!r}")
            if not isinstance(section.get("result") or {}, dict):
                raise SystemExit(f"{path}: the result of section '{section['name']}' is not an object")
        self.sections = {str(section["name"]): section for section in sections}
        self.is_complete = self.document.get("complete") is True
        self.program = self.document.get("program") or {}
        if not isinstance(self.program, dict):
            raise SystemExit(f"{path}: 'program' is not an object")
        self.is_optimized = self.program.get("optimized") is True

    def result(self, name):
        """A section's result; an empty one where there is none."""
        return self.sections.get(name, {}).get("result") or {}

    def why(self, name):
        """What to say of a section that was not measured; nothing for one that was."""
        section = self.sections.get(name)
        if section is None:
            return "missing" if self.is_complete else "not reached"
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
        return ", ".join(parts) + (f" ({build})" if build else "") + "".join(f"; **{mark}**" for mark in self.marks())

    def marks(self):
        """What a reader of a column has to know first."""
        if not self.is_complete:
            yield "incomplete: the run was interrupted"
        if not self.is_optimized:
            yield "debug build: its speeds say nothing"
        if self.document.get("quick"):
            yield "quick"

    def cell(self, name, section, value):
        try:
            return (section and self.why(section)) or value(self) or NONE
        except MALFORMED as error:
            raise SystemExit(f"{self.path}: the row '{name}' cannot be read ({type(error).__name__}: {error})") from None


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


def kernels_used(report):
    """As the device's sections name them, and what served the answers where that differs."""
    note = report.result("kernels").get("kernels") or report.result("device").get("kernels")
    served = {report.result(name).get("note") for name in SERVED} - {None}
    others = sorted(str(other) for other in served if not note or note not in other)
    return "; answers by: ".join(shortened(text, 200) for text in [note, *others] if text) or None


def build(report):
    names = [report.program.get("version"), report.program.get("system"), report.program.get("machine")]
    return ", ".join([*(str(name) for name in names if name), "optimised" if report.is_optimized else "**debug**"])


def warnings(report):
    found = [(name, line) for name, section in report.sections.items() for line in section.get("warnings") or []]
    return f"{len(found)}; first: {found[0][0]}: {shortened(found[0][1])}" if found else "0"


def deaths(report):
    """Of workers, in the sections that serve answers."""
    found = {name: report.result(name)["deaths"] for name in SERVED if "deaths" in report.result(name)}
    where = ", ".join(f"{name} {count}" for name, count in found.items() if count)
    return (f"{sum(found.values())}" + (f" ({where})" if where else "")) if found else None


def crashes(report):
    """Of each way to end, the median wait."""
    rows = report.result("crash").get("ends") or []
    waits = [(row["end"], sorted(row["ms"])) for row in rows]
    return "; ".join(f"{end} {number(waits[len(waits) // 2], 1)}" for end, waits in waits if waits)


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
    if made := sum(row.get("ms", 0) for row in rows):
        text += f", made in {made / 1000:,.1f} s"
    return text + (f"; not made: {', '.join(failed)}" if failed else "")


def modes(report):
    rows = report.result("guards").get("modes") or []
    return "; ".join(f"{row['mode']}: {', '.join(row['lost']) + ' lost' if row.get('lost') else 'kept'}"
                     if "lost" in row else f"{row['mode']}: {shortened(row.get('error'))}" for row in rows)


def agreeing(section, rows):
    def row(report):
        cases = report.result(section).get(rows) or []

        def is_right(case):
            error, tolerance = case.get("largest_error"), case.get("tolerance")
            return isinstance(error, (int, float)) and isinstance(tolerance, (int, float)) and error <= tolerance

        wrong = [case for case in cases if not is_right(case)]
        text = f"{len(cases) - len(wrong)} of {len(cases)}"
        if wrong:
            first = wrong[0]
            shape = (first.get(part) for part in ("weights", "outputs", "inputs", "rows"))
            name = first.get("case") or first.get("op") or "{} {} × {}, rows: {}".format(*shape)
            reason = first.get("error") or f"off by {first.get('largest_error')}"
            text += f"; first wrong: {shortened(name)} ({shortened(reason)})"
        return text

    return row


def our_kernels(report):
    """Formulas agree with themselves, so what they computed does not count."""
    result = report.result("kernels")
    note, device = str(result.get("kernels")), str(result.get("device"))
    if not device.startswith("metal"):
        return f"not on Metal ({device})"
    if not note.startswith("our Metal kernels"):
        return "our kernels are not used"
    text = agreeing("kernels", "cases")(report)
    return text if note == "our Metal kernels" else f"{text}, but the device declined kernels: formulas stand in for these"


def has_tolerances(report):
    return any("tolerance" in product for product in report.result("products").get("products") or [])


def products(report):
    return agreeing("products", "products")(report) if has_tolerances(report) else "without a tolerance"


def laws(section):
    def row(report):
        verdicts = report.result(section).get("verdicts") or []
        tried = [verdict for verdict in verdicts if verdict["outcome"] != "not_tried"]
        broken = [verdict["law"] for verdict in tried if verdict["outcome"] == "broken"]
        text = f"{len(tried) - len(broken)} of {len(tried)} kept"
        return text + (f"; broken: {', '.join(broken)}" if broken else "")

    return row


def validated(section):
    def row(report):
        validation = report.result(section).get("validation")
        if not validation:
            return None
        first = validation.get("first") or []
        return f"{validation['findings']} findings" + (f"; first: {shortened(first[0])}" if first else "")

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
        if not of:
            return None
        failed = len(of[0].get("failures") or [])
        return number(of[0][figure], 1) + (f" ({failed} failed)" if failed else "")

    return row


def streams(name, digits=0):
    def row(report):
        result = report.result("streams")
        failed = len(result.get("failures") or [])
        return number(result.get(name), digits) + (f" ({failed} failed)" if failed else "")

    return row


def failures(report):
    """Of the answers whose speed was measured."""
    rows = [*(report.result("speed").get("rows") or []), report.result("streams")]
    found = [failure for row in rows for failure in row.get("failures") or []]
    return f"{len(found)}; first: {shortened(found[0])}" if found else "0"


def figure(section, name, digits=0):
    return lambda report: number(report.result(section).get(name), digits) if report.result(section) else None


def allocated(report):
    """What the device allocates in steps of attention that are repeated."""
    steps = report.result("attention").get("steps") or []
    grown = [step["allocated_bytes"] for step in steps if step.get("allocated_bytes") is not None]
    return number(max(grown)) if grown else None


def soak_speed(report):
    result = report.result("soak")
    first, last = result.get("first_quarter_tokens_per_s"), result.get("last_quarter_tokens_per_s")
    return f"{number(first, 1)} → {number(last, 1)}" if first and last else None


CORRECTNESS = [
    ("build", None, build),
    ("kernels used", None, kernels_used),
    ("worker deaths", None, deaths),
    ("warnings", None, warnings),
    ("a child's end, ms until its parent knows", "crash", crashes),
    ("device", "device", device),
    ("recommended working set", "device", limit("recommended_max_working_set_bytes")),
    ("memory of a threadgroup", "device", limit("max_threadgroup_memory_bytes", 1, " B")),
    ("libraries that compile", "compiler", libraries),
    ("threads per pipeline", "compiler", pipelines),
    ("guards against infinities, by math mode", "guards", modes),
    ("our kernels as the formulas", "kernels", our_kernels),
    ("products as with weights in f32", "products", products),
    ("candle's ops as on the CPU", "ops", agreeing("ops", "lines")),
    ("laws", "laws", laws("laws")),
    ("Metal's validation of our kernels", "kernels_validated", validated("kernels_validated")),
    ("its findings in the laws", "laws_validated", validated("laws_validated")),
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
    ("20 streams over a prefix, tokens/s", "streams", streams("decode_tokens_per_s", 1)),
    ("the last one's first token, ms", "streams", streams("first_token_last_ms")),
    ("failures among these answers", None, failures),
    ("first token, busy, ms", "idle", figure("idle", "busy_first_token_ms", 1)),
    ("after idling, ms", "idle", figure("idle", "idle_first_token_ms", 1)),
]

ENDURANCE = [
    ("GPU memory that repeated steps of attention allocate, at most, bytes", "attention", allocated),
    ("tokens", "soak", figure("soak", "tokens")),
    ("tokens/s, first and last quarter", "soak", soak_speed),
    ("growth for 1,000 tokens, bytes", "soak", figure("soak", "bytes_per_1000_tokens")),
    ("answers that failed", "soak", figure("soak", "failures")),
    ("objects without a pool, at least", "soak", figure("soak", "missing_pools_at_least")),
]


def plain(text):
    """Text of a report, which must end neither a cell nor the tables."""
    return " ".join(str(text).split()).replace("|", "/").replace("<", "&lt;")


def table(heading, rows, reports):
    titles = [report.cell("machine", None, Report.title) for report in reports]
    lines = [f"### {heading}", "", "| | " + " | ".join(map(plain, titles)) + " |", "|---" * (len(reports) + 1) + "|"]
    for name, section, value in rows:
        cells = [plain(report.cell(name, section, value)) for report in reports]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def architecture(report):
    return (report.document.get("model") or {}).get("architecture") or "none"


def tables(reports):
    models = {plain(report.cell("architecture", None, architecture)) for report in reports}
    quick = any(report.document.get("quick") for report in reports)
    count = "one report" if len(reports) == 1 else f"{len(reports)} reports"
    head = f"From {count}; architectures: {', '.join(sorted(models))}."
    if quick:
        head += " Reports made with `--quick` have no ten minutes of answers and small sizes."
    has_products = any(report.cell("products", None, has_tolerances) is True for report in reports)
    correctness = [row for row in CORRECTNESS if row[1] != "products" or has_products]
    parts = [table("Correctness", correctness, reports), table("Speed", SPEED, reports),
             table("Ten minutes of answers", ENDURANCE, reports)]
    return head + "\n\n" + "\n".join(parts)


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    page = Path(sys.argv[1])
    text = read(page)
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page}: the markers of the tables are missing")
    reports = [Report(path) for path in sys.argv[2:]]
    page.write_text(before + BEGIN + "\n" + tables(reports) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
