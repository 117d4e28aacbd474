from longtail.data.dataset import from_rows
from longtail.data.statistics import describe


def test_small_case_by_hand():
    data = from_rows(
        {"train": (["A b", "cat", "x"], [[0], [0, 1], []]), "test": (["dog dog"], [[1]])},
        label_texts=["Cat", "dog", "rare"],
    )
    facts = describe(data)
    expected = {
        "N_train": 3, "N_test": 1, "L": 3, "labels_per_point": 1.0, "labels_per_point_test": 1.0,
        "words_per_point": 1.3333, "words_per_label": 1.0, "points_per_label": 1.0, "max_points_of_a_label": 2,
        "share_labels_le_5": 1.0, "share_labels_0": 0.3333, "share_labels_1": 0.3333, "labels_in_test": 1,
        "share_train_texts_in_labels": 0.3333, "share_label_texts_in_train": 0.3333, "soft_targets": False,
    }  # fmt: skip
    assert {name: facts[name] for name in expected} == expected
