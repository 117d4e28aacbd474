"""A pre-trained encoder: found, cut into tokens, trained, kept in the model folder, and refused where it must be."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from contract.empty import gets_none_when_empty
from golden.corpus import corpus
from small import networks

from longtail.data.pretrained import MINILM, PACKAGE, Pretrained
from longtail.encoders.transformer import Transformer
from longtail.errors import DataError, MissingExtra, ModelError, RecipeError, ResourceError
from longtail.model import Model
from longtail.parts import Query
from longtail.pipeline import fit
from longtail.recipe import find_recipe

transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
DIM, TOKENS = 16, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Write a small encoder of the words of the golden corpus, as `save_pretrained` does."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    path = tmp_path_factory.mktemp("encoder")
    train = corpus(100)
    words = sorted({word for text in [*train.texts, *train.labels.texts] for word in text.split()})
    vocabulary = {word: place for place, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    tokenizer.save(str(path / "tokenizer.json"))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=DIM, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(path)
    (path / "README.md").write_text("---\nlicense: mit\n---\n# small\n")
    return path


def settings(folder, **more):
    return Transformer(model=str(folder), dim=DIM, max_tokens=TOKENS, **more)


def recipe_of(folder, name="depsl", **more):
    recipe = find_recipe(name).override("encoder", settings(folder, **more).dump())
    for path, value in {"training.epochs": 2, "training.batch_size": 32, "head.dim": 8}.items():
        recipe = recipe.override(path, value)
    return recipe


def test_texts_become_token_ids_and_long_ones_are_cut_at_a_special_token(folder, caplog):
    tokenizer = settings(folder).tokenizer(None, None, None)
    words = list(tokenizer.vocabulary)
    one, two = words[4], words[5]
    with caplog.at_level(logging.WARNING, "longtail"):
        ids = settings(folder).inputs(tokenizer, [one, "", f"{one} {two} " * 5, "\ud800"]).ids
    names = [[words[place - 1] for place in row if place] for row in ids]
    assert names == [["[CLS]", one, "[SEP]"], [], ["[CLS]", one, two, one, two, "[SEP]"], ["[CLS]", "[UNK]", "[SEP]"]]
    assert "1 of 4 texts are longer than 6 words or tokens" in caplog.text


def test_vectors_are_the_means_of_states(folder):
    encoder = settings(folder)
    tokenizer = encoder.tokenizer(None, None, None)
    frozen = encoder.open({f"encoder.{name}": value for name, value in tokenizer.weights().items()}, tokenizer)
    texts = corpus(20).texts.tolist()
    library = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        for text, vector in zip(texts, frozen.encode(Query(texts)), strict=True):
            ids = torch.tensor([tokenizer.tokenizer.encode(text).ids])
            expected = library(ids).last_hidden_state[0].mean(dim=0).numpy()
            np.testing.assert_allclose(vector, expected, atol=1e-5)
    both = settings(folder, layers=2, pooling="cls")
    frozen = both.open(frozen.arrays(), tokenizer)
    with torch.no_grad():
        ids = torch.tensor([tokenizer.tokenizer.encode(texts[0]).ids])
        states = library(ids, output_hidden_states=True).hidden_states[-2:]
    np.testing.assert_allclose(frozen.encode(Query(texts[:1]))[0], torch.cat(states, dim=2)[0, 0].numpy(), atol=1e-5)
    assert not frozen.encode(Query(["", texts[0]]))[0].any()
    assert frozen.operations() > 2 * 2 * DIM * DIM


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_recomputing_layers_on_the_way_back_changes_no_gradient(folder, pooling):
    gradients = []
    for chunk in (512, 1):
        network = networks(recipe_of(folder, chunk=chunk, pooling=pooling), corpus(80))["training"]
        network.dense.train()
        torch.manual_seed(3)
        network.loss(np.arange(70), np.random.default_rng(0)).backward()
        learnt = [(name, value) for name, value in network.dense.named_parameters() if value.requires_grad]
        gradients.append({name: value.grad.clone() for name, value in learnt})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_its_weights_have_a_rate_of_their_own(folder):
    moved = []
    for rate in (1e-4, 1e-12):
        before = Pretrained.find(str(folder), None).weights()
        after = networks(recipe_of(folder, learning_rate=rate), corpus(80), run=True)["training"]
        weights = after.tower.module.state_dict()
        moved.append(max(float(np.abs(weights[name].numpy() - before[name]).max()) for name in weights))
    assert moved[0] > 1e-4 > 1e-8 > moved[1]


def test_a_model_folder_keeps_the_encoder_and_names_its_licence(folder, tmp_path):
    own = tmp_path / "encoder"
    shutil.copytree(folder, own)
    train = corpus(80)
    model = fit(recipe_of(own), train)
    model.save(tmp_path / "model")
    shutil.rmtree(own)  # what it was made from is not needed any more
    opened = Model.load(tmp_path / "model")
    texts = train.texts.tolist()[:10]
    np.testing.assert_array_equal(opened.predict(texts).scores, model.predict(texts).scores)
    assert "licence: mit" in (tmp_path / "model" / "README.md").read_text()


def test_a_hostile_folder_is_refused(folder, tmp_path):
    fit(recipe_of(folder), corpus(80)).save(tmp_path / "model")
    about = json.loads((tmp_path / "model" / "encoder.json").read_text())
    for change, what in (
        ({"model_type": "os.system"}, "no encoder of the kind"),
        ({"hidden_size": 1 << 20}, "not float32 "),
    ):
        wrong = {**about, "config": {**about["config"], **change}}
        (tmp_path / "model" / "encoder.json").write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match="changed since it was written"):
            Model.load(tmp_path / "model")
        with pytest.raises(ModelError, match=what):
            Model.load(tmp_path / "model", verify=False).predict(["x"])


def test_what_cannot_be_used_is_refused(folder, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    with pytest.raises(DataError, match="no weights as safetensors"):
        Pretrained.find(str(broken), None).weights()
    (broken / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        Pretrained.find(str(broken), None)
    (broken / "config.json").unlink()
    with pytest.raises(DataError, match=r"no config\.json"):
        Pretrained.find(str(broken), None)
    with pytest.raises(DataError, match="is no folder"):
        Pretrained.find("nowhere", None)
    for revision in (None, "main", "0123"):
        with pytest.raises(RecipeError, match="pin it by the commit"):
            Pretrained.find("owner/name", revision)
    with pytest.raises(RecipeError, match=f"encoder.dim={DIM}"):
        Transformer(model=str(folder), dim=8).tokenizer(None, None, None)
    with pytest.raises(RecipeError, match=r"encoder\.layers=2"):
        settings(folder, layers=3).tokenizer(None, None, None)
    with pytest.raises(RecipeError, match="max_tokens=24"):
        Transformer(model=str(folder), dim=DIM, max_tokens=25).tokenizer(None, None, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="minilm"):
        Pretrained.find(MINILM, None)


def test_a_commit_of_the_hub_is_fetched_without_anything_that_could_run(folder, monkeypatch):
    import huggingface_hub

    asked = []

    def fetch(name, *, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    commit = "0123456789" * 4
    found = Pretrained.find("owner/name", commit)
    assert found.source == f"owner/name ({commit})" and found.licence == "mit"
    assert asked[0][:2] == ("owner/name", commit) and not any(".py" in part or ".bin" in part for part in asked[0][2])

    def fail(name, **more):
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ResourceError, match="no route to host"):
        Pretrained.find("owner/name", commit)


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the extra minilm is not installed")
def test_minilm_brings_near_texts_together():
    tokenizer = Transformer().tokenizer(None, None, None)
    frozen = Transformer().open({f"encoder.{k}": v for k, v in tokenizer.weights().items()}, tokenizer)
    vectors = frozen.encode(Query(["how to sort a list", "ordering the items of an array", "recipes for apple cake"]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def attending(folder, name="laroberta", **more):
    recipe = find_recipe(name).override("encoder", settings(folder, tokens=True, **more).dump())
    for path, value in {"training.epochs": 2, "training.batch_size": 32, "classifier.layers": [8]}.items():
        recipe = recipe.override(path, value)
    return recipe


def test_there_is_a_state_for_each_token(folder):
    encoder = settings(folder, tokens=True)
    tokenizer = encoder.tokenizer(None, None, None)
    frozen = encoder.open({f"encoder.{name}": value for name, value in tokenizer.weights().items()}, tokenizer)
    texts = ["", *corpus(20).texts.tolist()]
    library = transformers.AutoModel.from_pretrained(folder).eval()
    query = Query(texts)
    states, mask = frozen.tokens(frozen.inputs(query))
    assert not mask[0].any()
    with torch.no_grad():
        for text, own, there in zip(texts[1:], states[1:], mask[1:], strict=True):
            ids = torch.tensor([tokenizer.tokenizer.encode(text).ids])
            np.testing.assert_allclose(own[there], library(ids).last_hidden_state[0].numpy(), atol=1e-5)
            assert frozen.pieces(Query([text])) == tokenizer.tokenizer.encode(text).tokens


@pytest.mark.parametrize("more", ["", "+tailmix", "+tmix", "+ssmix", "+wordmix", "+hiddenmix"])
def test_labels_look_at_tokens(folder, more, tmp_path):
    train = corpus(60)
    model = fit(attending(folder, f"laroberta{more}"), train)
    model.save(tmp_path / "run")
    loaded = Model.load(tmp_path / "run")
    np.testing.assert_allclose(
        loaded.predict(train.texts[:9], 5).scores, model.predict(train.texts[:9], 5).scores, atol=1e-4
    )
    pieces, weights = loaded.vectors.looks(Query([train.texts[0]]), np.array([0, 1]))
    assert pieces[0] == "[CLS]" and weights.shape == (2, len(pieces))
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)


def test_empty_texts_get_no_labels_from_laroberta(folder, tmp_path):
    train = corpus(40)
    gets_none_when_empty(fit(attending(folder), train), train.texts[0], tmp_path / "run")


def test_tmix_goes_on_from_the_mixed_layer(folder):
    """What the last layer gives is mixed there; what the first one gives is changed by the layers above."""
    from longtail.encoders.towers.transformer import between_layers, hidden
    from longtail.parts import Step

    network = networks(attending(folder, "laroberta+tmix"), corpus(40))["training"]
    tower, (mixer,) = network.tower, network.augmentations
    inputs = network.points.inputs.take(np.arange(6))
    tower.module.eval()
    given = tower.module, tower.embed(inputs), tower(inputs, None).mask, tower.settings
    plain = hidden(*given)
    for depth in (0.5, 1.0):
        step = Step(np.random.default_rng(0), 1.0, network, (mixer,))
        mixer.apply("batch", network.points.take(np.arange(6)), step)
        step.memory[mixer, "depth"] = depth
        mixed = step.memory[mixer]
        share, partners = torch.from_numpy(mixed.share)[:, None, None], torch.from_numpy(mixed.points)
        with torch.no_grad(), between_layers(tower.module, step):
            found = hidden(*given)
        expected = share * plain + (1 - share) * plain[partners]
        assert torch.allclose(found, expected, atol=1e-5) == (depth == 1.0)
    torch.testing.assert_close(hidden(*given), plain)  # nothing is left behind


def test_frozen_layers_stay_as_they_are(folder):
    model = fit(recipe_of(folder, frozen=1), corpus(40))
    before = settings(folder).tokenizer(None, None, None).weights()
    after = {name.removeprefix("encoder."): value for name, value in model.vectors.arrays().items()}
    same = {name: np.array_equal(value, after[name]) for name, value in before.items() if name in after}
    assert {name for name, kept in same.items() if kept} == {name for name in same if "encoder.layer.1" not in name}
    with pytest.raises(RecipeError, match=r"--set encoder\.frozen=2"):
        settings(folder, frozen=3).tokenizer(None, None, None)
