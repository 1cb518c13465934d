"""Every parameter that queries of the API know; the table of operations and the handlers use them by name."""

from __future__ import annotations

from station.worker.files import MAX_LIST

from .query import flag, mode, needed, seconds, text, whole, whole_or_none, word

MAX_WAIT_SECONDS = 3600.0
MAX_PAGE = 1000

PATH = needed("path", "Percent-coded. Relative: below /workspace.")
FOLDER = text("path", "Percent-coded. Left out: /workspace.")
TO = needed("to", "The new place, as `path`.")
OFFSET = whole("offset", "The byte to begin at.")
LENGTH = whole_or_none("length", "How many bytes at most. Left out: to the end.")
DIGEST = word("digest", "The SHA-256 of the body, 32 bytes, follows the body.", "append")
FILE_MODE = mode("mode", "Octal permission bits.", default=0o644)
FOLDER_MODE = mode("mode", "Octal permission bits.", default=0o755)
OVERWRITE = flag("overwrite", "False: 409 where something is there already.", default=True)
PARENTS = flag("parents", "Whether missing parents are made.", default=True)
RECURSIVE = flag("recursive", "Whether all below it is meant too.")
FOLLOW_LINKS = flag("follow", "Whether a symbolic link means what it leads to.", default=True)
LIST_LIMIT = whole("limit", "How many names at most.", default=1000, least=1, most=MAX_LIST)
AFTER_NAME = text("after", "`next` of the page before.")

WAIT = seconds("wait", "Answer at its end, or after so many seconds.", most=MAX_WAIT_SECONDS)
OUTPUT = flag("output", "Whether its output so far is in the answer.")
EOF = flag("eof", "Whether its standard input ends with this body.")
FOLLOW = flag("follow", "Whether to go on until the process ends.")
AFTER_STDOUT = whole("after_stdout", "Bytes of standard output that are not wanted again.")
AFTER_STDERR = whole("after_stderr", "The same of standard error.")

ALL = flag("all", "Those of deployments too, for the operator alone.")
KEEP_FILES = flag("keep_files", "Its box ends, its files and its name stay.")
FORCE = flag("force", "Its sandboxes and its stored files go with it.")
UNLESS_BUSY = flag("unless_busy", "409 where a command runs in it.")

DRY_RUN = flag("dry_run", "Nothing is removed, and the answer tells what would be.")

PREFIX = text("prefix", "Keys that begin with it.")
AFTER_KEY = text("after", "`next` of the page before.")
PAGE = whole("limit", "How many files at most.", default=MAX_PAGE, least=1, most=MAX_PAGE)
INFO = flag("info", "What is known of the file instead of its content.")
TTL = text("ttl", "When it is to go: `90s`, `15m`, `12h`, `7d`, `2w`.")
CONTENT_TYPE = text("content_type", "Left out: by the end of `filename`, else of the key.")
FILENAME = text("filename", "The name that it had where it came from.")
