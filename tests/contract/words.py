"""Programs, said once for every backend: a script where programs run, the same behaviour as a function on the fake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from signal import SIGTERM

from station.backends.fake import FakeProcess, Program


@dataclass(frozen=True)
class Word:
    script: str
    program: Program


WORDS: dict[str, Word] = {}


def word(script: str) -> Callable[[Program], Program]:
    """Registers `program` under its name; `script` is the same for python3, with its arguments in sys.argv[1:]."""

    def register(program: Program) -> Program:
        WORDS[program.__name__] = Word(script, program)
        return program

    return register


def argv_of(backend: str, name: str, *args: str) -> tuple[str, ...]:
    """The command line of a word on that backend."""
    if backend == "fake":
        return (f"word-{name}", *args)
    return ("python3", "-c", WORDS[name].script, *args)


def programs() -> Mapping[str, Program]:
    return {f"word-{name}": word.program for name, word in WORDS.items()}


def pattern(count: int) -> bytes:
    """Bytes that show where they come from."""
    return (b"".join(b"%07d\n" % number for number in range(count // 8 + 1)))[:count]


@word("""
import sys
count = int(sys.argv[2])
data = b''.join(b'%07d\\n' % number for number in range(count // 8 + 1))[:count]
(sys.stdout if sys.argv[1] == '1' else sys.stderr).buffer.write(data)
""")
async def count_to(process: FakeProcess) -> int:
    """`STREAM COUNT`: `pattern(COUNT)` on that stream."""
    await process.write(int(process.argv[1]), pattern(int(process.argv[2])))
    return 0


@word("""
import sys
count = int(sys.argv[1])
data = b''.join(b'%07d\\n' % number for number in range(count // 8 + 1))[:count]
sys.stderr.buffer.write(data); sys.stderr.flush(); sys.stdout.buffer.write(data)
""")
async def both(process: FakeProcess) -> int:
    """`COUNT`: `pattern(COUNT)` on stderr, and only then on stdout."""
    data = pattern(int(process.argv[1]))
    await process.write(2, data)
    await process.write(1, data)
    return 0


@word("""
import os, sys
for piece in sys.argv[1:]: os.write(1, bytes.fromhex(piece))
""")
async def pieces(process: FakeProcess) -> int:
    """`HEX...`: each in a write of its own."""
    for piece in process.argv[1:]:
        await process.write(1, bytes.fromhex(piece))
    return 0


@word("""
import os
while True: os.write(1, b'y' * 4096)
""")
async def babble(process: FakeProcess) -> int:
    """Never stops writing."""
    while True:
        await process.write(1, b"y" * 4096)


@word("""
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b'ready\\n')
while True: signal.pause()
""")
async def stubborn(process: FakeProcess) -> int:
    """Ignores SIGTERM; says `ready` once it does."""
    process.on_signal(SIGTERM, None)
    await process.out("ready\n")
    await process.sleep(1e6)
    return 0


@word("""
import os, signal, sys
done = lambda *_: (os.write(1, b'bye\\n'), os._exit(7))
signal.signal(signal.SIGTERM, done)
os.write(1, b'ready\\n')
while True: signal.pause()
""")
async def polite(process: FakeProcess) -> int:
    """Says `ready`; on SIGTERM says `bye` and exits 7."""
    asked = process.signal_event(SIGTERM)
    await process.out("ready\n")
    await asked.wait()
    await process.out("bye\n")
    return 7


@word("""
import os, signal, sys
if not os.path.exists('pulse'): os.mkfifo('pulse')
keep = os.open('pulse', os.O_RDWR)
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0: os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b'daemon\\n')
    while True: signal.pause()
os.wait()
if sys.argv[1] == 'stay':
    while True: signal.pause()
while True:
    import time; time.sleep(0.001)
    if os.path.exists('go'): break
""")
async def breed(process: FakeProcess) -> int:
    """`stay|leave`: makes a daemon that ignores SIGTERM, holds the output and `pulse`, and says `daemon`; then stays,
    or leaves once there is a file `go`."""
    process.spawn(["word-daemon"])
    if process.argv[1] == "stay":
        await process.sleep(1e6)
    while not process.files.exists("go"):
        await process.sleep(0.001)
    return 0


@word("")
async def daemon(process: FakeProcess) -> int:
    """On the fake, what `breed` makes."""
    process.on_signal(SIGTERM, None)
    process.files.create("pulse")
    try:
        await process.out("daemon\n")
        await process.sleep(1e6)
    finally:
        process.files.remove("pulse")
    return 0


@word("""
import os, sys
end = os.open('pulse', os.O_RDONLY | os.O_NONBLOCK)
try:
    print('gone' if os.read(end, 1) == b'' else 'data')
except BlockingIOError:
    print('held')
""")
async def pulse(process: FakeProcess) -> int:
    """Whether somebody of `breed` still lives: `held` or `gone`."""
    await process.out("held\n" if process.files.exists("pulse") else "gone\n")
    return 0


@word("""
import os, sys, time
told, tell = os.pipe()
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        if os.fork() == 0: os.write(tell, b'%d ' % os.getpid())
        os._exit(0)
    os.wait()
pids = b''
while pids.count(b' ') < int(sys.argv[1]): pids += os.read(told, 65536)
def zombies():
    found = 0
    for pid in pids.decode().split():
        try: found += open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] == 'Z'
        except OSError: pass
    return found
end = time.monotonic() + 4
while zombies() and time.monotonic() < end: time.sleep(0.01)
print(zombies())
""")
async def orphans(process: FakeProcess) -> int:
    """`COUNT`: leaves so many orphans that end at once, and says how many zombies stay."""
    for child in [process.spawn(["true"]) for _ in range(int(process.argv[1]))]:
        await child.wait()
    await process.out("0\n")
    return 0


@word("""
import os, signal
os.close(0)
os.write(1, b'closed\\n')
while True: signal.pause()
""")
async def deaf(process: FakeProcess) -> int:
    """Closes its stdin, says `closed`, and stays."""
    process.stdin.abandon()
    await process.out("closed\n")
    await process.sleep(1e6)
    return 0


@word("""
import os, signal, sys
if sys.argv[1] not in ('9', '19'): signal.signal(int(sys.argv[1]), signal.SIG_DFL)  # Python itself ignores SIGPIPE
os.kill(os.getpid(), int(sys.argv[1]))
""")
async def die(process: FakeProcess) -> int:
    """`SIGNAL`: ends itself by it."""
    process.die(int(process.argv[1]))
    return 0


@word("""
import os, sys
for name in sys.argv[1:]: os.write(1, os.environb[os.fsencode(name)] + b'\\0')
""")
async def variables(process: FakeProcess) -> int:
    """`NAME...`: the value of each, NUL after it."""
    for name in process.argv[1:]:
        await process.out(process.env[name] + "\0")
    return 0


@word("""
import os, sys
open(sys.argv[1], 'wb').truncate(int(sys.argv[2]))
""")
async def sparse(process: FakeProcess) -> int:
    """`PATH SIZE`: a file that is one hole."""
    process.files.create(process.argv[1]).truncate(int(process.argv[2]))
    return 0


@word("""
import os, sys
os.symlink(sys.argv[2], sys.argv[1])
""")
async def link(process: FakeProcess) -> int:
    """`PATH TARGET`: a symbolic link."""
    process.files.make_link(process.argv[1], process.argv[2])
    return 0


@word("""
import os, sys
with open(sys.argv[1], 'ab') as file: file.write(b'more')
""")
async def append(process: FakeProcess) -> int:
    """`PATH`: adds to a file that is there."""
    process.files.append(process.files.open(process.argv[1]), b"more")
    return 0


@word("""
import os, sys
os.mkdir(sys.argv[1])
for number in range(int(sys.argv[2])): open(f'{sys.argv[1]}/{number:05d}', 'w').close()
""")
async def crowd(process: FakeProcess) -> int:
    """`DIRECTORY COUNT`: so many empty files in a new directory."""
    process.files.make_directory(process.argv[1])
    for number in range(int(process.argv[2])):
        process.files.create(f"{process.argv[1]}/{number:05d}")
    return 0


@word("""
import os, sys, time
while not os.path.exists('go'): time.sleep(0.001)
while data := os.read(0, 65536): os.write(1, data)
""")
async def late_cat(process: FakeProcess) -> int:
    """Copies stdin to stdout, once there is a file `go`."""
    while not process.files.exists("go"):
        await process.sleep(0.001)
    while data := await process.stdin.read():
        await process.write(1, data)
    return 0


@word("""
import os, sys
os.mkfifo(sys.argv[1])
""")
async def fifo(process: FakeProcess) -> int:
    """`PATH`: a fifo."""
    process.files.make_fifo(process.argv[1])
    return 0
