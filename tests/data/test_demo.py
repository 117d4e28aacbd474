import importlib.util
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent, indent

import numpy as np
import pytest

from longtail.data import demo
from longtail.data.demo import Directory, Item, demo_dataset, package_items
from longtail.errors import DataError, MissingExtra, ResourceError


def function(name: str, *links: str, text: str = "") -> str:
    """Write the source of a documented function."""
    doc = f"{text or 'Do ' + name + '.'}\n"
    if links:
        doc += "\nSee Also\n--------\n" + "\n".join(f"{link} : Related." for link in links) + "\n"
    return f'def {name}():\n    """{indent(doc, "    ").strip()}\n    """\n\n'


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a small package whose name is new for each test, and which must be imported with care."""
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    root = tmp_path / "site" / name
    marker = tmp_path / "side_effect"
    effect = f"import pathlib\npathlib.Path({str(marker)!r}).write_text('imported')\n"
    classes = '''
        class Basket:
            """Hold goods."""
            def add(self):
                """Add goods.

                See Also
                --------
                remove : Other way.
                buy : At once.
                """
            def remove(self):
                """Remove goods.

                .. seealso:: :meth:`add`
                """

        class Trolley(Basket):
            """Hold more goods.

            See Also
            --------
            Basket : Smaller.
            Trolley : Itself.
            """
    '''
    files = {
        "__init__.py": "from .tills import buy, pay\nfrom .baskets import Basket, Trolley\n",
        "tills.py": function("buy", "pay", "sell", "missing") + function("pay", "buy") + function("sell", "buy", "pay"),
        "baskets.py": dedent(classes),
        "many.py": "".join(function(f"item_{i}", f"item_{i + 1}", "buy") for i in range(20)),
        "broken.py": "raise RuntimeError('cannot be imported')\n",
        "script.py": "import sys\nsys.exit(3)\n",
        "_private.py": effect,
        "conftest.py": effect,
        "tests/__init__.py": effect,
        f"../{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    for file, content in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(content)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return name


def test_packages_are_read_without_side_effects(shop: str, tmp_path: Path) -> None:
    data = demo_dataset(packages=[shop], cache=tmp_path / "cache")
    assert not (tmp_path / "side_effect").exists()
    assert shop not in sys.modules
    assert not list((tmp_path / "site").rglob("*.pyc"))
    assert data.name == "PythonSeeAlso"
    assert set(data.splits) == {"train", "test"}
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {Path(data.origin).name}


def test_items_have_one_path_and_all_links(shop: str) -> None:
    items = {item.paths[0].partition(".")[2]: item for item in package_items(shop)}
    assert set(items) >= {"buy", "pay", "tills.sell", "Basket", "Trolley", "Basket.add", "Basket.remove"}
    assert "Trolley.add" not in items  # inherited: the same item as Basket.add
    assert f"{shop}.Trolley.add" in items["Basket.add"].paths
    assert items["buy"].links == ("pay", "sell", "missing")
    assert items["Basket.remove"].links == ("add",)
    assert not any("tests" in name or "_private" in name for name in items)


def test_points_labels_and_excluded_pairs(shop: str, tmp_path: Path) -> None:
    data = demo_dataset(packages=[shop], cache=tmp_path)
    assert data.labels.ids is not None
    labels = data.labels.ids.tolist()
    assert np.bincount(data.train.targets.indices, minlength=len(labels)).min() >= 1
    for split in (data.train, data.test):
        assert split.ids is not None
        assert np.diff(split.targets.indptr).min() >= 1
        for row, point in enumerate(split.ids):
            own = [labels[label] for label in split.excluded[[row]].indices]
            assert own == [point] * (point in labels)
            assert point not in [labels[label] for label in split.targets[[row]].indices]
    both = [*(data.train.ids or ()), *(data.test.ids or ())]
    assert len(set(both)) == len(both)


def test_the_same_packages_give_the_same_data(shop: str, tmp_path: Path) -> None:
    first = demo_dataset(packages=[shop], cache=tmp_path / "a")
    second = demo_dataset(packages=[shop, "not_installed_anywhere", shop], cache=tmp_path / "b")
    assert first.fingerprint == second.fingerprint
    assert Path(first.origin).name == Path(second.origin).name


def test_the_cache_is_used_and_mended(shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    calls: list[tuple[str, int, int]] = []

    def build() -> str:
        return demo_dataset(packages=[shop], progress=lambda *call: calls.append(call)).fingerprint

    fingerprint = build()
    assert build() == fingerprint
    assert calls == [(shop, 1, 1)]
    (folder,) = (tmp_path / "cache").iterdir()
    for damage, file in enumerate(("dataset.json", "train.arrow", "matrices.safetensors", "labels.arrow"), 2):
        content = bytearray((folder / file).read_bytes())
        if file == "labels.arrow":  # one changed letter is damage too
            content = content.replace(b"Do buy.", b"Do bXy.")
        (folder / file).write_bytes(content if file == "labels.arrow" else content[: len(content) // 2])
        assert build() == fingerprint
        assert len(calls) == damage
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_builders_at_the_same_time_agree(shop: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        hashes = list(pool.map(lambda _: demo_dataset(packages=[shop], cache=tmp_path / "cache").fingerprint, range(3)))
    assert len(set(hashes)) == 1
    assert demo_dataset(packages=[shop], cache=tmp_path / "cache").fingerprint == hashes[0]


def test_another_version_is_another_data_set(shop: str, tmp_path: Path) -> None:
    first = demo_dataset(packages=[shop], cache=tmp_path / "cache")
    (metadata,) = (tmp_path / "site").glob("*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("1.0", "2.0"))
    assert demo_dataset(packages=[shop], cache=tmp_path / "cache").origin != first.origin


def test_errors_say_what_to_do(shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingExtra, match=r"nowhere_x is not installed.*longtail\[demo\]"):
        demo_dataset(packages=["nowhere_x"], cache=tmp_path)
    with pytest.raises(MissingExtra, match="pandas is not installed"):
        demo_dataset(packages=[], cache=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="set LONGTAIL_CACHE"):
        demo_dataset(packages=[shop], cache=tmp_path / "file")
    many = tmp_path / "site" / shop
    for file in ("tills", "baskets", "many"):
        (many / f"{file}.py").write_text("def buy(): ...\ndef pay(): ...\nclass Basket: ...\nclass Trolley: ...\n")
    with pytest.raises(DataError, match="See Also"):
        demo_dataset(packages=[shop], cache=tmp_path / "other")
    (many / "__init__.py").write_text("import os\nos._exit(7)\n")
    with pytest.raises(ResourceError, match="cannot be read"):
        demo_dataset(packages=[shop], cache=tmp_path / "third")


PATHS = [
    ("pandas.DataFrame.groupby", "pandas.core.frame.DataFrame.groupby"),
    ("pandas.Series.groupby",),
    ("pandas.Series.str.lower", "pandas.core.strings.StringMethods.lower"),
    ("pandas.DataFrame.agg",),
    ("numpy.sum",),
    ("numpy.ma.sum",),
    ("numpy.ma.prod",),
    ("matplotlib.pyplot.plot",),
    ("matplotlib.axes.Axes.plot",),
    ("matplotlib.lines.Line2D",),
    ("pandas.io.formats.render",),
]


@pytest.mark.parametrize(
    ("origin", "name", "target"),
    [
        ("pandas.DataFrame.groupby", "agg", "pandas.DataFrame.agg"),  # same class
        ("pandas.DataFrame.groupby", "Series.groupby", "pandas.Series.groupby"),  # package root
        ("pandas.DataFrame.groupby", "pandas.Series.str.lower", "pandas.Series.str.lower"),  # absolute
        ("pandas.DataFrame.groupby", "DataFrame.groupby", None),  # itself
        ("pandas.DataFrame.groupby", "np.sum", "numpy.sum"),  # alias
        ("pandas.DataFrame.groupby", "render", "pandas.io.formats.render"),  # the only such ending
        ("pandas.DataFrame.groupby", "sum", None),  # other packages are named in full
        ("numpy.ma.sum", "prod", "numpy.ma.prod"),  # same module
        ("numpy.ma.sum", "sum", "numpy.sum"),  # its own name means the one further out
        ("numpy.ma.sum", "numpy.sum", "numpy.sum"),
        ("matplotlib.axes.Axes.plot", "plt.plot", "matplotlib.pyplot.plot"),
        ("matplotlib.pyplot.plot", ".Axes.plot", "matplotlib.axes.Axes.plot"),
        ("matplotlib.pyplot.plot", ".Line2D", "matplotlib.lines.Line2D"),
        ("numpy.sum", "lower", None),
    ],
)
def test_names_are_resolved_where_they_stand(origin: str, name: str, target: str | None) -> None:
    items = [Item(tuple(paths), "Text.", ()) for paths in PATHS]
    numbers = {item.paths[0]: number for number, item in enumerate(items)}
    target_number = Directory(items).find(name, items[numbers[origin]])
    assert (None if target_number is None else items[target_number].paths[0]) == target


def test_ambiguous_endings_are_dropped() -> None:
    items = [Item((path,), "", ()) for path in ("a.b.x", "a.c.x", "a.d.y")]
    assert Directory(items).find("x", items[2]) is None


def test_real_packages(tmp_path: Path) -> None:
    packages = ["networkx", "xarray"]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; pip install 'longtail[demo]'")
    before = dict(os.environ)
    data = demo_dataset(packages=packages, cache=tmp_path / "a")
    rebuilt = demo_dataset(packages=packages[::-1], cache=tmp_path / "b")
    assert data.fingerprint == rebuilt.fingerprint
    assert dict(os.environ) == before
    assert len(data.train) + len(data.test) > 500
    points = {*(data.train.ids or ()), *(data.test.ids or ())}
    assert points >= {"networkx.pagerank", "xarray.Dataset.mean"}
    assert not [text for text in data.labels.texts or () if "`" in text or text.endswith(": ")]


def test_packages_are_a_fixed_list() -> None:
    assert len(set(demo.PACKAGES)) == len(demo.PACKAGES) >= 10
