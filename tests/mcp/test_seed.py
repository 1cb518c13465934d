"""The seed's examples, verbatim; what they fetch from the network is left out."""

from __future__ import annotations

import shutil

from tests.mcp.driver import Tools


async def test_the_compute_example(anywhere: Tools) -> None:
    done = await anywhere.call("sandbox_run", {"code": "print(sum(range(1, 101)))", "runtime": "python"})
    assert done["stdout"] == "5050\n"
    assert done["ok"] is True


async def test_the_full_development_workflow(anywhere: Tools) -> None:
    assert shutil.which("gcc"), "this example needs gcc: .ci/run installs it"
    opened = await anywhere.call("sandbox_open", {})
    assert opened["image"] == "host:/usr"
    await anywhere.call(
        "sandbox_fs_write",
        {"path": "main.c", "content": '#include <stdio.h>\nint main() { printf("Hello!\\n"); return 0; }'},
    )
    done = await anywhere.call("sandbox_exec", {"command": "gcc -o main main.c && ./main"})
    assert (done["stdout"], done["exit_code"]) == ("Hello!\n", 0), done.text
    await anywhere.call(
        "sandbox_fs_write", {"path": "analyze.py", "content": "import json as pd\nprint(pd.__version__)"}
    )
    done = await anywhere.call("sandbox_exec", {"command": "python analyze.py"})
    assert (done["exit_code"], done["stdout"]) == (0, "2.0.9\n"), done.text
    assert (await anywhere.call("sandbox_close", {}))["already_closed"] is False


async def test_installing_system_packages_fails_with_what_the_operator_can_do(tools: Tools) -> None:
    done = await tools.call("sandbox_exec", {"command": "apt-get update && apt-get install -y build-essential curl"})
    assert done["exit_code"] != 0
    assert "allow_network: true" in done["hint"]
    assert "allow_network: true" in done.text


async def test_installing_python_packages_fails_with_what_the_operator_can_do(tools: Tools) -> None:
    # The installer's own attempts take long; it may be missing too. What it says is what this program says.
    asks = "python -c 'import urllib.request as u; u.urlopen(\"https://example.org\")'"
    done = await tools.call("sandbox_exec", {"command": f"pip install --retries 0 pandas numpy && {asks} || {asks}"})
    assert done["exit_code"] != 0
    assert "network: none" in done["hint"], done.text


async def test_the_terraform_agents_calls_have_the_form_that_the_tools_take(tools: Tools) -> None:
    await tools.call("sandbox_open", {})
    await tools.call("sandbox_fs_write", {"path": "main.tf", "content": "..."})
    for command in ("terraform init", "terraform plan"):
        done = await tools.call("sandbox_exec", {"command": command})
        # Its image is not there: it is the machine's own program, or none.
        assert done["exit_code"] == (1 if shutil.which("terraform") else 127)
