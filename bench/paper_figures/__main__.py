"""The evidence pictures of the papers on LabelMix, Gandalf, UniDEC and TailMix, remade on our data.

    python bench/paper_figures cosines                       # seconds
    python bench/paper_figures cosines --model runs/astec --model runs/astec-labelmix
    python bench/paper_figures curves --fit                  # trains; a stopped run goes on
    python bench/paper_figures curves --logs runs/astec runs/astec-gandalf
    python bench/paper_figures side-by-side runs/astec runs/astec-gandalf
    python bench/paper_figures positives                     # seconds
    python bench/paper_figures propensities                  # seconds

Models are trained before, the others like this one; training.curves is for --logs:

    longtail train astec+gandalf --data ../shared/data/LF-MDNSeeAlsoTitles-6K --out runs/astec-gandalf \\
        --set training.curves=true

Each command writes a page and its pictures into results/. Where a page says "confirmed here" or "not confirmed here",
the numbers on the page decided, by a rule that stands beside them. The data are not those of the papers: what can be
compared is which way a difference points, never a number.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import figure_cosines
import figure_curves
import figure_examples
import figure_positives
import figure_propensities

from longtail.errors import LongtailError

ROOT = Path(__file__).resolve().parents[2]
NAME = "LF-MDNSeeAlsoTitles-6K"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    whole = parser()
    args = whole.parse_args(words)
    if len(getattr(args, "model", [])) > 2:
        whole.error("two models at most: there are three colours, and TF-IDF has one")
    seen = [os.path.relpath(word, ROOT) if Path(word).is_absolute() else word for word in words]
    try:
        args.run(args, shlex.join(["python", "bench/paper_figures", *seen]))  # the command that the page names
    except LongtailError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    plain = argparse.RawDescriptionHelpFormatter
    whole = argparse.ArgumentParser(prog="python bench/paper_figures", description=__doc__, formatter_class=plain)
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, module: ModuleType, run: Callable[[argparse.Namespace, str], None]
    ) -> argparse.ArgumentParser:
        text = module.__doc__ or ""
        new = commands.add_parser(name, help=text.splitlines()[0], description=text, formatter_class=plain)
        new.add_argument("--out", type=Path, default=ROOT / "results" / name, help="the results without ending")
        new.set_defaults(run=run)
        return new

    one = command("cosines", figure_cosines, figure_cosines.write_cosines)
    one.add_argument("data", nargs="*", default=[NAME], help=f"data sets; by default {NAME}")
    one.add_argument("--model", action="append", type=Path, default=[], help="a model folder; two at most")
    one.add_argument("--points", type=int, default=figure_cosines.POINTS, help="training points at most (%(default)s)")
    one.add_argument("--seed", type=int, default=0, help="of the pairs (%(default)s)")

    two = command("curves", figure_curves, figure_curves.write_curves)
    two.add_argument("--fit", action="store_true", help="train what has no line yet")
    two.add_argument("--logs", nargs=2, type=Path, metavar="RUN", help="model folders without and with Gandalf")
    two.add_argument("--recipe", default="astec", help="the recipe without Gandalf (%(default)s)")
    two.add_argument("--epochs", nargs="+", type=int, default=[1, 2, 4, 8, 15], help="of the last stage (1 2 4 8 15)")
    two.add_argument("--seeds", nargs="+", type=int, default=[0], help="curves are means over them (0)")
    two.add_argument("--points", type=int, help="only so many training points, and only their labels")
    two.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of both recipes")

    three = command("side-by-side", figure_examples, figure_examples.write_side_by_side)
    three.add_argument("first", type=Path, help="the model folder without Gandalf")
    three.add_argument("second", type=Path, help="the model folder with it")
    three.add_argument("--most", type=int, default=8, help="points that are shown (%(default)s)")

    four = command("positives", figure_positives, figure_positives.write_positives)
    four.add_argument("--batch", type=int, default=256, help="points of a batch (%(default)s)")

    five = command("propensities", figure_propensities, figure_propensities.write_propensities)
    five.add_argument("data", nargs="*", default=figure_propensities.DATA, help="data sets, three at most")
    for some in (two, three, four):
        some.add_argument("--data", default=NAME, help="a data set (%(default)s)")
    return whole


if __name__ == "__main__":
    main()
