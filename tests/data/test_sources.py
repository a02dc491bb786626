"""Every way a file of rows can be written or broken: what is read, and what the error says of the place."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import types

import pyarrow
import pyarrow.parquet
import pytest

from lydian.data.rows import load_problems
from lydian.errors import DataError, MissingExtraError

ROWS = [{"question": "2 + 3 = ?", "answer": "5"}, {"question": "4 + 4 = ?", "answer": "8"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = b"question,answer\n2 + 3 = ?,5\n4 + 4 = ?,8\n"


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def fault(tmp_path, name, content, **settings):
    """The error of loading this content, without the folder's name."""
    with pytest.raises(DataError) as caught:
        load_problems(write(tmp_path, name, content), **settings)
    return str(caught.value).replace(f"{tmp_path}/", "")


def parquet(rows):
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sums.jsonl", LINES),
        ("sums.jsonl", b"\xef\xbb\xbf" + LINES),
        ("sums.jsonl", LINES.replace(b"\n", b"\r\n")),
        ("sums.jsonl", b"\n" + LINES.replace(b"\n", b"\n  \n")),
        ("sums.jsonl", LINES.removesuffix(b"\n")),
        ("sums.json", LINES),
        ("sums.json", json.dumps(ROWS, indent=1).encode()),
        ("sums.json", b"\xef\xbb\xbf " + json.dumps(ROWS).encode() + b"\n"),
        ("sums.jsonl.gz", gzip.compress(LINES)),
        ("sums.csv", CSV),
        ("sums.CSV", b"\xef\xbb\xbf" + CSV.replace(b"\n", b"\r\n\r\n")),
        ("sums.csv", CSV.replace(b"\n", b"\r")),
        ("sums.csv.gz", gzip.compress(CSV)),
        ("sums.tsv", CSV.replace(b",", b"\t")),
        ("sums.parquet", parquet(ROWS)),
    ],
)
def test_one_table_in_every_dress(tmp_path, name, content):
    """Byte-order mark, CRLF, blank lines, no last line break, gzip: the same two problems, ids counted by row."""
    path = write(tmp_path, name, content)
    loaded = load_problems(path, split="train")
    assert [(p.id, p.question, p.answer) for p in loaded.items] == [
        ("sums:1", "2 + 3 = ?", "5"),
        ("sums:2", "4 + 4 = ?", "8"),
    ]
    assert {(p.source, p.split) for p in loaded.items} == {("sums", "train")}
    assert loaded.digest == hashlib.sha256(content).hexdigest()
    assert (loaded.skipped, loaded.licence, loaded.source) == ((), None, str(path))


def test_line_separators_inside_json_strings_are_text(tmp_path):
    row = json.dumps({"question": "one\u2028two", "answer": "3"}, ensure_ascii=False)
    loaded = load_problems(write(tmp_path, "a.jsonl", row.encode()))
    assert loaded.items[0].question == "one\u2028two"


def test_csv_cells_may_hold_separators_quotes_and_line_breaks(tmp_path):
    content = b'question,answer\n"2, 3 and ""four""\nadd up to?",9\n"x",1,2\n'
    loaded = load_problems(write(tmp_path, "a.csv", content), on_bad_row="skip")
    assert loaded.items[0].question == '2, 3 and "four"\nadd up to?'
    assert loaded.skipped[0][0] == f"{tmp_path}/a.csv:4"  # the record before it covers lines 2 and 3


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", LINES + b'{"question": "1 +', "a.jsonl:3: got a last line that is cut off"),
        ("a.jsonl", b'{"question"\n' + LINES, "a.jsonl:1: got invalid JSON (Expecting ':' delimiter"),
        ("a.jsonl", LINES + b"7\n", "a.jsonl:3: got int 7; expected an object with named columns"),
        ("a.jsonl", LINES + b"[" * 100_000 + b"\n", "a.jsonl:3: got invalid JSON"),
        ("a.jsonl", LINES + b'{"question": "\xff"}\n', f"a.jsonl:3: got byte 0xff at byte offset {len(LINES) + 14}"),
        ("a.json", b'[{"question": "q", "answer": "1"},\n\n 7]', "a.json:3: got int 7"),
        ("a.json", b'[{"question": "q", "answer": "1"},\n {"question"', "a.json:2: got invalid JSON"),
        ("a.json", b'[{"question": "q", "answer": "1"}\n {}]', "a.json:1: got '{}]' after row 1"),
        ("a.json", b'{\n "data": []\n}\n', "a.json:1: got invalid JSON"),
        ("a.json", b"[]", "a.json: got no rows; expected at least one good row"),
        ("a.jsonl", b"", "a.jsonl: got no rows; expected at least one good row"),
        ("a.csv", b"question,answer\n", "a.csv: got no rows"),
        ("a.csv", CSV + b"1,2,3\n", "a.csv:4: got 3 fields: ['1', '2', '3']; expected 2 fields (question, answer)"),
        ("a.csv", CSV + b"alone\n", "a.csv:4: got 1 fields"),
        ("a.csv", CSV + b'"never closed,5\nq,1\n', "a.csv:4: got a record that cannot be parsed"),
        ("a.csv", CSV + b"\xe9t\xe9,5\n", f"a.csv:4: got byte 0xe9 at byte offset {len(CSV)}"),
        ("a.csv", b"\xff\xfeq\x00", "a.csv:1: got byte 0xff at byte offset 0"),
        ("a.csv", b"question,question,answer\n", "a.csv:1: got the column 'question' twice"),
        ("a.jsonl.gz", gzip.compress(LINES)[:-9], "a.jsonl.gz: got damaged gzip data"),
        ("a.parquet", parquet(ROWS)[:-9], "a.parquet: got unreadable parquet"),
        ("a.parquet", parquet([*ROWS, {"question": None, "answer": "1"}]), "a.parquet, row 3: column 'question'"),
        ("a.xlsx", b"PK", "a.xlsx: got the ending '.xlsx'; expected a file ending in .jsonl, .json, .csv"),
    ],
)
def test_a_broken_file_is_named_with_line_and_cause(tmp_path, name, content, said):
    assert said in fault(tmp_path, name, content)


def test_skipping_keeps_numbers_and_lists_what_is_left_out(tmp_path):
    """Rows 1 and 3 of four are bad: the ids of the others stay those of their row."""
    lines = LINES.splitlines(keepends=True)
    content = b"{\n" + lines[0] + b'{"question": "\xff"}\n' + lines[1]
    loaded = load_problems(write(tmp_path, "a.jsonl", content), on_bad_row="skip")
    assert [p.id for p in loaded.items] == ["a:2", "a:4"]
    assert [place for place, _ in loaded.skipped] == [f"{tmp_path}/a.jsonl:1", f"{tmp_path}/a.jsonl:3"]
    assert loaded.skipped[1][1].startswith("got byte 0xff at byte offset ")
    csv_rows = load_problems(write(tmp_path, "a.csv", CSV + b"x\xff,1\na,b,c\nq,7\n"), on_bad_row="skip")
    assert [p.id for p in csv_rows.items] == ["a:1", "a:2", "a:5"]


def test_a_file_of_bad_rows_is_an_error_even_when_skipping(tmp_path):
    message = fault(tmp_path, "a.jsonl", b"{\n[\n", on_bad_row="skip")
    assert "got 2 bad rows, the first at a.jsonl:1: got invalid JSON" in message


def test_several_files(tmp_path):
    first, second = write(tmp_path, "a.jsonl", LINES), write(tmp_path, "b.csv", CSV)
    loaded = load_problems([first, str(second)])
    assert [p.id for p in loaded.items] == ["a:1", "a:2", "b:1", "b:2"]
    digests = "\n".join(hashlib.sha256(content).hexdigest() for content in (LINES, CSV))
    assert loaded.digest == hashlib.sha256(digests.encode()).hexdigest()
    named = load_problems([first, second], name="sums")
    assert [p.id for p in named.items] == ["sums/a:1", "sums/a:2", "sums/b:1", "sums/b:2"]
    assert {p.source for p in named.items} == {"sums"}


def test_equal_stems_are_told_apart_by_their_folders(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    paths = [write(tmp_path, f"{folder}/train.jsonl", LINES) for folder in ("x", "y")]
    assert [p.id for p in load_problems(paths).items] == ["x/train:1", "x/train:2", "y/train:1", "y/train:2"]
    with pytest.raises(DataError, match="'x/train:1'"):
        load_problems([paths[0], paths[0]])


def test_objects_that_look_like_datasets():
    class Table(list):
        info = types.SimpleNamespace(dataset_name="sums", license="mit")

    loaded = load_problems(Table(ROWS))
    assert (loaded.items[1].id, loaded.licence, loaded.source) == ("sums:2", "mit", "sums")
    assert load_problems(iter(ROWS)).digest == loaded.digest
    assert load_problems(ROWS[:1]).digest != loaded.digest
    assert len(load_problems({"train": ROWS, "test": ROWS[:1]}, split="test").items) == 1
    with pytest.raises(DataError, match="expected one of train, test"):
        load_problems({"train": ROWS, "test": ROWS[:1]})
    with pytest.raises(DataError, match="rows, row 2: got str 'x'"):
        load_problems([ROWS[0], "x"])


@pytest.mark.parametrize("source", ["no/such/file.jsonl", "./no_such_folder/no_such", "absent.csv.gz"])
def test_an_absent_path_is_not_taken_for_a_hub_id(source):
    with pytest.raises(DataError, match="no such file"):
        load_problems(source)


@pytest.mark.parametrize("source", [7, None, b"rows.jsonl"])
def test_what_is_no_source_is_refused(source):
    with pytest.raises(DataError, match="expected a path, a list of paths"):
        load_problems(source)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="a folder"):
        load_problems(tmp_path)


def test_a_hub_id_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"lydian\[hub\]"):
        load_problems("openai/gsm8k:main")


def test_a_hub_id_with_the_extra(monkeypatch):
    """The id, configuration and split reach `load_dataset`; being offline is a clear error."""
    asked = []

    def load_dataset(*arguments, split):
        asked.append((*arguments, split))
        if split is None:
            raise ConnectionError("offline")
        return ROWS

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    loaded = load_problems("openai/gsm8k:main", split="train")
    assert asked == [("openai/gsm8k", "main", "train")]
    assert (loaded.items[0].id, loaded.source) == ("gsm8k:1", "openai/gsm8k:main")
    with pytest.raises(DataError, match=r"ConnectionError: offline.*load the data set's files by path"):
        load_problems("openai/gsm8k")
