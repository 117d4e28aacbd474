"""What each kind of part must do; nothing concrete. The core knows these kinds and no part by its name.

A part is a frozen record of settings that builds what it describes: `build` makes the half that is trained (torch is
imported there), `freeze` turns that into the half that is served, `open` reads the served half from a model folder.

Encoder      → Tower → FrozenTower           texts to vectors
Head         → BuiltHead → FrozenHead        vectors to vectors, before the label rows
Sampler      → BuiltSampler → Retriever      which labels a batch, or a query, is scored against
Classifier   → BuiltClassifier → Scorer      vectors and labels to scores
Loss                                         scores and targets to a number
Objective                                    one of each: what a step minimises the weighted sum of
BatchOrder   → BuiltOrder                    which points stand side by side in a batch
Stage                                        one run of the loop, or what comes between two
Augmentation → Prepared                      more points, or other ones, at the places that it names
Voice        → VoiceScorer                   scores by words, from counts or from linear classifiers
LabelStore                                   label vectors, wherever they are kept
"""

from __future__ import annotations

from longtail.parts.kinds import (
    Augmentation,
    BatchOrder,
    Classifier,
    Encoder,
    Head,
    Loss,
    Objective,
    Run,
    Sampler,
    Stage,
    Voice,
)
from longtail.parts.serving import (
    Arrays,
    Earlier,
    FrozenHead,
    FrozenTower,
    LabelStore,
    Near,
    Proposals,
    Query,
    Retriever,
    Scorer,
    TokenTower,
    VoiceScorer,
    below,
)
from longtail.parts.trained import (
    BuiltClassifier,
    BuiltHead,
    BuiltOrder,
    BuiltSampler,
    Names,
    Network,
    Noise,
    Prepared,
    Remembers,
    Table,
    TextsAs,
    Tower,
)
from longtail.parts.training import (
    DRAWN,
    OWN,
    TARGETS,
    Batch,
    Candidates,
    Contexts,
    Factors,
    Fit,
    Inputs,
    Place,
    Points,
    Replace,
    States,
    Step,
    Tokenizer,
)

__all__ = [
    "DRAWN",
    "OWN",
    "TARGETS",
    "Arrays",
    "Augmentation",
    "Batch",
    "BatchOrder",
    "BuiltClassifier",
    "BuiltHead",
    "BuiltOrder",
    "BuiltSampler",
    "Candidates",
    "Classifier",
    "Contexts",
    "Earlier",
    "Encoder",
    "Factors",
    "Fit",
    "FrozenHead",
    "FrozenTower",
    "Head",
    "Inputs",
    "LabelStore",
    "Loss",
    "Names",
    "Near",
    "Network",
    "Noise",
    "Objective",
    "Place",
    "Points",
    "Prepared",
    "Proposals",
    "Query",
    "Remembers",
    "Replace",
    "Retriever",
    "Run",
    "Sampler",
    "Scorer",
    "Stage",
    "States",
    "Step",
    "Table",
    "TextsAs",
    "TokenTower",
    "Tokenizer",
    "Tower",
    "Voice",
    "VoiceScorer",
    "below",
]
