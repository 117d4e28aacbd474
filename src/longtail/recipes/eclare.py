"""ECLARE: label vectors from label texts, those of graph neighbours and free rows; predictions walk over the graph."""

from __future__ import annotations

from dataclasses import replace

from longtail.classifiers.rows import Rows
from longtail.classifiers.texts import Combined, GraphText, LabelText
from longtail.encoders.heads import Gated
from longtail.recipe import Recipe
from longtail.recipes.decaf import in_levels
from longtail.training.stages.recluster import Recluster
from longtail.training.stages.traverse import Traverse


def eclare() -> Recipe:
    """Return the recipe of methods §5.6: as DECAF, with the label graph in every place. References: [ECLARE].

    Word vectors go on learning after the first stage, with the rates of DECAF; the paper freezes them on most data:
    `--set surrogate.freeze=true`.
    """
    label = Gated(gates="one")
    texts = (LabelText(transform=label), GraphText(transform=label))
    rows = Rows(init="graph_text", text=None, cosine=False)
    first = Combined(of=texts, by="attention", bias=True, bias_init="prior")
    combined = replace(first, of=(*texts, rows))
    recipe = in_levels("eclare", Gated(gates="one", last=True), first, combined, Recluster(smooth=True, prune=1.0))
    return replace(recipe, stages=(*recipe.stages, Traverse()))
