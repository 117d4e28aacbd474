"""NUMBERS → ONE RECORD: the metrics of one set of predictions, what they were measured on, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from longtail.labels.propensity import Propensity
from longtail.markup import html_table
from longtail.types import counted

AtK: TypeAlias = dict[int, float]


@dataclass(frozen=True)
class Bin:
    """Labels of similar frequency: what they add to P@k, and how many of their own test positives are found."""

    name: str
    labels: int
    frequency: float  # mean in the training targets
    positives: int  # in the test targets
    contribution: AtK  # to P@k, in percent
    recall: AtK  # of the bin's positives, in percent

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able object, rounded to 4 decimals."""
        return {
            "name": self.name,
            "labels": self.labels,
            "frequency": round(self.frequency, 4),
            "positives": self.positives,
            "contribution": {f"P@{k}": round(value, 4) for k, value in self.contribution.items()},
            "recall": {f"R@{k}": round(value, 4) for k, value in self.recall.items()},
        }


@dataclass(frozen=True)
class Evaluation:
    """All metrics of one set of predictions, in percent, and the same by bins of label frequency."""

    values: dict[str, float]  # "P@1" … "Cov@5"
    bins: list[Bin]  # head first
    points: int
    propensity: Propensity
    trained: int = 0  # points whose text the model was trained on
    dataset: str = ""  # what was measured on
    split: str = ""
    fingerprint: str = ""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of 95 %, in percent
    reliability: Sequence[Any] = ()  # of probabilities: predicted, observed, count
    examples: Sequence[Mapping[str, Any]] = ()  # a few points, texts and labels, to try a model with

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON-able object: metrics at the top level, rounded to 4 decimals, then bins and settings."""
        where = {"dataset": self.dataset, "split": self.split, "fingerprint": self.fingerprint} if self.split else {}
        out = {
            **{name: round(value, 4) for name, value in self.values.items()},
            "bins": [part.to_dict() for part in self.bins],
            "points": self.points,
            **({"trained": self.trained} if self.trained else {}),
            "propensity": {"a": self.propensity.a, "b": self.propensity.b},
            **where,
        }
        if self.intervals:
            out["intervals"] = {name: [round(low, 4), round(high, 4)] for name, (low, high) in self.intervals.items()}
        if self.reliability:
            out["reliability"] = [asdict(row) for row in self.reliability]
        if self.examples:
            out["examples"] = list(self.examples)
        return out

    def _tables(self) -> tuple[list[list[str]], list[list[str]]]:
        """Write the metrics and the bins as tables, each with its heads first."""
        ks = [name.split("@")[1] for name in self.values if name.startswith("P@")]
        rows = [[counted(self.points, "point"), *(f"@{k}" for k in ks)]]
        for metric in dict.fromkeys(name.split("@")[0] for name in self.values):
            rows.append([metric, *(f"{self.values[f'{metric}@{k}']:.2f}" for k in ks)])
        bin_rows = [["bin", "labels", "frequency", *(f"P@{k}" for k in ks), *(f"R@{k}" for k in ks)]]
        for part in self.bins:
            shares = [f"{value:.2f}" for value in (*part.contribution.values(), *part.recall.values())]
            bin_rows.append([part.name, f"{part.labels:,}", f"{part.frequency:,.1f}", *shares])
        return rows, bin_rows

    def __str__(self) -> str:
        return "\n\n".join(aligned(rows) for rows in self._tables())

    def _repr_html_(self) -> str:
        return "".join(html_table(heads, rows) for heads, *rows in self._tables())


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    template = "  ".join([f"{{:<{widths[0]}}}", *(f"{{:>{width}}}" for width in widths[1:])])
    return "\n".join(template.format(*row) for row in rows)
