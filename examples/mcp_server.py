"""A server of the Model Context Protocol: an agent tags photos, and teaches labels from photos.

pip install ./client 'mcp>=2'
python examples/mcp_server.py  # the agent starts it: docs/integrate.md
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from ml_decoder_client import Client, ClientError, Question

URL = os.environ.get("SERVICE_URL", "http://localhost:8000")
client = Client(URL, api_key=os.environ.get("SERVICE_KEY"), retries=1)


@contextmanager
def explain() -> Iterator[None]:
    """Raises the errors of a tool as `ToolError`, the only one whose text an agent gets."""
    try:
        yield
    except (ClientError, OSError, ValueError) as error:
        raise ToolError(str(error)) from error


@explain()
def tag_photo(
    path: str, label_sets: list[str] | None = None, words: list[str] | None = None
) -> dict[str, float]:
    """Returns the labels that a photo file shows, with probabilities; the best is first.

    `label_sets` are names from `list_labels`; the first that has a label answers it. `words` are
    phrases of your own to look for instead. Each gets a score, and below 0.5 it is hardly there.
    """
    question = Question(label_set=label_sets or [])
    if words:
        question = Question(candidate_labels=words, threshold=0)
    return {label.label: label.score for label in client.predict(path, **question).labels}


@explain()
def list_labels(label_set: str | None = None) -> list[str]:
    """Returns the names of the label sets, or the labels of one set."""
    found = client.read_label_set(label_set).labels if label_set else client.list_label_sets()
    return [each.name for each in found]


@explain()
def teach_label(label: str, photos: list[str], others: list[str], label_set: str) -> str:
    """Teaches a label from two to five photo files that show it, and others confused with it.

    A missing label or set is made. Name the set first in `label_sets` of `tag_photo`.
    """
    learnt = client.learn_label(label_set, label, photos, others)
    return f"{label}: {learnt.separation.meaning}. {learnt.advice or ''}"


server = MCPServer("ml-decoder")
for tool in (tag_photo, list_labels, teach_label):
    server.add_tool(tool)

if __name__ == "__main__":
    server.run()
