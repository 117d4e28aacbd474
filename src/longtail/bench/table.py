"""LINES → TABLE: Markdown, one row per run and data set, with everything that is needed to reproduce it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median

from longtail.bench.lines import Line, latest
from longtail.bench.points import KIND as DIFFERENCE
from longtail.bench.points import current
from longtail.bench.suite import BINS, SUM, Claim, Job, Suite

HEADS = {
    "seconds": "training s", "cpu_seconds": "CPU s", "peak_mb": "peak MB", "model_mb": "model MB",
    "latency_ms": "query ms", "batch_seconds": "test set s",
}  # fmt: skip
DIGITS = {"seconds": 1, "cpu_seconds": 1, "peak_mb": 0, "model_mb": 1, "latency_ms": 3, "batch_seconds": 1}


def table(suite: Suite, lines: Iterable[Line], command: str) -> str:
    """Write the table of a suite; lines of other settings than the suite's are left out."""
    known = latest(lines)
    jobs = suite.jobs()
    results = [known[job.key] for job in jobs if job.key in known]
    out = [f"# {suite.title}", "", *([suite.note.strip(), ""] if suite.note.strip() else [])]
    names = list(dict.fromkeys(Path(job.data).name for job in jobs))
    for name in names:
        here = [job for job in jobs if Path(job.data).name == name]
        if not any(job.key in known for job in here):
            continue
        out += [f"## {name}", "", *_section(suite, here, known), "", *_choices(here, known)]
        out += _differences(suite, here, known)
        out += _verdicts(suite, name, here, known)
    missing = [job for job in jobs if job.key not in known]
    if missing:
        out += [f"Not run yet: {len(missing)} of {len(jobs)} ({'; '.join(map(str, missing[:8]))}"]
        out[-1] += (" …" if len(missing) > 8 else "") + ").\n"
    out += [*_errors(results), f"    {command}", "", *_origin(results)]
    return "\n".join(out).rstrip() + "\n"


def _section(suite: Suite, jobs: list[Job], known: dict[str, Line]) -> list[str]:
    """Write the rows of one data set."""
    heads = ["run", *(HEADS.get(column, column) for column in suite.columns)]
    if suite.ratio_to:
        heads.append(f"time ÷ {suite.ratio_to}")
    rows: dict[str, list[Line]] = {}
    for job in jobs:
        if (line := known.get(job.key)) is not None:
            rows.setdefault(_title(job), []).append(line)
    good = {title: [line for line in lines if "error" not in line] for title, lines in rows.items()}
    base = [line["seconds"] for lines in good.values() for line in lines if line["run"] == suite.ratio_to]
    out = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for title, lines in good.items():
        cells = [title, *(spread([value(line, column) for line in lines], column) for column in suite.columns)]
        if suite.ratio_to:
            baseline = median(base) if base else 0
            cells.append(spread([line["seconds"] / baseline for line in lines] if baseline else [], "seconds"))
        out.append("| " + " | ".join(cells) + " |")
    return out


def _differences(suite: Suite, jobs: list[Job], known: dict[str, Line]) -> list[str]:
    """Say how far recipes are ahead of the best peers, and how sure that is."""
    place = Path(jobs[0].data).name
    own = [line for line in known.values() if line["kind"] == DIFFERENCE and line["data"] == place]
    runs = list(dict.fromkeys((job.name, job.change) for job in jobs if job.kind == "recipe"))
    rows = []
    for line in (line for run in runs for line in own if (line["run"], tuple(line["change"])) == run):
        if not suite.intervals or not current(line, known):
            continue
        cells = [difference(*line[metric]) for metric in ("P@1", "PSP@5")]
        beside = line["beside"] + (" (the best on augmented points)" if line["recipe"] else "")
        rows.append("| " + " | ".join([line["run"], beside, *cells]) + " |")
    heads = [
        "Ahead of the best peers by P@1; 95 % intervals of a bootstrap over test points, bold where zero is outside:"
    ]
    heads += ["", "| run | beside | P@1 | PSP@5 |", "|---|---|---:|---:|"]
    return [*heads, *rows, ""] if rows else []


def difference(value: float, low: float, high: float) -> str:
    """Write a difference with its interval.

    >>> difference(1.234, 0.5, 2.0), difference(-0.5, -2.0, 1.0)
    ('**+1.23** [+0.50, +2.00]', '-0.50 [-2.00, +1.00]')
    """
    number = f"{value:+.2f}"
    return (f"**{number}**" if low > 0 or high < 0 else number) + f" [{low:+.2f}, {high:+.2f}]"


def _choices(jobs: list[Job], known: dict[str, Line]) -> list[str]:
    """Say what `auto` chose, and why."""
    lines = [known[job.key] for job in jobs if job.key in known and "trials" in known[job.key]]
    out = [f"- {line['run']}: chose {line['trials']['chosen']}. {line['trials']['why']}." for line in lines]
    return ["What auto chose:", "", *out, ""] if out else []


def _verdicts(suite: Suite, name: str, jobs: list[Job], known: dict[str, Line]) -> list[str]:
    """Say which claims of the papers hold on one data set."""
    out = []
    for claim in suite.claim:
        both = []
        for run in (claim.higher, claim.lower):
            lines = [known[job.key] for job in jobs if job.name == run and job.key in known]
            values = [value(line, claim.metric) for line in lines if "error" not in line]
            both.append([number for number in values if number is not None])
        if all(both) and (claim.data is None or name in claim.data):
            out.append(f"- {verdict(claim, *both)}")
    return ["What the papers say:", "", *out, ""] if out else []


def verdict(claim: Claim, higher: list[float], lower: list[float]) -> str:
    """Judge a claim by the results of all seeds.

    >>> claim = Claim(says="more is better", higher="a", lower="b", metric="P@1")
    >>> verdict(claim, [3.0, 2.5], [1.0, 2.0])
    '**Confirmed here:** more is better (P@1 2.75, not 1.50).'
    >>> verdict(claim, [3.0, 1.5], [1.0, 2.0])
    '**Confirmed here, but within the range of seeds:** more is better (P@1 2.25, not 1.50).'
    >>> verdict(claim, [1.0], [2.0])
    '**Not here:** more is better (P@1 1.00 beside 2.00).'
    """
    digits = DIGITS.get(claim.metric, 2)
    first, second = median(higher), median(lower)
    bars = [claim.times * number - claim.level for number in (max(lower), second)]
    numbers = f"{HEADS.get(claim.metric, claim.metric)} {first:,.{digits}f}"
    if first <= bars[1]:
        return f"**Not here:** {claim.says} ({numbers} beside {second:,.{digits}f})."
    sure = "" if min(higher) > bars[0] else ", but within the range of seeds"
    beside = "beside" if claim.level or claim.times != 1 else "not"
    return f"**Confirmed here{sure}:** {claim.says} ({numbers}, {beside} {second:,.{digits}f})."


def _title(job: Job) -> str:
    """Name a row."""
    words = [job.name, *(f"*{change}*" for change in job.change)]
    return ", ".join(words) + (f" (× {job.ensemble})" if job.ensemble > 1 else "")


def value(line: Line, column: str) -> float | None:
    """Look a column up in a line; head, torso and tail are the recall of the bin's own labels at 5."""
    if column in BINS:
        return next((float(entry["recall"]["R@5"]) for entry in line["bins"] if entry["name"] == column), None)
    if column == SUM:
        return float(line["P@1"]) + float(line["PSP@5"])
    number = line.get(column)
    return None if number is None else float(number)


def spread(values: Iterable[float | None], column: str) -> str:
    """Write the median, and the range where there are several.

    >>> spread([1.0, 3.0, 2.0], "P@1")
    '2.00 <small>[1.00–3.00]</small>'
    """
    numbers = [number for number in values if number is not None]
    if not numbers:
        return "–"
    digits = DIGITS.get(column, 2)
    center = f"{median(numbers):,.{digits}f}"
    if len(numbers) == 1:
        return center
    return f"{center} <small>[{min(numbers):,.{digits}f}–{max(numbers):,.{digits}f}]</small>"


def _errors(lines: list[Line]) -> list[str]:
    """List what failed."""
    failed = [line for line in lines if "error" in line]
    out = [f"- {line['run']} on {line['data']}, seed {line['seed']} failed: {line['error']}" for line in failed]
    return [*out, ""] if out else []


def _origin(lines: list[Line]) -> list[str]:
    """Return where the numbers come from: machine, commit and dates."""
    good = [line for line in lines if "error" not in line]
    if not good:
        return []
    machines = dict.fromkeys(
        "{cores} cores, {memory_gb} GB, {cpu}, Python {python}, torch {torch}".format(**line["machine"])
        + f", {line['threads']} thread" + "s" * (line["threads"] != 1)
        for line in good
    )  # fmt: skip
    commits = ", ".join(dict.fromkeys(line["commit"] for line in good))
    days = sorted({line["time"][:10] for line in good})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    words = ["Test points, in percent."]
    if any("validation" in line["change"] for line in good):
        words = ["In percent; *validation* rows are of a tenth of the training points that was held out."]
    seeds = [line for line in good if line["kind"] == "recipe" and line["seed"] != good[0]["seed"]]
    if seeds:
        words.append("Median over seeds, with the range in brackets.")
    if any(line.get("continued") for line in good):
        words.append("Some runs were stopped and continued: their times are upper bounds.")
    return [" ".join(words), f"Machine: {'; '.join(machines)}. Commit {commits}, {when}."]
