"""`longtail index`, `explain`, `doctor`, `upgrade`: an index of a model, reasons for predictions, a sound folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longtail.cli.console import emit, progress, say, table
from longtail.cli.models import Json, Run
from longtail.cli.options import Trusted
from longtail.cli.sign import say_stale
from longtail.errors import DataError, ModelError
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.explanations import Explanation, Word
    from longtail.index import Index
    from longtail.page import Page

SHADES = (0, 230, 229, 222, 215, 208)  # colours of a terminal, pale to strong


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (index, explain, doctor, upgrade):
        app.command()(command)


def index(
    run: Run,
    precision: Annotated[
        Literal["fp32", "fp16", "int8"], typer.Option(help="The number format of the label vectors.")
    ] = "int8",
    search: Annotated[
        Literal["auto", "exact", "hnsw", "ivf"],
        typer.Option(help="exact compares all labels; hnsw searches a graph (extra `ann`), ivf searches clusters."),
    ] = "auto",
    recall: Annotated[
        float,
        typer.Option(min=0, max=1, help="The recall at 5 that hnsw and ivf must reach, measured on training texts."),
    ] = 0.98,
    store: Annotated[
        str | None,
        typer.Option(
            help="Hand the vectors over to a store instead of a file of the model: qdrant:///path or qdrant://host "
            "(extra `qdrant`), postgresql://user@host/database with pgvector (extra `postgres`), milvus://host or "
            "milvus:///path.db (extra `milvus`), or shards://host1,host2: `longtail serve` of the same model; "
            "processes with LONGTAIL_STORE=… search there."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make single predictions fast: quantised label vectors, and a graph or clusters that reach the recall."""
    from longtail.artefact import build_artefact

    if store is not None:
        _store(run, store, recall, json=json)
        return
    with progress(f"indexing {run}") as step:
        info = build_artefact(run, precision=precision, search=search, recall=recall, progress=step)
    if json:
        emit(None if info is None else asdict(info))
    elif info is None:
        say("nothing to do: this model has no label vectors, or finds its candidates by itself")
    else:
        effort = f", ef_search {info.ef_search}" if info.ef_search else f", nprobe {info.nprobe}" if info.nprobe else ""
        recalled = f"recall {info.recall:.4f} measured on {info.texts:,} training texts"
        say(f"wrote {run / info.file}: {info.precision}, {info.search}{effort}; {recalled}")
        say_stale(run)
        if info.recall < recall:
            say(f"the asked recall of {recall} is out of reach at this precision; try --precision fp32")


def _store(run: Path, store: str, recall: float, *, json: bool) -> None:
    """Hand the label vectors of a model over to a store."""
    from longtail.stored import STORE, build_store, shown

    with progress(f"handing {run} over to {shown(store)}") as step:
        built = build_store(run, store, recall=recall, progress=step)
    if json:
        emit(None if built is None else asdict(built[1]))
    elif built is None:
        say("nothing to do: this model has no label vectors, or finds its candidates by itself")
    else:
        place, info = built
        effort = f"ef_search {info.ef_search}" if info.ef_search else "all labels are looked at"
        say(f"wrote {place}: {effort}; recall {info.recall:.4f} measured on {info.texts:,} training texts")
        say(f"search there: {STORE}={shown(store)} longtail serve {run}")


def explain(
    run: Run,
    text: Annotated[str, typer.Argument(help="The text to explain a label for.")],
    label: Annotated[
        str | None, typer.Option("--label", "-l", help="A label: its id, raw id or text; the best one by default.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write what labels look at into this page (attentionxml).")] = None,
    json: Json = False,
    trusted_keys: Trusted = None,
) -> None:
    """Explain why a text gets a label: words, nearest training points and label texts, neighbours, head or tail.

    Where each label looks at its own words (attentionxml, laroberta), those are marked for the five best labels.
    """
    from longtail.index import Index
    from longtail.labels.lookup import find_label

    index = Index.load(run, verify=True, trusted=trusted_keys)
    if label is None:
        best = index.predict([text], 1).labels[0, 0]
        if best < 0:
            raise DataError(
                "the model finds no label for this text", remedy="name one with --label, or use other words"
            )
        label_id = int(best)
    else:
        label_id = find_label(index.labels, label)
    explanation = index.explanation(text, label_id)
    marked = marks(index, text, label_id) if explanation.looked else []
    if html is not None:
        if not marked:
            raise DataError(
                "there is nothing to mark: the labels of this model look at no words of this text",
                remedy="--html is for attentionxml and laroberta, for texts with words and labels that were trained",
            )
        marked_page(text, marked).write(html)
        say(f"wrote {html}")
    if json:
        emit(explanation.to_dict())
    else:
        show(explanation)
        show_marks(marked)


def marks(index: Index, text: str, label: int, most: int = 5) -> list[tuple[str, tuple[Word, ...]]]:
    """Return what a label and the best others look at."""
    from longtail.explanations import looked_at, name_of

    best = [label, *(int(other) for other in index.predict([text], most).labels[0] if other not in (-1, label))]
    found = [(name_of(index.labels, one), looked_at(index.model, text, one)) for one in best[:most]]
    return [(name, words) for name, words in found if words]


def show_marks(marked: list[tuple[str, tuple[Word, ...]]]) -> None:
    """Print the text for each label, with the words that it looks at in colour, and the three that it looks at most."""
    for name, words in marked:
        largest = max(word.score for word in words) or 1
        shades = [round(5 * word.score / largest) for word in words]
        line = " ".join(
            typer.style(word.word, fg="black", bg=SHADES[shade]) if shade else word.word
            for word, shade in zip(words, shades, strict=True)
        )
        most = sorted(words, key=lambda word: -word.score)[:3]
        typer.echo(f"\n{name} looks at " + ", ".join(f"{word.word} {word.score:.0%}" for word in most))
        typer.echo(line)


def marked_page(text: str, marked: list[tuple[str, tuple[Word, ...]]]) -> Page:
    """Make a page with the text for each label, the words that it looks at marked."""
    from longtail.page import Page

    page = Page("What labels look at")
    page.words(text if len(text) <= 200 else f"{text[:200]} …")
    for name, words in marked:
        page.heading(name)
        page.marked([(word.word, word.score) for word in words])
    return page


def show(explanation: Explanation) -> None:
    """Print an explanation as tables."""
    from longtail.report import bar

    rank = "not among the best 100" if explanation.rank is None else f"rank {explanation.rank}"
    probability = "" if explanation.probability is None else f", right in {explanation.probability:.0%} of such cases"
    facts = f"label {explanation.label}, {explanation.bin}, {explanation.frequency:,} training points"
    typer.echo(f"{explanation.label_text}  ({facts})")
    typer.echo(f"score {explanation.score:.4f}, {rank}{probability}\n")
    largest = max((abs(entry.score) for entry in explanation.words), default=0) or 1
    rows = [(entry.word, f"{entry.score:+.4f}", bar(entry.score / largest, 20)) for entry in explanation.words]
    table("Words: what the score loses without them", ("word", "share", ""), rows)
    if explanation.points:
        rows = [(entry.text, f"{entry.similarity:.2f}", "✓" if entry.has else "") for entry in explanation.points]
        table("Nearest training points", ("text", "similarity", "has the label"), rows)
    if explanation.label_texts:
        rows = [(entry.text, f"{entry.score:.2f}", str(entry.id)) for entry in explanation.label_texts]
        table("Nearest label texts", ("label", "similarity", "id"), rows)
    if explanation.neighbours:
        rows = [(entry.text, f"{entry.score:.0%}", str(entry.id)) for entry in explanation.neighbours]
        table("Neighbours: labels of the same points", ("label", "of its points", "id"), rows)


def doctor(
    run: Run,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is wrong and change nothing.")] = False,
    json: Json = False,
) -> None:
    """Check a model folder (checksums, every array, leftovers, a few answers), and repair what can be repaired."""
    from longtail.doctor import examine

    with progress(f"examining {run}"):
        findings = examine(run, repair=not dry_run)
    for finding in findings:
        if json:
            emit(asdict(finding))
        else:
            typer.echo(f"{finding.wrong}: {finding.mended}" if finding.mended else finding.wrong)
    wrong = sum(not finding.mended for finding in findings)
    say(f"{run} is sound" if not wrong else f"not repaired: {counted(wrong, 'thing')} wrong")
    if wrong:
        raise typer.Exit(ModelError.exit_code)


def upgrade(run: Run) -> None:
    """Bring a model folder that an older version wrote up to date, or say why that cannot be."""
    from longtail.folder import SCHEMA
    from longtail.upgrade import upgrade as bring_up

    before = bring_up(run)
    say(f"{run} is up to date" if before == SCHEMA else f"{run}: brought from schema {before} to {SCHEMA}")
