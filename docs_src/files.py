import tempfile
from pathlib import Path

import station

with station.Sandbox.open("files") as sandbox, tempfile.TemporaryDirectory() as folder:
    sandbox.files.write("data/table.csv", "a,b\n1,2\n")  # whole or not at all, parents made
    sandbox.exec("sort -r data/table.csv > data/sorted.csv").check()
    print([entry.path for entry in sandbox.files.list(recursive=True)])

    sandbox.files.download("data", Path(folder) / "data")  # a folder, or a file
    print((Path(folder) / "data" / "sorted.csv").read_text())

    try:
        sandbox.files.read("/etc/passwd")
    except station.errors.PathRefused as refusal:
        print(refusal.code, "-", refusal)
