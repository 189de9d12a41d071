"""Job documents: what the job is told is what the ledger says, and survives JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.jobs.document import JobDocument, ingest_document, rebuild_document, take_out_document
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.medallion.present import Joined

NAME = DatasetName.parse("v/p/f")


def csv(folder: Path, name: str, text: str = "a,b\n1,x\n") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_document_survives_json_and_names_what_is_present(opened: Lake, tmp_path: Path) -> None:
    (first,) = opened.upload([csv(tmp_path, "one.csv")], NAME)
    assert first.file is not None
    opened.process(NAME, [first.file.file_id])
    opened.upload([csv(tmp_path, "two.csv", "a,c\n2,y\n")], NAME, overrides={"null_tokens": ["NA"]})
    claim = opened.ledger.claim("w")
    assert claim is not None
    with claim:
        document = ingest_document(claim, opened.ledger)
        assert JobDocument.from_json(json.loads(json.dumps(document.to_json()))) == document
        (file,) = document.files
        assert (file.name, file.earlier, file.overrides) == ("two.csv", "nothing", {"null_tokens": ["NA"]})
        present = Joined.from_dict(document.present)
        assert (present.number, present.columns()) == (1, ["a", "b"])
        assert {where[0] for where in present.first.values()} == {first.file.file_id}
        assert take_out_document(claim, opened.ledger, [file.file_id]).files == document.files
        assert rebuild_document(claim, opened.ledger).files == ()


def test_what_the_tables_may_hold_of_a_file(opened: Lake, tmp_path: Path) -> None:
    (upload,) = opened.upload([csv(tmp_path, "one.csv")], NAME)
    assert upload.file is not None
    claim = opened.ledger.claim("w")
    assert claim is not None
    claim.release()
    claim = opened.ledger.claim("w")
    assert claim is not None
    with claim:
        assert [file.earlier for file in ingest_document(claim, opened.ledger).files] == ["same"]
    opened.process(NAME, [upload.file.file_id])
    opened.ledger.reread([upload.file.file_id])
    claim = opened.ledger.claim("w")
    assert claim is not None
    with claim:
        document = ingest_document(claim, opened.ledger)
    assert [file.earlier for file in document.files] == ["other"]
    assert document.present == Joined().to_dict()


def test_a_document_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 99"):
        JobDocument.from_json({"version": 99})
