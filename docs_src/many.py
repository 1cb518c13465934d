import station

candidates = ["print(6 * 7)", "print('forty-two')", "raise SystemExit(3)", "while True: pass"]

for code, result in zip(candidates, station.map(candidates, concurrency=4, timeout_seconds=2), strict=True):
    if result.error is not None:  # Station could not run this one; the others are not lost
        print(f"{code!r}: {result.error}")
    else:
        print(f"{code!r}: {result.ending.kind}, exit code {result.exit_code}, {result.stdout.strip()!r}")
