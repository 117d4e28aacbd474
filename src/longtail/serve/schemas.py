"""JSON ↔ RECORDS: the shapes of requests and answers, checked by pydantic and printed in the OpenAPI document.

Requests are strict: an unknown field, a number in quotes or a control character is refused. The numbers here are those
of `Limits()`; a service with other limits checks them again.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from longtail.serve.settings import Limits

LIMITS = Limits()
# Tabs and line breaks are allowed in a text; other control characters are a sign of binary data.
PRINTABLE = r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]*$"
ONE_LINE = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*[^\s\u0000-\u001f\u007f-\u009f\u2028\u2029][^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$"  # noqa: E501


def _integer(value: object) -> object:
    """Accept 5.0 as 5, as JSON Schema does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Text = Annotated[str, Field(max_length=LIMITS.length, pattern=PRINTABLE)]
LabelText = Annotated[str, Field(min_length=1, max_length=LIMITS.label_length, pattern=ONE_LINE)]
Name = Annotated[str, Field(max_length=200, pattern=PRINTABLE)]
LabelId = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_integer)]
PointId = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), BeforeValidator(_integer)] | Name
K = Annotated[int, Field(ge=1, le=LIMITS.k), BeforeValidator(_integer)]
Decide = Annotated[str, Field(max_length=20, pattern=r"^(global|bins|labels)(:(0?\.[0-9]+|1(\.0+)?))?$")]
LabelIds = Annotated[list[LabelId], Field(max_length=LIMITS.labels)]


NO_RAW_ID: dict[str, Any] = {"properties": {"raw_id": {"type": "null"}}}


def _both(**kinds: str) -> dict[str, Any]:
    """Describe an object that has all of some fields, none of them null."""
    return {"required": [*kinds], "properties": {name: {"type": kind} for name, kind in kinds.items()}}


def _labels(each: dict[str, Any]) -> dict[str, Any]:
    """Describe an object whose labels are all alike."""
    return {"properties": {"labels": {"items": each}}}


class Request(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: Name | None = Field(None, description="Which model, by name; the first one if not given.")


class PredictRequest(Request):
    """Texts to find labels for."""

    model_config = ConfigDict(json_schema_extra={"not": _both(threshold="number", decide="string")})

    texts: list[Text] = Field(
        min_length=1, max_length=LIMITS.texts, description="The texts.", examples=[["sort a list"]]
    )
    ids: list[PointId] | None = Field(
        None,
        min_length=1,
        max_length=LIMITS.texts,
        description="Your own ids: exactly as many as texts, in the same order. JSON Schema cannot compare the lengths "
        "of two lists; where they differ the answer is 422.",
    )
    k: K = Field(5, description="Labels per text.")
    threshold: float | None = Field(None, description="Leave out labels with a lower score.")
    decide: Decide | None = Field(
        None,
        description="Leave out labels below a threshold that held-out points tuned: one for all (global), for head, "
        "torso and tail (bins) or for each label (labels), for the best F1, or for a precision: bins:0.9.",
    )
    probabilities: bool = Field(False, description="Return calibrated probabilities as scores.")
    allow: LabelIds | None = Field(None, description="Only these labels.")
    deny: LabelIds | None = Field(None, description="Never these labels.")
    details: bool = Field(False, description="Also return frequency, bin and raw id of each label.")


class PredictedLabel(BaseModel):
    """One label of a text."""

    id: int
    text: str
    score: float
    raw_id: str | None = Field(None, description="The id in the data set, with `details`.")
    frequency: int | None = Field(None, description="Training points of the label, with `details`.")
    bin: str | None = Field(None, description="head, torso or tail, with `details`.")


class Prediction(BaseModel):
    """The labels of one text, best first."""

    id: int | str = Field(description="Your id, or the position of the text in the request.")
    labels: list[PredictedLabel]


class PredictAnswer(BaseModel):
    """The labels of all texts."""

    predictions: list[Prediction]


class ExplainRequest(Request):
    """A text and a label of it."""

    text: Text
    label: LabelId


class NearestRequest(Request):
    """Vectors to find the labels of one part for: what services that share the labels of a model ask each other."""

    hash: str = Field(pattern=r"^[0-9a-f]{32}$", description="The model's name in stores of label vectors.")
    vectors: str = Field(
        pattern=r"^[A-Za-z0-9+/]+={0,2}$", description="Numbers of four bytes, little-endian, row by row, in base64."
    )
    k: K
    part: LabelId = Field(description="Which part of the labels, counted from 0.")
    parts: K = Field(description="Into how many equal parts the labels are divided.")
    allow: LabelIds | None = Field(None, description="Only these labels.")


class NearestAnswer(BaseModel):
    """The best labels of each vector, and their scores."""

    labels: list[list[int]]
    scores: list[list[float]]


class NewLabel(BaseModel):
    """A label to add."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: LabelText
    raw_id: LabelText | None = None


class AddRequest(Request):
    """Labels to add; they can be predicted at once. Each has a raw_id, or none has."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [_labels(_both(raw_id="string")), _labels(NO_RAW_ID)]})

    labels: list[NewLabel] = Field(min_length=1, max_length=LIMITS.labels)


class KnownLabel(BaseModel):
    """A label by its id."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: LabelId


class RemoveRequest(Request):
    """Labels to remove."""

    labels: list[LabelId | KnownLabel] = Field(min_length=1, max_length=LIMITS.labels)


class UndoRequest(Request):
    """Undo the last change of the labels."""


class FeedbackRequest(Request):
    """Whether a text has a label, as somebody sees it."""

    text: Text
    label: LabelId
    good: bool = Field(description="True: the text has the label; false: it has not.")


class Label(BaseModel):
    """One label."""

    id: int
    text: str
    raw_id: str | None = None
    frequency: int = 0
    bin: str = "tail"


class LabelsAnswer(BaseModel):
    """Some labels, and the total number of labels."""

    labels: list[Label]
    count: int


class Complaint(BaseModel):
    """What is wrong with a request."""

    detail: str


class State(BaseModel):
    """Whether the service works."""

    status: str


class Details(BaseModel):
    """What an index returns about itself, a label or a prediction."""

    model_config = ConfigDict(extra="allow")


SCHEMAS: tuple[type[BaseModel], ...] = (
    PredictRequest,
    PredictAnswer,
    ExplainRequest,
    NearestRequest,
    NearestAnswer,
    AddRequest,
    RemoveRequest,
    UndoRequest,
    FeedbackRequest,
    LabelsAnswer,
    Complaint,
    State,
    Details,
)
