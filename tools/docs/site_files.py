"""Hook of mkdocs: adds the changelog, and the files outside docs/ that pages link to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
#: Files that pages name as they lie in the repository.
LINKED = ("conf/build.properties", "conf/log4j2.properties", "conf/spark-defaults.conf")
EXAMPLES = ("examples/query_records.py", "examples/dump.ipynb")


def on_files(files: Files, config: Any) -> Files:
    """Add files that are not in docs/."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    changelog = changelog.replace("(README.md)", "(index.md)")
    changelog = re.sub(r"\]\(docs/", "](", changelog)
    files.append(File.generated(config, "changelog.md", content=changelog))
    for name in (*LINKED, *EXAMPLES):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to these files lead to their copies in the site."""
    return re.sub(r"\]\(\.\./(conf|examples)/", r"](\1/", markdown)
