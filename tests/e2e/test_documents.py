"""What the documents show works as shown."""

from __future__ import annotations

import json
import re

import worlds


def test_the_example_of_the_reference_finds_what_it_says(tmp_path, pytestconfig):
    """The two files of docs/files.md, copied out: long prefill at d, memory at c."""
    text = (pytestconfig.rootpath / "docs" / "files.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"<!-- example: begin (\S+) -->\n```yaml\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(content, encoding="utf-8")

    done = worlds.bisect("run", "--images", "images.yaml", "--suite", "suite.yaml", "--json", cwd=tmp_path)

    assert done.returncode == 10, done.stderr
    found = {target["name"]: target["first_bad"]["name"] for target in json.loads(done.stdout)["targets"]}
    assert found == {"long-prefill": "d", "memory": "c"}
