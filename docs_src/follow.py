import sys

import station

with station.Sandbox.open("builds") as sandbox:
    # Live output, byte for byte, however long; `text` never cuts a character.
    result = sandbox.exec("for i in 1 2 3; do echo step $i; done", on_output=lambda chunk: sys.stdout.write(chunk.text))
    print("ended:", result.ending.kind, result.exit_code)

    # A process outlives this program, and a restart of the station. Its id finds it again.
    process = sandbox.start("cat", stdin_open=True)
    again = sandbox.processes.get(process.id)
    again.write("typed\n")
    again.close_stdin()
    for chunk in again.output():
        print(chunk.stream, chunk.offset, chunk.text.strip())
