"""What scripts/demo runs: code that nobody has read, on real data, isolated; and a sandbox that stays."""

import subprocess
import sys
from pathlib import Path

import station

ROOT = Path(__file__).resolve().parent.parent
ANALYSIS = ROOT / "examples" / "co2.py"
DATA = ROOT / "examples" / "data" / "mauna-loa-co2.csv"

# As somebody might write it who means harm. Each line of output is one attempt; none of them changes anything.
ATTEMPTS = r"""
import os, socket, sys

def attempt(title, act):
    try:
        print("REACHED" if act() else "refused", title, sep="\t")
    except OSError as error:
        print("refused", f"{title} ({error.strerror or error})", sep="\t")

def internet():
    # Asks for a way there, and sends nothing: an address of the documentation's, and no packet leaves by it.
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9)) is None

def commands():
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid != str(os.getpid())]
    return [open(f"/proc/{pid}/cmdline").read() for pid in others]

def addresses():
    return [name for _, name in socket.if_nameindex() if name != "lo"]

attempt("find a way to the internet", internet)
attempt("find a network other than loopback", addresses)
attempt("read the passwords of this machine", lambda: open("/etc/shadow").read())
attempt("see the folder that this demo lies in", lambda: os.path.exists(sys.argv[1]))
attempt("see a process of this machine", lambda: any("station" in command for command in commands()))
attempt("find a variable of your shell", lambda: "STN_DEMO_SECRET" in os.environ)
attempt("write to the programs of this machine", lambda: open("/usr/bin/env", "ab"))
"""


def title(text: str) -> None:
    print(f"\n── {text}\n")


def show_isolation(isolation: station.Isolation) -> None:
    """From the answer: what was so, not what should have been."""
    where = f"{isolation.backend} ({isolation.image})"
    print(f"\nIt ran on {where}, isolation {isolation.grade}, network {isolation.network}.")
    held, rest = [], []
    for name, report in isolation.limits.items():
        if report.level == "enforced":
            held.append(f"{name} ({report.by})")
        elif report.value is not None:  # else nobody asked for it
            rest.append(f"{name} ({report.level.replace('_', ' ')}: {report.by})")
    print(f"Limits held: {', '.join(held) or 'none'}.\nNot held: {', '.join(rest) or 'none'}.")


def analyse() -> bool:
    title("1. Code that nobody has read (examples/co2.py), on 44 years of real measurements (examples/data)")
    result = station.run(
        ANALYSIS.read_text(encoding="utf-8"), files={DATA.name: DATA.read_bytes()}, artifacts=["co2.svg"]
    )
    print(result.stdout + result.stderr, end="")
    print("\nTo check: it is commonly quoted as about 316 for 1959 and 369.6 for 2000 (the Keeling curve).")
    picture = result.artifacts.get("co2.svg", b"")
    print(f"It also left a picture: co2.svg, {len(picture)} bytes, returned from the box.")
    if result.isolation is not None:
        show_isolation(result.isolation)
    return result.ok and "1959    315.9" in result.stdout and "2000    369.4" in result.stdout


def attack() -> bool:
    title("2. Code that means harm, in the same kind of box; and, to compare, the same code without one")
    result = station.run(ATTEMPTS, args=[str(ROOT)], timeout_seconds=30)
    bare = subprocess.run([sys.executable, "-c", ATTEMPTS, str(ROOT)], capture_output=True, text=True, check=False)
    print("in the box  without one")
    for inside, outside in zip(result.stdout.splitlines(), bare.stdout.splitlines(), strict=False):
        answer, _, what = inside.partition("\t")
        print(f"{answer:10}  {outside.partition(chr(9))[0]:11}  {what}")
    print(result.stderr, end="")
    return result.ok and "REACHED" not in result.stdout


def keep() -> bool:
    title("3. A sandbox that stays from one command to the next")
    for words in (
        ["open", "demo"],
        ["exec", "demo", "--", "date -u +'%F %T demo' >> notes.txt"],
        ["exec", "demo", "--", "echo 'from another program, another connection:'; cat notes.txt"],
    ):
        shown = " ".join(word if word.isalnum() or word == "--" else f'"{word}"' for word in words)
        print(f"$ stn {shown}", flush=True)
        if subprocess.run([sys.executable, "-m", "station", *words], check=False).returncode:
            return False
    print("\nIt is still there:  .venv/bin/stn exec demo -- ls -la     and to be rid of it:  .venv/bin/stn rm demo")
    return True


def main() -> int:
    try:
        done = {"the analysis": analyse(), "the attempts": attack(), "the kept sandbox": keep()}
    except station.StationError as error:
        sys.stdout.flush()
        print(f"\nThe demo cannot go on: {error}\n.venv/bin/stn doctor says what would help.", file=sys.stderr)
        return 1
    bad = [name for name, fine in done.items() if not fine]
    print(f"\n{'All as it should be.' if not bad else 'NOT as it should be: ' + ', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
