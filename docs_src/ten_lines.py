import station

result = station.run("print(sum(range(10)))", timeout_seconds=10)
print(result.stdout.strip(), result.exit_code, result.isolation.grade)

with station.Sandbox.open("my-project") as sandbox:
    sandbox.files.write("hello.py", "print('hello from', __file__)")
    print(sandbox.exec("python hello.py").check().stdout.strip())
    server = sandbox.start("python -m http.server 8000")
    print(sandbox.processes.list()[-1].status, "as", server.id)
