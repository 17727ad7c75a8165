"""The notebooks: every cell runs, in order, in a new kernel, and shows its stored output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers.pasted import EXAMPLES
from nbclient import NotebookClient

from tuplewire_demos.local_session import create_java_home, find_java

_CELL_SECONDS = 600.0
PICTURES = {"clusters_on_spark": 1, "first_messages": 2, "training_on_spark": 3}
_ON_SPARK = [pytest.mark.long, pytest.mark.spark]


def outputs(notebook: Any) -> list[Any]:
    """Return the outputs of all cells of a notebook."""
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def pictures(notebook: Any) -> int:
    """Return the number of pictures in a notebook."""
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def texts(notebook: Any) -> list[str]:
    """Return the texts that the cells of a notebook print and return, except logs."""
    written = [output for output in outputs(notebook) if output.get("name") != "stderr"]
    return [output.text if "text" in output else output.data["text/plain"] for output in written]


def test_every_notebook_is_run() -> None:
    """Each notebook of the folder is in the table above."""
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == PICTURES.keys()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("clusters_on_spark", marks=_ON_SPARK),
        pytest.param("first_messages", marks=pytest.mark.slow),
        pytest.param("training_on_spark", marks=_ON_SPARK),
    ],
)
@pytest.mark.usefixtures("warm_spark")
@pytest.mark.filterwarnings("default")  # for Jupyter's own warnings
def test_notebook(name: str, tmp_path: Path) -> None:
    """A notebook runs without an error, and shows the texts and as many pictures as the stored notebook."""
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert pictures(notebook) == PICTURES[name]
    stored = texts(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    environment = {
        **os.environ,
        "JAVA_HOME": str(create_java_home(find_java(), tmp_path / "java")),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # for Spark's Python
    }
    NotebookClient(
        notebook,
        timeout=_CELL_SECONDS,
        resources={"metadata": {"path": str(tmp_path)}},
        kernel_name="python3",
    ).execute(env=environment)
    assert pictures(notebook) == PICTURES[name]
    assert texts(notebook) == stored
