"""Settings: refused with what was given and what is allowed."""

from __future__ import annotations

import pathlib

import pytest

from services.replay.config import ConfigError, load


def write(tmp_path: pathlib.Path, text: str) -> pathlib.Path:
    path = tmp_path / "replay.yaml"
    path.write_text(text)
    return path


def test_a_document_of_its_own_or_part_of_an_experiment(tmp_path: pathlib.Path) -> None:
    own = load(write(tmp_path, "tables: [{name: a, max_items: 7}]"), ["seed=3"])
    assert (own.tables[0].name, own.tables[0].max_items, own.seed) == ("a", 7, 3)
    part = load(write(tmp_path, "learner: {}\nreplay: {address: 'x:1'}"))
    assert part.address == "x:1"
    assert load(write(tmp_path, ""), ["persistence.directory=/d"]).persistence.directory == "/d"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tables: [{nam: a}]", "nam"),
        ("tables: [{name: a}, {name: a}]", "each name once"),
        ("tables: [{name: '../a'}]", "pattern"),
        ("tables: [{max_items: 5, min_size_to_sample: 6}]", "at most max_items, 5"),
        ("tables: [{samples_per_insert: 4, error_buffer: 3}]", "error_buffer is 3.0, allowed: 4"),
        ("tables: [{max_items: 16777217}]", "16777216"),
        ("tables: [{priority_exponent: .nan}]", "finite"),
        ("[1]", "must be a mapping"),
        ("a: [", "replay.yaml"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: pathlib.Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, text))


def test_wrong_overrides_are_refused(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "address: 'x:1'")
    for override in ("address", "address.port=1", "seed=[", "nothing=1"):
        with pytest.raises(ConfigError):
            load(path, [override])
