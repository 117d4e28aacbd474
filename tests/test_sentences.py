"""What people type: sentences about the demo data, written from its labels and never from predictions."""

from __future__ import annotations

import sys

import pytest

from longtail.data.demo import demo_dataset
from longtail.data.function_words import LANGUAGES
from longtail.pipeline import fit

EMPTY = {*LANGUAGES["English"].split()}  # words that carry no subject
# A sentence, and the last names of the objects that answer it, in any package.
SENTENCES = {
    "sort the rows of a table by the values in a column": {"sort_values", "nlargest", "nsmallest"},
    "joining two tables on a common key": {"merge", "join", "merge_ordered", "merge_asof"},
    "throw away rows that are duplicated": {"drop_duplicates", "duplicated"},
    "filling in missing values": {"fillna", "ffill", "bfill", "interpolate", "dropna"},
    "count how often each value occurs": {"value_counts", "bincount", "histogram", "Counter", "count"},
    "draw a histogram of my data": {"hist", "histplot", "hist2d", "histogram", "displot"},
    "where does the legend of a plot go": {"legend", "figlegend", "Legend"},
    "how do I save a figure to a file": {"savefig", "imsave", "print_figure"},
    "box and whiskers for each group": {"boxplot", "boxenplot", "catplot", "violinplot", "bxp"},
    "shortest way between two nodes of a graph": {
        "shortest_path", "dijkstra_path", "astar_path", "bellman_ford_path", "all_shortest_paths",
        "bidirectional_dijkstra", "shortest_path_length", "single_source_shortest_path", "bidirectional_shortest_path",
    },
    "is there a path from one node to another": {"has_path", "shortest_path", "all_simple_paths", "descendants"},
    "generating random graphs with a given number of edges": {
        "gnm_random_graph", "dense_gnm_random_graph", "gnp_random_graph", "fast_gnp_random_graph", "erdos_renyi_graph",
    },
    "nodes that matter most in a network": {
        "degree_centrality", "betweenness_centrality", "closeness_centrality", "eigenvector_centrality", "pagerank",
        "katz_centrality", "load_centrality", "voterank",
    },
    "solving a system of linear equations": {"solve", "lstsq", "spsolve", "solve_triangular", "tensorsolve", "inv"},
    "inverse of a square matrix": {"inv", "pinv", "pinvh", "solve", "I"},
    "stack arrays on top of each other": {"vstack", "stack", "concatenate", "row_stack", "dstack", "hstack"},
    "split an array into pieces of equal size": {"split", "array_split", "hsplit", "vsplit", "dsplit"},
    "position of the largest element": {"argmax", "nanargmax", "idxmax", "argmin", "amax", "argrelmax"},
    "rounding numbers to the nearest integer": {"rint", "round", "around", "floor", "ceil", "trunc", "fix", "round_"},
    "are two arrays nearly the same": {"allclose", "isclose", "array_equal", "assert_allclose", "equals"},
    "shuffle the elements of a list at random": {"shuffle", "permutation", "permuted", "choice"},
    "running total along an axis": {"cumsum", "cumulative_sum", "nancumsum", "cumprod", "add.accumulate"},
    "test whether two samples have the same mean": {
        "ttest_ind", "ttest_rel", "mannwhitneyu", "f_oneway", "ttest_1samp", "ks_2samp", "ranksums",
        "ttest_ind_from_stats",
    },
    "fast fourier transform of real numbers": {"rfft", "fft", "irfft", "rfftn", "rfft2", "rfftfreq", "ifft"},
    "smoothing a noisy signal": {
        "savgol_filter", "medfilt", "wiener", "lfilter", "filtfilt", "savgol_coeffs", "gaussian_filter",
    },
    "distances between all pairs of points": {"pdist", "cdist", "pairwise_distances", "distance_matrix", "squareform"},
    "area under a receiver operating characteristic curve": {
        "roc_auc_score", "roc_curve", "auc", "RocCurveDisplay", "from_predictions", "from_estimator",
        "average_precision_score",
    },
    "write a data frame as a parquet file": {"to_parquet", "read_parquet", "to_csv", "to_hdf"},
    "letters in capitals": {"upper", "isupper", "capitalize", "swapcase", "title", "lower"},
    "last day of the month": {"is_month_end", "MonthEnd", "BMonthEnd", "is_month_start", "days_in_month", "MonthBegin"},
}  # fmt: skip


@pytest.mark.slow
def test_sentences_find_what_they_ask_for(capsys):
    data = demo_dataset()
    model = fit("frugal", data.train)
    assert data.labels.ids is not None and model.labels.texts is not None
    last = [name.rsplit(".", 1)[-1] for name in data.labels.ids.tolist()]
    found, carried = list[str](), list[str]()
    for sentence, right in SENTENCES.items():
        best = [int(label) for label in model.predict([sentence], k=5).labels[0] if label >= 0]
        if any(last[label] in right for label in best):
            found.append(sentence)
        shares = {word["word"].lower(): word["score"] for word in model.explain(sentence, best[0])["words"]}
        content = max((share for word, share in shares.items() if word not in EMPTY), default=0.0)
        if any(share > content for word, share in shares.items() if word in EMPTY):
            carried.append(f"{sentence}: {shares}")
    missed = "\n".join(f"  {sentence}" for sentence in SENTENCES if sentence not in found)
    with capsys.disabled():
        sys.stdout.write(f"\n{len(found)} of {len(SENTENCES)} sentences have a right label among the five best; not:\n")
        sys.stdout.write(missed + "\n")
        sys.stdout.write("credited to a word without a subject first:\n" + "\n".join(carried) + "\n")
    assert len(SENTENCES) == 30 and len(found) >= 20
    assert not carried
