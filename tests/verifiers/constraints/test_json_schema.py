import pytest

from lydian.verifiers.constraints.json_schema import NotJson, parse_json, schema_fault, value_fault


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{'a': 1}",
        '{"a": 1,}',
        '{"a": NaN}',
        '{"a": 1} done',
        "{a: 1}",
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        "9" * 5000,
    ],
)
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(NotJson):
        parse_json(text)


@pytest.mark.parametrize(
    "text", ['{"a": 1}', ' ```json\n{"a": 1}\n``` ', '```\n{"a":\n1}```', '```JSON\n{"a": 1}\n```']
)
def test_json_with_or_without_a_fence(text: str) -> None:
    assert parse_json(text) == {"a": 1}


@pytest.mark.parametrize(
    ("value", "schema", "fault"),
    [
        (1, {"type": "integer"}, ""),
        (1.0, {"type": "integer"}, ""),
        (True, {"type": "integer"}, "$ is no integer"),
        (True, {"enum": [1]}, "$ is none of the allowed values"),
        (None, {"type": ["string", "null"]}, ""),
        ({"a": 1}, {"required": ["b"]}, "$ lacks 'b'"),
        ({"a": 1}, {"properties": {}, "additionalProperties": False}, "$ has 'a', which is not allowed"),
        ({"a": 1}, {"additionalProperties": {"type": "string"}}, "$.a is no string"),
        ([1, "b"], {"items": {"type": "integer"}}, "$[1] is no integer"),
        ([], {"minItems": 1}, "$ has a length of 0"),
        ("abc", {"maxLength": 2}, "$ has a length of 3"),
        (5, {"minimum": 6}, "$ = 5 is out of range"),
        (5, {"const": 5.0}, ""),
    ],
)
def test_values_against_schemas(value: object, schema: dict, fault: str) -> None:
    assert value_fault(value, schema) == fault


def test_a_schema_outside_the_subset_is_refused_wherever_it_stands() -> None:
    assert (
        schema_fault({"properties": {"a": {"items": {"pattern": "x"}}}}) == "schema.a.items: unknown keyword 'pattern'"
    )
    assert schema_fault({"type": "int"}) == "schema: unknown type 'int'"
    assert schema_fault({"type": "object", "title": "T", "additionalProperties": {"type": "string"}}) == ""
