"""JSON set into an answer as it stands: the answer is the JSON that parsing and writing again would have given."""

import json
import math

import pytest

from tuner_service.db.json_text import JsonText, json_text, json_value, parsed

TEXTS = ('{"a": [1, 2.50, null]}', '"a \\"quoted\\" \\u00e9"', "[]", "true", "3e-7", '{"é": "✓"}')


def test_texts_stand_where_they_were_put() -> None:
    document = {
        "first": JsonText(TEXTS[0]),
        "nested": [{"plain": "é\n\u0000", "text": JsonText(TEXTS[1])}, [JsonText(text) for text in TEXTS]],
        "twice": [JsonText(TEXTS[0])] * 2,
        "none": json_value(None),
    }
    whole = {
        "first": json.loads(TEXTS[0]),
        "nested": [
            {"plain": "é\n\u0000", "text": json.loads(TEXTS[1])},
            [json.loads(text) for text in TEXTS],
        ],
        "twice": [json.loads(TEXTS[0])] * 2,
        "none": None,
    }
    assert json.loads(json_text(document)) == parsed(document) == whole
    assert TEXTS[0] in json_text(document), "as the database holds it"


@pytest.mark.parametrize("text", TEXTS)
def test_a_document_may_be_a_text(text: str) -> None:
    assert json_text(JsonText(text)) == text
    assert json_value(text) == JsonText(text)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        json_text({"seconds": math.nan})
    with pytest.raises(TypeError, match="set is no JSON"):
        json_text([JsonText("1"), {2}])
