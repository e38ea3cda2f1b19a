"""A machine learning backend of Label Studio: it predicts choices, and learns from annotations.

LABEL_STUDIO_TOKEN=... uvicorn --app-dir examples label_studio:app --port 9090

docs/integrate.md has the steps in Label Studio. It sends no key: let no other client connect.
"""

import base64
import logging
import os
from typing import Any
from urllib.parse import urljoin
from xml.etree import ElementTree

import httpx2
from fastapi import BackgroundTasks, FastAPI

from ml_decoder_client import Answer, Client, ServiceProblem

URL = os.environ.get("SERVICE_URL", "http://localhost:8000")
STUDIO = os.environ.get("LABEL_STUDIO_URL", "http://localhost:8080").rstrip("/") + "/"
TOKEN = os.environ.get("LABEL_STUDIO_TOKEN", "")  # a personal access token, or a legacy token
LOG = logging.getLogger("uvicorn.error")

client = Client(URL, api_key=os.environ.get("SERVICE_KEY"))
studio = httpx2.Client(base_url=STUDIO, follow_redirects=True)
app = FastAPI(title="ML-Decoder for Label Studio")
app.get("/health")(lambda: {"status": "UP"})


class Project:
    """What a configuration asks: the first <Choices> of an <Image>; ValueError without."""

    def __init__(self, number: object, config: str) -> None:
        root = ElementTree.fromstring(config)
        fields = {each.get("name"): each.get("value", "") for each in root.iter("Image")}
        tags, *_ = [each for each in root.iter("Choices") if each.get("toName") in fields]
        self.choices = [each.get("alias", each.get("value", "")) for each in tags.iter("Choice")]
        self.label_set = f"label-studio-{number}".split(".")[0]  # an id, or `id.time`
        self.tags, self.image = tags.get("name"), tags.get("toName")
        self.several = tags.get("choice") == "multiple"
        self.field = fields[self.image].lstrip("$")

    def predict(self, answer: Answer) -> dict[str, Any]:
        """The score is that of the least sure choice: Label Studio can ask for low ones first."""
        found = [label.label for label in answer.labels if label.found]
        value = {"choices": found if self.several else found[:1]}
        result = {"from_name": self.tags, "to_name": self.image, "type": "choices", "value": value}
        score = min(max(label.score, 1 - label.score) for label in answer.labels)
        version = answer.label_set.version
        return {"result": [result] if found else [], "score": score, "model_version": version}


def fetch(url: str) -> bytes:
    """Returns a photo; if it cannot be fetched, no bytes, which the service refuses."""
    place, token = urljoin(STUDIO, url), f"Token {TOKEN}"
    try:
        if url.startswith("data:"):
            return base64.b64decode(url.partition(",")[2])
        if not place.startswith(STUDIO):
            raise ValueError("the token is for photos below LABEL_STUDIO_URL only")
        if TOKEN.count(".") == 2:  # a personal access token gets one for five minutes
            answer = studio.post("api/token/refresh", json={"refresh": TOKEN})
            token = f"Bearer {answer.raise_for_status().json()['access']}"
        return studio.get(place, headers={"Authorization": token}).raise_for_status().content
    except (httpx2.HTTPError, ValueError) as error:
        LOG.warning("%.100s cannot be fetched: %s", url, error)
        return b""


@app.post("/setup")
def set_up(body: dict[str, Any]) -> dict[str, str]:
    """Registers new choices. Teaching changes the version, so Label Studio predicts again."""
    project = Project(body["project"], body["schema"])
    made = project.label_set in [found.name for found in client.list_label_sets()]
    found = client.read_label_set(project.label_set) if made else None
    if found is None or {label.name for label in found.labels} != set(project.choices):
        found = client.register_label_set(project.label_set, project.choices)
    return {"model_version": found.version}


@app.post("/predict")
def predict(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the predictions of each task, none if the photo cannot be used."""
    project = Project(body["project"], body["label_config"])
    photos = (fetch(task["data"][project.field]) for task in body["tasks"])
    sets, count = [project.label_set], len(project.choices)
    answers = client.predict_many(photos, label_set=sets, min_labels=count)
    return {"results": [[project.predict(x)] if isinstance(x, Answer) else [] for x in answers]}


@app.post("/webhook")
def take_event(body: dict[str, Any], tasks: BackgroundTasks) -> None:
    """Teaches after the response: Label Studio waits for one second only."""
    known = body["action"] in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")
    if known and not body["annotation"]["was_cancelled"]:  # not a skipped task
        tasks.add_task(teach, body)


def teach(body: dict[str, Any]) -> None:
    """The photo shows the chosen choices, and not the others that are found in it."""
    project = Project(body["project"]["id"], body["project"]["label_config"])
    photo = fetch(body["task"]["data"][project.field])
    results = [each for each in body["annotation"]["result"] if each["from_name"] == project.tags]
    right = {choice for each in results for choice in each["value"]["choices"]}
    answer = client.predict(photo, label_set=[project.label_set])
    for choice in right | {label.label for label in answer.labels}:
        positive, negative = ([photo], []) if choice in right else ([], [photo])
        try:
            client.learn_label(project.label_set, choice, positive, negative)
        except ServiceProblem as problem:  # a later annotation cannot take back an example
            LOG.warning("%r does not learn: %s", choice, problem)
