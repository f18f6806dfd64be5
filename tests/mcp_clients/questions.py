"""The functions of `server.py` that ask their caller for input."""

from __future__ import annotations

from typing import Any

import ucall
from ucall.mcp import ask, client_capabilities, elicit, state


def form(message: str, **fields: str) -> dict[str, Any]:
    """A request for fields of these types."""
    properties = {name: {"type": kind} for name, kind in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields)}
    params = {"message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def sampling(text: str, tokens: int = 100) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": text}}
    params = {"messages": [message], "maxTokens": tokens}
    return {"method": "sampling/createMessage", "params": params}


ROOTS = {"method": "roots/list", "params": {}}


def test_input_required_result_elicitation(ctx: ucall.Context) -> str:
    """Asks for a name."""
    answer = elicit(ctx, "What is your name?", {"name": str}, key="user_name")
    return f"Hello, {answer.content.get('name')}!"


def test_input_required_result_sampling(ctx: ucall.Context) -> str:
    """Asks a model."""
    answers = ask(ctx, {"capital_question": sampling("What is the capital of France?")})
    return str(answers["capital_question"]["content"]["text"])


def test_input_required_result_list_roots(ctx: ucall.Context) -> str:
    """Asks for the roots."""
    return str(ask(ctx, {"client_roots": ROOTS})["client_roots"]["roots"][0]["uri"])


def test_input_required_result_request_state(ctx: ucall.Context) -> str:
    """Keeps a value for the next round."""
    ask(ctx, {"confirm": form("Please confirm", ok="boolean")}, state="state-ok")
    return str(state(ctx))


def test_input_required_result_multiple_inputs(ctx: ucall.Context) -> str:
    """Asks for three things at once."""
    answers = ask(
        ctx,
        {
            "user_name": form("What is your name?", name="string"),
            "greeting": sampling("Generate a greeting", 50),
            "client_roots": ROOTS,
        },
    )
    return ", ".join(answers)


def test_input_required_result_multi_round(ctx: ucall.Context) -> str:
    """Asks twice."""
    name = elicit(ctx, "Step 1: What is your name?", {"name": str}, key="step1")
    color = elicit(ctx, "Step 2: What is your favorite color?", {"color": str}, key="step2")
    return f"{name.content['name']} likes {color.content['color']}"


def test_input_required_result_tampered_state(ctx: ucall.Context) -> str:
    """Asks for a confirmation."""
    return elicit(ctx, "Please confirm", {"ok": bool}).action


def test_input_required_result_capabilities(ctx: ucall.Context) -> str:
    """Asks for what the client can do."""
    there = client_capabilities(ctx)
    known = {"elicitation": form("Elicitation input", value="string"), "sampling": sampling("Hi")}
    return ", ".join(ask(ctx, {name: it for name, it in known.items() if name in there}))


def test_missing_capability(ctx: ucall.Context) -> str:
    """Asks a model, also of a client that has none."""
    ask(ctx, {"sample": sampling("Hello")})
    return "sampled"


def test_streaming_elicitation(ctx: ucall.Context) -> str:
    """Asks the user."""
    return elicit(ctx, "What is your name?", {"name": str}).action


def test_sampling(prompt: str, ctx: ucall.Context) -> str:
    """Asks a model for the answer to a prompt."""
    answers = ask(ctx, {"sample": sampling(prompt)})
    return f"LLM response: {answers['sample']['content']['text']}"


def test_elicitation(message: str, ctx: ucall.Context) -> str:
    """Asks for a name and an address."""
    answer = elicit(ctx, message, {"username": str, "email": str})
    return f"User response: {answer.action}, {answer.content}"


DEFAULTS = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {
        "type": "string",
        "enum": ["active", "inactive", "pending"],
        "default": "active",
    },
    "verified": {"type": "boolean", "default": True},
}


def test_elicitation_sep1034_defaults(ctx: ucall.Context) -> str:
    """Asks for fields with defaults."""
    answer = elicit(ctx, "Please review the fields", DEFAULTS)
    return f"Elicitation completed: {answer.action}, {answer.content}"


OPTIONS = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{at}", "title": f"Option {at}"} for at in (1, 2, 3)]
ENUMS = {
    "untitledSingle": {"type": "string", "enum": OPTIONS},
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}


def test_elicitation_sep1330_enums(ctx: ucall.Context) -> str:
    """Asks for choices of all kinds."""
    answer = elicit(ctx, "Please select options", ENUMS)
    return f"Elicitation completed: {answer.action}, {answer.content}"


def test_input_required_result_prompt(ctx: ucall.Context) -> str:
    """A text about what the user says."""
    answer = elicit(ctx, "What context should it use?", {"context": str}, key="user_context")
    return f"Use this context: {answer.content.get('context')}"


def register(server: ucall.Server) -> None:
    for name, function in list(globals().items()):
        if name == "test_input_required_result_prompt":
            server.prompt(function)
        elif name.startswith("test_"):
            # A client of an older version is asked while the function waits.
            server.add(function, threads=True)
