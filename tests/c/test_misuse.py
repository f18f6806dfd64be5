"""Every function of the header with NULL and zeros: outside of calls, in one, after its reply."""

import re

import build
import pytest

import harness
from harness import Client, serving

#: What the first argument may be; the other arguments are zeros.
HANDLES = {
    "ucall_call_t": "call",
    "ucall_server_t": "server",
    "ucall_value_t const": "&value",
    "ucall_writer_t": "writer",
}
#: They end the program's use of the handle, so they get NULL alone.
ENDING = {"ucall_drain", "ucall_free", "ucall_stop", "ucall_writer_free"}
#: They return a handle that must be released.
RELEASED_BY = {
    "ucall_call_defer": "ucall_call_release",
    "ucall_call_stream": "ucall_call_release",
    "ucall_writer_new": "ucall_writer_free",
}

PROGRAM = """
#include <signal.h>
#include <stdio.h>
#include <ucall/ucall.h>

static ucall_server_t server;

static void stop(int number) {
    (void)number;
    ucall_stop(server);
}

static void use(int64_t number, ucall_call_t call, ucall_writer_t writer) {
    ucall_value_t value = {0};
    switch (number) {
%(cases)s
    }
    (void)value;
    (void)writer;
}

static void misuse(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_writer_t writer = ucall_writer_new();
    int64_t number = 0;
    (void)tag;
    ucall_param_positional_i64(call, 0, &number);
    use(number, call, writer);
    ucall_call_reply_bool(call, true);
    use(number, call, writer);
    ucall_writer_free(writer);
}

int main(void) {
    ucall_config_t config = {0};
%(nulls)s
    config.pick_port = true;
    config.engine = UCALL_ENGINE_POSIX;
    if (!ucall_init(&config, &server) || !ucall_add_procedure(server, "misuse", misuse, NULL))
        return 1;
    signal(SIGTERM, stop);
    printf("listening on %%d\\n", config.port);
    fflush(stdout);
    if (!ucall_take_calls(server, 0)) return 1;
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    return 0;
}
"""


def functions() -> dict[str, list[str]]:
    """The types of the params of each function, in the order of the header."""
    header = (harness.INCLUDE / "ucall/ucall.h").read_text()
    code = re.sub(r"/\*.*?\*/|^#.*?$", "", header, flags=re.S | re.M)
    found = re.findall(r"^(?!typedef)\w[\w *]*\b(ucall_\w+)\(([^;{}]*)\);", code, re.M)
    return {
        name: [re.sub(r"[ *]*\w+$", "", it.strip()) for it in params.split(",") if it != "void"]
        for name, params in found
    }


def statement(name: str, arguments: list[str]) -> str:
    call = f"{name}({', '.join(arguments)})"
    return f"{RELEASED_BY[name]}({call});" if name in RELEASED_BY else f"{call};"


def program() -> str:
    nulls, cases = [], []
    for number, (name, types) in enumerate(functions().items()):
        zeros = ["0"] * len(types)
        nulls.append(f"    {statement(name, zeros)}")
        if types and types[0] in HANDLES and name not in ENDING:
            zeros[0] = HANDLES[types[0]]
        cases.append(f"    case {number}: {statement(name, zeros)} break;")
    return PROGRAM % {"nulls": "\n".join(nulls), "cases": "\n".join(cases)}


SLOW = pytest.param("valgrind", marks=pytest.mark.slow)


@pytest.mark.parametrize("variant", ["plain", "sanitized", SLOW])
@pytest.mark.usefixtures("library")
def test_misuse_never_crashes(tmp_path, variant):
    source = tmp_path / "misuse.c"
    source.write_text(program())
    command = [harness.build(source, tmp_path / "misuse", build.VARIANTS[variant])]
    if variant == "valgrind":
        command = [*harness.valgrind(), *command]
    with serving(command) as server, Client(server.port) as client:
        for number, name in enumerate(functions()):
            sent = client.submit("misuse", [number])
            reply = client.message()
            assert reply["id"] == sent and ("result" in reply) != ("error" in reply), name
