"""The description of the API, OpenAPI 3.1: made from the table of operations and the classes of the wire."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

import station
from station.core.errors import Conflict, StationError, StorageFull, UnsupportedMedia

from .operation import ALWAYS, Facts, Lines, Link, Many, Operation, Raw, Shape
from .query import Parameter

Json: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["validation", "serialization"]
Schemas: TypeAlias = Mapping[tuple[type, Mode], Json]

_JSON = "application/json"
_SEGMENT = re.compile(r"{(\w+)(:path)?}")
_BY_TYPE = {str: "string", int: "integer", bool: "boolean", float: "number"}
_SID = "The uid of a sandbox, or its tool id, as an open answers them."
_PID = "The id of a process, as a start answers it or the caller chose it."
_IN_PATH: Mapping[str, tuple[str, Json]] = {
    "sid": (_SID, {"type": "string", "pattern": "^([a-z2-7]{52}|ses_[0-9A-HJKMNP-TV-Z]{26})$"}),
    "pid": (_PID, {"type": "string", "pattern": "^prc_[A-Za-z0-9_-]{1,64}$"}),
    "rid": ("The id that the caller chose for a run.", {"type": "string", "pattern": "^prc_[A-Za-z0-9_-]{1,64}$"}),
    "upload": ("The id of an upload, as its beginning answers it.", {"type": "string", "minLength": 1}),
    "key": ("The key of a file of the store. Its slashes may stand as they are.", {"type": "string", "minLength": 1}),
}
_HEADERS: Mapping[int, tuple[str, str]] = {
    401: ("WWW-Authenticate", "`Bearer`."),
    429: ("Retry-After", "Seconds."),
    503: ("Retry-After", "Seconds, where asking again may help."),
}
_IDEMPOTENCY_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same request under the same key is done once, and answered the same for a day.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}
_ABOUT = """\
Sandboxes by name on your own machines.

On the unix socket of a station its user needs no token; over TCP every call carries one. Every failure has one form,
`{error, code, message, retryable, detail}`: programs decide by `code`, people by `message`. Where there is GET there is
HEAD. A `traceparent` (W3C) is taken over and answered."""


def describe(operations: Iterable[Operation]) -> Json:
    """The whole description. Takes some hundred milliseconds."""
    operations = list(operations)
    schemas, definitions = _schemas(operations)
    by_id = {operation.id: operation for operation in operations}
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(template(operation.path), {})[operation.method.lower()] = _operation(operation, schemas, by_id)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Station",
            "version": station.__version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR} | definitions,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Over TCP. The unix socket takes none."}
            },
        },
    }


@cache
def as_json(operations: tuple[Operation, ...]) -> bytes:
    return json.dumps(describe(operations), separators=(",", ":")).encode()


def template(path: str) -> str:
    """As OpenAPI writes it: `/files/{key}`."""
    return _SEGMENT.sub(r"{\1}", path)


def errors_of(operation: Operation) -> dict[int, list[type[StationError]]]:
    """What it may fail with, by status."""
    found: dict[int, list[type[StationError]]] = {}
    body = operation.body
    streams = isinstance(body, Raw) and not body.media.startswith("multipart/")
    media = () if body is None or streams else (UnsupportedMedia,)
    once = (Conflict, StorageFull) if operation.takes_key else ()
    for kind in sorted({*ALWAYS, *operation.errors, *media, *once}, key=lambda kind: (kind.status, kind.code)):
        found.setdefault(kind.status, []).append(kind)
    return found


_ERROR: Json = {
    "type": "object",
    "description": "Every failure.",
    "required": ["error", "code", "message", "retryable", "detail"],
    "additionalProperties": False,
    "properties": {
        "error": {"type": "string", "description": "The name of its class in the Python package."},
        "code": {"type": "string", "description": "What programs decide by."},
        "message": {"type": "string", "description": "One sentence for people; it names the setting to change."},
        "retryable": {"type": "boolean", "description": "Whether asking the same again may help."},
        "detail": {"type": "object", "description": "Facts by name: the field, the limit, what is allowed."},
    },
}


def _operation(operation: Operation, schemas: Schemas, by_id: Mapping[str, Operation]) -> Json:
    names = [found[1] for found in _SEGMENT.finditer(operation.path)]
    made: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": [
            *map(_in_path, names),
            *map(_in_query, operation.query),
            *([_IDEMPOTENCY_KEY] if operation.takes_key else ()),
        ],
        "responses": {},
    }
    if (body := operation.body) is not None:
        # An empty one is an object without any fields.
        optional = isinstance(body, type) and not any(_is_required(field) for field in dataclasses.fields(body))
        made["requestBody"] = {"required": not optional, "content": _content(body, schemas, "validation")}
    if operation.to_all:
        made["security"] = []
    for status, shape in operation.answers.items():
        made["responses"][str(status)] = _answer(operation, shape, schemas, by_id)
    for status, kinds in errors_of(operation).items():
        made["responses"].setdefault(str(status), _failure(status, kinds))
    return made


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _in_path(name: str) -> Json:
    summary, schema = _IN_PATH.get(name, ("", {"type": "string", "minLength": 1}))
    return {"name": name, "in": "path", "required": True, "description": summary, "schema": schema}


def _in_query(parameter: Parameter[Any]) -> Json:
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.summary,
        "schema": dict(parameter.schema),
    }


def _answer(operation: Operation, shape: Shape, schemas: Schemas, by_id: Mapping[str, Operation]) -> Json:
    made: Json = {"description": shape.summary if isinstance(shape, Raw) else "Done."}
    if shape is not None:
        made["content"] = _content(shape, schemas, "serialization")
    if isinstance(shape, Raw) and shape.headers:
        made["headers"] = {
            name: {"description": words, "schema": {"type": "string"}} for name, words in shape.headers.items()
        }
    links = {to: _link(operation, link, by_id[to]) for link in operation.links for to in link.to}
    return made | ({"links": links} if links else {})


def _link(source: Operation, link: Link, target: Operation) -> Json:
    shared = {found[1] for found in _SEGMENT.finditer(source.path)} & {
        found[1] for found in _SEGMENT.finditer(target.path)
    }
    parameters = {name: f"$request.path.{name}" for name in sorted(shared)} | {link.parameter: link.value}
    return {"operationId": target.id, "parameters": parameters}


def _failure(status: int, kinds: list[type[StationError]]) -> Json:
    codes = sorted({kind.code for kind in kinds})
    made: Json = {
        "description": ", ".join(codes),
        "content": {
            _JSON: {
                "schema": {
                    "allOf": [{"$ref": "#/components/schemas/Error"}],
                    "properties": {"code": {"enum": codes}},
                }
            }
        },
    }
    if status in _HEADERS:
        name, words = _HEADERS[status]
        made["headers"] = {name: {"description": words, "schema": {"type": "string"}}}
    return made


def _content(shape: Shape, schemas: Schemas, mode: Mode) -> Json:
    match shape:
        case Raw():
            return {shape.media: {"schema": _form() if shape.media.startswith("multipart/") else {}}}
        case Lines():
            # What a line is cannot be said in 3.1.
            return {"application/x-ndjson": {"schema": {}, "x-line": schemas[shape.of, mode]}}
        case Many():
            items = {"type": "array", "items": schemas[shape.of, mode]}
            return {_JSON: {"schema": {"type": "object", "required": [shape.key], "properties": {shape.key: items}}}}
        case Facts():
            properties = {name: {"type": _BY_TYPE[kind]} for name, kind in shape.values.items()}
            return {_JSON: {"schema": {"type": "object", "required": list(properties), "properties": properties}}}
        case None:
            return {}
        case _:
            return {_JSON: {"schema": schemas[shape, mode]}}


def _form() -> Json:
    return {
        "type": "object",
        "required": ["file"],
        "properties": {
            "key": {"type": "string"},
            "ttl": {"type": "string"},
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        },
    }


def _schemas(operations: Iterable[Operation]) -> tuple[Schemas, Json]:
    wanted: dict[tuple[type, Mode], TypeAdapter[Any]] = {}
    for operation in operations:
        shapes: list[tuple[Mode, Shape]] = [("validation", operation.body)]
        shapes += [("serialization", shape) for shape in operation.answers.values()]
        for mode, shape in shapes:
            kind = shape.of if isinstance(shape, Many | Lines) else shape
            if isinstance(kind, type):
                wanted[kind, mode] = TypeAdapter(kind)
    inputs = [((kind, mode), mode, adapter) for (kind, mode), adapter in wanted.items()]
    found, rest = TypeAdapter.json_schemas(
        inputs, ref_template="#/components/schemas/{model}", schema_generator=_Documented
    )
    return {key: schema for (key, _), schema in found.items()}, dict(sorted(rest.get("$defs", {}).items()))


class _Documented(GenerateJsonSchema):
    """With what stands under each field."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> Json:
        made = super().dataclass_schema(schema)
        for name, words in _field_docs(schema["cls"]).items():
            if name in made.get("properties", {}):
                made["properties"][name]["description"] = words
        return made


def _field_docs(cls: type) -> dict[str, str]:
    found: dict[str, str] = {}
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = " ".join(words.split()).replace("`None`", "`null`")
    known = {field.name for field in dataclasses.fields(cls)}
    return {name: words for name, words in found.items() if name in known}
