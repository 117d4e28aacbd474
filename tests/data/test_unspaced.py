from __future__ import annotations

import pytest

import longtail as lt
from longtail.data.sequences import Sequences
from longtail.data.tokens import terms


def test_other_texts_are_cut_as_before():
    assert terms("Red_cat, naïve Äijä 32GB") == ["red_cat", "naïve", "äijä", "32gb"]
    assert terms("offsetTop Ärger", pairs=True)[:4] == ["offsettop", "offset", "top", "ärger"]


def test_marks_stay_in_their_words():
    assert terms("हिन्दी भाषा।") == ["हिन्दी", "भाषा"]
    assert terms("cafe\u0301 a") == ["cafe\u0301", "a"]


def test_pairs_of_letters_and_pairs_of_those():
    assert terms("東京 tower") == ["東", "京", "東京", "tower"]
    assert "東京 tower" in terms("東京 tower", pairs=True)


def test_words_in_order_are_cut_too():
    assert Sequences.fit(["黒猫 cat"]).ids(["黒猫"], 4)[0].tolist()[0][:3] != [1, 0, 0]


@pytest.mark.parametrize(
    ("texts", "query", "label"),
    [
        (["黑色的猫在花园里", "老狗睡觉", "野生狐狸跑了"], "我的猫很可爱", "猫"),
        (["赤いカメラを買う", "古いテレビの修理", "新しい自転車"], "カメラの使い方", "カメラ"),
        (["แมวดำในสวน", "สุนัขแก่", "จิ้งจอกป่า"], "แมวของฉัน", "แมว"),
    ],
    ids=["Chinese", "Japanese", "Thai"],
)
def test_texts_without_spaces_get_sensible_labels(texts, query, label):
    labels = [[label], ["second"], ["third"]]
    assert lt.fit("knn", texts, labels).predict([query], k=1)[0][0][1] == label
    hidden = [["first"], ["second"], ["third"]]  # also where the label's own text does not help
    assert lt.fit("knn", texts, hidden).predict([query], k=1)[0][0][1] == "first"
