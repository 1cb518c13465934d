"""The part of the table of operations that is about files: in a sandbox, in the store, and between the two."""

from __future__ import annotations

from station.core.errors import (
    AlreadyExists,
    Busy,
    Conflict,
    FileNotFound,
    NotARegularFile,
    NotFound,
    PathRefused,
    SandboxNotFound,
    StorageFull,
)
from station.core.stored import FileListing, PublishRequest, Staged, StageRequest, StoredFile, Upload, UploadRequest
from station.core.wire import (
    API,
    FileEntry,
    FileList,
    FileWritten,
)

from . import parameters as p
from . import routes_files as files
from . import routes_store as store
from .operation import LIVE, Errors, Link, Operation, Raw, facts

_ONE = f"{API}/sandboxes/{{sid}}"
_STORED = f"{API}/files/{{key:path}}"
_UPLOAD = f"{API}/uploads/{{upload}}"

_INSIDE: Errors = (*LIVE, PathRefused, FileNotFound, AlreadyExists, NotARegularFile)
"""Of files in a sandbox."""
_KEPT: Errors = (AlreadyExists, Busy, Conflict, FileNotFound, SandboxNotFound, StorageFull)
"""Of files in the store."""
_UPLOADS: Errors = (*_KEPT, NotFound)

_OCTETS = "application/octet-stream"
_TAR = "application/x-tar"
_CONTENT = {"Content-Length": "Bytes that follow."}
_FILE = _CONTENT | {
    "X-Total-Size": "Bytes of the whole file.",
    "X-Station-Entry": "What is known of it: the JSON of a FileEntry.",
}
_DOWNLOAD = _CONTENT | {
    "X-Checksum": "SHA-256 of the whole content, hex.",
    "Content-Disposition": "The name that the file had where it came from, else the last part of its key.",
}
_ANY = Raw("*/*", "The content.")
_PIECE = Raw(_OCTETS, "A piece of at most 4 MiB, and its SHA-256, 32 bytes, behind it.")
_FORM = Raw("multipart/form-data", "Fields `key` and `ttl`, which may be left out, and after them a part `file`.")

FILES: tuple[Operation, ...] = (
    # ── files in a sandbox ──────────────────────────────────────────────────────────────────────────────────────
    Operation(
        id="read_file",
        method="GET",
        path=f"{_ONE}/files",
        handler=files.read,
        summary="The content of a file, or a part of it.",
        query=(p.PATH, p.OFFSET, p.LENGTH, p.DIGEST),
        answers={200: Raw(_OCTETS, "The content.", _FILE)},
        errors=_INSIDE,
    ),
    Operation(
        id="write_file",
        method="PUT",
        path=f"{_ONE}/files",
        handler=files.write,
        summary="Write a file, all of it or nothing. 201: it was not there before.",
        query=(p.PATH, p.FILE_MODE, p.OVERWRITE, p.PARENTS, p.DIGEST),
        body=Raw(_OCTETS, "The content."),
        answers={200: FileWritten, 201: FileWritten},
        errors=_INSIDE,
    ),
    Operation(
        id="remove_file",
        method="DELETE",
        path=f"{_ONE}/files",
        handler=files.remove,
        summary="Remove a file, or a directory. Where nothing is, 0 names are removed.",
        query=(p.PATH, p.RECURSIVE),
        answers={200: facts(removed=int)},
        errors=_INSIDE,
    ),
    Operation(
        id="stat_file",
        method="GET",
        path=f"{_ONE}/files/stat",
        handler=files.stat,
        summary="What is known of one name.",
        query=(p.PATH, p.FOLLOW_LINKS),
        answers={200: FileEntry},
        errors=_INSIDE,
    ),
    Operation(
        id="list_files",
        method="GET",
        path=f"{_ONE}/files/list",
        handler=files.list_,
        summary="The names in a directory.",
        query=(p.FOLDER, p.RECURSIVE, p.LIST_LIMIT, p.AFTER_NAME),
        answers={200: FileList},
        errors=_INSIDE,
    ),
    Operation(
        id="make_directory",
        method="POST",
        path=f"{_ONE}/files/mkdir",
        handler=files.mkdir,
        summary="Make a directory.",
        query=(p.PATH, p.FOLDER_MODE, p.PARENTS),
        answers={200: facts(created=bool)},
        errors=_INSIDE,
    ),
    Operation(
        id="rename_file",
        method="POST",
        path=f"{_ONE}/files/rename",
        handler=files.rename,
        summary="Move a file or a directory.",
        query=(p.PATH, p.TO, p.OVERWRITE),
        answers={204: None},
        errors=_INSIDE,
    ),
    Operation(
        id="copy_file",
        method="POST",
        path=f"{_ONE}/files/copy",
        handler=files.copy,
        summary="Copy a file, or merge a directory into another.",
        query=(p.PATH, p.TO, p.OVERWRITE),
        answers={204: None},
        errors=_INSIDE,
    ),
    Operation(
        id="read_archive",
        method="GET",
        path=f"{_ONE}/files/archive",
        handler=files.read_archive,
        summary="A tree as a tar archive.",
        query=(p.FOLDER,),
        answers={200: Raw(_TAR, "The archive.")},
        errors=_INSIDE,
    ),
    Operation(
        id="write_archive",
        method="PUT",
        path=f"{_ONE}/files/archive",
        handler=files.write_archive,
        summary="Merge a tar archive, plain or gzip, into a directory.",
        query=(p.FOLDER,),
        body=Raw(_TAR, "The archive."),
        answers={200: facts(entries=int)},
        errors=_INSIDE,
    ),
    # ── the file store ──────────────────────────────────────────────────────────────────────────────────────────
    Operation(
        id="stage_file",
        method="POST",
        path=f"{_ONE}/stage",
        handler=store.stage,
        summary="Bring a file of the store into a sandbox. 201: it was not there before.",
        body=StageRequest,
        answers={200: Staged, 201: Staged},
        errors=_INSIDE,
    ),
    Operation(
        id="publish_file",
        method="POST",
        path=f"{_ONE}/publish",
        handler=store.publish,
        summary="Bring a file of a sandbox into the store.",
        body=PublishRequest,
        answers={201: StoredFile},
        errors=_INSIDE,
    ),
    Operation(
        id="upload_form",
        method="POST",
        path=f"{API}/files",
        handler=store.upload_form,
        summary="Store the file of a form.",
        body=_FORM,
        answers={201: facts(file_key=str, size_bytes=int, content_type=str, checksum=str)},
        errors=_KEPT,
    ),
    Operation(
        id="list_stored",
        method="GET",
        path=f"{API}/files",
        handler=store.list_,
        summary="The files of the store, by the bytes of their keys.",
        query=(p.PREFIX, p.AFTER_KEY, p.PAGE),
        answers={200: FileListing},
    ),
    Operation(
        id="read_stored",
        method="GET",
        path=_STORED,
        handler=store.read,
        summary="The content of a file of the store, or what is known of it.",
        query=(p.OFFSET, p.INFO),
        answers={200: Raw("*/*", "The content, with its own media type; with `info=true` a StoredFile.", _DOWNLOAD)},
        errors=_KEPT,
    ),
    Operation(
        id="write_stored",
        method="PUT",
        path=_STORED,
        handler=store.write,
        summary="Store a file.",
        query=(p.TTL, p.DIGEST, p.CONTENT_TYPE, p.FILENAME),
        body=_ANY,
        answers={201: StoredFile},
        errors=_KEPT,
        links=(Link("key", "$response.body#/key", ("read_stored", "delete_stored")),),
    ),
    Operation(
        id="delete_stored",
        method="DELETE",
        path=_STORED,
        handler=store.delete,
        summary="Delete a file of the store.",
        answers={200: facts(deleted=str)},
        errors=_KEPT,
    ),
    Operation(
        id="begin_upload",
        method="POST",
        path=f"{API}/uploads",
        handler=store.begin_upload,
        summary="Begin a file that comes in pieces.",
        body=UploadRequest,
        answers={201: Upload},
        errors=_UPLOADS,
        links=(Link("upload", "$response.body#/id", ("get_upload", "append_upload", "finish_upload", "abort_upload")),),
    ),
    Operation(
        id="get_upload",
        method="GET",
        path=_UPLOAD,
        handler=store.get_upload,
        summary="How much of it has come.",
        answers={200: Upload},
        errors=_UPLOADS,
    ),
    Operation(
        id="append_upload",
        method="PUT",
        path=_UPLOAD,
        handler=store.append,
        summary="Add one piece.",
        query=(p.OFFSET,),
        body=_PIECE,
        answers={200: Upload},
        errors=_UPLOADS,
    ),
    Operation(
        id="finish_upload",
        method="POST",
        path=f"{_UPLOAD}/finish",
        handler=store.finish_upload,
        summary="All has come: check the whole, and store it.",
        answers={201: StoredFile},
        errors=_UPLOADS,
    ),
    Operation(
        id="abort_upload",
        method="DELETE",
        path=_UPLOAD,
        handler=store.abort_upload,
        summary="Give it up. Repeating is no error.",
        answers={204: None},
        errors=_UPLOADS,
    ),
)
