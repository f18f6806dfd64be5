"""Checks that all places that name an option of the server agree. Standard library only.

    python tools/check-options.py

`python/ucall/options.py` has the names, the defaults and what happens past a limit, and variables,
flags and the keys of a gateway's file come from it. These are compared with it: the table that sets
the fields of the core, their defaults in Rust, the fields of `ucall_config_t` with their comments
and defaults, the table of docs/limits.md, and what a page says of a default beside its option.
Stores, relays, queues, forms and clients have options of their own, whose pages are checked, too.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
OPTIONS, PAGE = "python/ucall/options.py", "docs/limits.md"
BINDING, C_CONFIG = "crates/ucall-python/src/options.rs", "crates/ucall-capi/src/config.rs"
HEADER = "include/ucall/ucall.h"
#: Where the defaults of the core are, by what its fields belong to: the file, and the line above.
PROTO, SERVER = "crates/ucall-proto/src", "crates/ucall-server/src/config.rs"
DEFAULTS = {
    "limits.head": (f"{PROTO}/http1/parser.rs", "impl Default for HeadLimits"),
    "limits": (f"{PROTO}/limits.rs", "impl Default for Limits"),
    "config": (SERVER, "pub fn new(access: AccessRules)"),
    "datagrams": (SERVER, "impl Default for DatagramConfig"),
    "call_limits": (BINDING, "impl Default for CallLimits"),
}
#: Of a store: in Python, in Rust, and their page.
STORE_OPTIONS, STORE_PAGE = "python/ucall/store/__init__.py", "docs/store.md"
STORE = "crates/ucall-store/src/options.rs"
#: Numbers that limit nothing.
NO_LIMITS = {"access_log_sample", "udp_port"}
#: Options that the core does not get by its table, and why.
OUTSIDE_THE_TABLE = {
    "max_connections_per_peer": "an argument of its own, without a default",
    "max_source_calls_per_s": "an argument of its own, without a default",
    "max_image_pixels": "Python reads images",
    "max_held_image_pixels": "Python reads images",
    "ready_timeout_s": "Python runs the checks",
    "process_start_timeout_s": "Python starts the processes",
    "compression_min_bytes": "they turn it on",
    "compression_max_bytes": "they turn it on",
}
#: Limits without a row, and why.
WITHOUT_A_ROW = {
    "slow_call_s": "nothing is refused",
    "compression_min_bytes": "nothing is refused",
    "compression_max_bytes": "nothing is refused",
}
#: Fields of C whose default is another one, and why.
OTHERWISE_IN_C = {"compression_min_bytes": "it turns compression on"}
#: Limits past which a function of C returns false.
FALSE_IN_C = {"max_subscriptions", "max_topic_bytes"}
#: Where the options of functions have their defaults.
DECORATORS = "python/ucall/_server/function_decorators.py"
FUNCTIONS = {
    "request.form": "python/ucall/_core.pyi",
    "batch": DECORATORS,
    "batch(rows=True)": DECORATORS,
    "a function": DECORATORS,
}
#: Pages on options of other things than servers, and where these have their defaults.
QUEUE = "python/ucall/queue/core/options.py"
SOURCES = {
    "docs/client.md": ("python/ucall/aio/__init__.py", "python/ucall/client.py"),
    "docs/compression.md": (OPTIONS,),
    "docs/http.md": ("python/ucall/_core.pyi",),
    "docs/javascript.md": ("python/ucall/static/ucall.js",),
    "docs/queues-reference.md": (QUEUE,),
    "docs/queues.md": (QUEUE,),
    "docs/relay.md": ("python/ucall/_server/decorators.py",),
}
#: Fewer defaults than these beside names mean that `MENTION` no longer finds them.
MENTIONS_MIN = 55
UNITS = {"": 1, "s": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
AMOUNT = r"(\d[\d,.]*\b)(?: ?(s|[KMG]i)B?\b)?"
#: A name at the beginning of a row, or before a number in parentheses or behind a comma.
MENTION = rf"(?:^\| `(\w+)` \| |`(\w+)`(?: \(|, )){AMOUNT}"
#: Statuses, codes of WebSocket and codes of errors.
CODE = re.compile(r"-32\d{3}\b|\b[45]\d{2}\b|\b10\d{2}\b")


class Option(NamedTuple):
    """A number among the server's options, at a line of `options.py`."""

    default: float | None
    line: int
    #: What clients get past it.
    codes: set[str]


@functools.cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def number(text: str, unit: str | None = None) -> float:
    if re.fullmatch("0[0-7]+", text):
        return int(text, 8)
    return float(text.rstrip(",.").replace(",", "")) * UNITS[unit or ""]


def codes_in(text: str, above: set[str]) -> set[str]:
    """What a text of an option says of those who pass it, which may be the same as above it."""
    past = text.partition("Past it")[2]
    return above if past[2:].startswith("the same") else set(CODE.findall(past))


def options() -> dict[str, Option]:
    """Those whose type is a number, by their names in variables."""
    found, codes = {}, set()
    for group in ast.parse(text_of(OPTIONS)).body:
        if not isinstance(group, ast.ClassDef):
            continue
        fields = [it for it in group.body if isinstance(it, ast.AnnAssign)]
        renamed = next((it.value for it in fields if it.target.id == "_variables"), None)
        names = ast.literal_eval(renamed) if renamed else {}
        entries = re.split(r"\n {8}(?=\w)", ast.get_docstring(group, clean=False) or "")
        texts = dict(re.split(r":\s", it, maxsplit=1) for it in entries if ": " in it)
        for field in fields:
            kind, own = ast.unparse(field.annotation), field.target.id
            name = names.get(own, own)
            if re.fullmatch(r"(int|float)( \| None)?", kind) and name not in NO_LIMITS:
                codes = codes_in(texts.get(own, ""), codes)
                found[name] = Option(ast.literal_eval(field.value), field.lineno, codes)
    return found


class Place(NamedTuple):
    """A field of the core, in the table that Python's or C's options set it by."""

    kind: str
    path: str
    line: int


def binding() -> dict[str, Place]:
    text = text_of(BINDING)
    found = re.finditer(r'\("(\w+)", LimitField::(\w+)\(&mut ([\w.]+)\)\)', text)
    return {it[1]: Place(it[2], it[3], line_of(text, it.start())) for it in found}


def value_of(expression: str, file: str) -> float | None:
    """The value of a default in Rust."""
    expression = expression.strip().rstrip(",")
    if constant := re.fullmatch(r"(?:\w+::)?([A-Z_]{2,})", expression):
        for source in (file, SERVER, f"{PROTO}/limits.rs"):
            if found := re.search(rf"const {constant[1]}: \w+ = (.+);", text_of(source)):
                return value_of(found[1], source)
    if expression in ("None", "Duration::ZERO"):
        return None if expression == "None" else 0.0
    if expression == "Limits::default().reply_bytes_max":
        return default_of("limits.reply_bytes_max")[0]
    if duration := re.fullmatch(r"Duration::from_(secs|millis)\((\w+)\)", expression):
        return float(duration[2]) / (1000 if duration[1] == "millis" else 1)
    if product := re.fullmatch(r"(\w+)(?: (<<|\*) (\w+))?", expression):
        first, second = int(product[1], 0), int(product[3] or "0", 0)
        return float({"<<": first << second, "*": first * second, None: first}[product[2]])
    raise ValueError(f"{file}: {expression} is no default that this program can read")


def default_of(path: str) -> tuple[float | None, str]:
    """The default of a field of the core, and its place."""
    owner, _, field = path.rpartition(".")
    file, opening = DEFAULTS[owner]
    text = text_of(file)
    start = text.index(opening)
    found = re.compile(rf"\b{field}: ([^,\n]+)").search(text, start)
    if found is None:
        raise ValueError(f"{file}: no default of {field}")
    return value_of(found[1].rstrip(" }"), file), f"{file}:{line_of(text, found.start())}"


@functools.cache
def client_modules() -> str:
    """The texts of all, in which options of clients have their defaults."""
    return "".join(map(Path.read_text, sorted(ROOT.glob("python/ucall/_client/*.py"))))


def source_default(file: str, name: str) -> tuple[float | None, str] | None:
    """The default of a parameter or a field in Python, or an option in JavaScript; its place."""
    text = text_of(file)
    found = re.search(rf"^ +{name}: [^=\n]+ = (.+?),?$|\.{name} \?\? (.+);$", text, re.MULTILINE)
    if found is None:
        return None
    written = found[1] or found[2]
    if constant := re.fullmatch(r"(?:\w+\.)?([A-Z_]+)", written):
        written = re.search(rf"^{constant[1]} = (.+)$", client_modules(), re.MULTILINE)[1]
    is_number = re.fullmatch(r"[\d_.]+( ?(<<|\*\*?) ?[\d_]+)*", written)
    default = float(eval(written)) if is_number else None
    return default, f"{file}:{line_of(text, found.start())}"


def shown(value: float | None) -> str:
    return "none" if value is None else f"{value:,g}" if value % 1 else f"{value:,.0f}"


def shown_codes(option: Option) -> str:
    return f"{' and '.join(sorted(option.codes))} past it, as {OPTIONS}:{option.line}"


def core_complaints(known: dict[str, Option]) -> Iterator[str]:
    table = binding()
    for name, option in known.items():
        at = f"{OPTIONS}:{option.line}: {name}"
        if (name in table) == (name in OUTSIDE_THE_TABLE):
            yield f"{at}: expected in `limit_fields` of {BINDING}, or among OUTSIDE_THE_TABLE"
    for name, place in table.items():
        at = f"{BINDING}:{place.line}: {name}"
        if name not in known:
            yield f"{at}: no option of {OPTIONS}"
            continue
        kinds = {"Rate", "Burst"} if known[name].default is None else {"Count"}
        kinds = {"Time", "Delay"} if name.endswith("_s") and "per_s" not in name else kinds
        if place.kind not in kinds:
            yield f"{at}: expected {' or '.join(sorted(kinds))}, got {place.kind}"
        words = set(place.path.rpartition(".")[2].split("_")) - {"lifetime"}
        if not words <= {*name.split("_")}:
            yield f"{at}: expected a field of that name, got {place.path}"
        default, where = default_of(place.path)
        if default != known[name].default:
            wanted = f"{shown(known[name].default)} of {OPTIONS}:{known[name].line}"
            yield f"{where}: {name}: expected the default {wanted}, got {shown(default)}"


def fields_of_c() -> dict[str, tuple[str, int]]:
    """The fields of the header's configuration: their comment and line."""
    text = text_of(HEADER)
    start, end = text.index("typedef struct ucall_config_t {"), text.index("} ucall_config_t;")
    found, comment = {}, ""
    for it in re.compile(r"/\*(.*?)\*/|(\w+);", re.DOTALL).finditer(text, start, end):
        if it[1] is not None:
            comment = re.sub(r"\s+\*? ?", " ", it[1])
        else:
            found[it[2]] = (comment, line_of(text, it.start()))
    return found


def in_python(field: str) -> str:
    """The name in Python of a field of C: times are in seconds there."""
    return field if field == "timeout_ms" else re.sub("_ms$", "_s", field)


def default_in(comment: str) -> tuple[float | None] | None:
    """The default that a comment of the header names; ``None`` if it names no number."""
    found = re.search(rf"Default: (?:{AMOUNT}|no (?:such )?limit)", comment)
    if found is None:
        return None
    return (None if found[1] is None else number(found[1], found[2]),)


def c_complaints(known: dict[str, Option]) -> Iterator[str]:
    """The comments of the header."""
    codes: set[str] = set()
    for field, (comment, line) in fields_of_c().items():
        option, codes = known.get(in_python(field)), codes_in(comment, codes)
        if option is None or field in OTHERWISE_IN_C:
            continue
        at, default = f"{HEADER}:{line}: {field}", default_in(comment)
        wanted = f"{shown(option.default)} of {OPTIONS}:{option.line}"
        if default is None or default[0] != option.default:
            got = "none in its comment" if default is None else shown(default[0])
            yield f"{at}: expected the default {wanted}, got {got}"
        if not option.codes <= codes and field not in FALSE_IN_C:
            yield f"{at}: expected {shown_codes(option)}"


def c_table_complaints(known: dict[str, Option]) -> Iterator[str]:
    """The fields of C have the defaults of the fields of the core that Python's options set."""
    text, table, fields = text_of(C_CONFIG), binding(), fields_of_c()
    pairs = r"\(&mut self\.(\w+), &mut ([\w.]+)\),|default\(&mut self\.(\w+), ([^;]+)\);"
    missing = {field for field in fields if (it := known.get(in_python(field))) and it.default}
    for it in re.finditer(pairs, text):
        field, at = it[1] or it[3], f"{C_CONFIG}:{line_of(text, it.start())}"
        name = in_python(field)
        given = it[2] or re.sub(r"( as \w+|\.as_millis\(\))+$", "", it[4])
        missing.discard(field)
        if name in known and "." in given:
            path = table[name].path if name in table else "no field of the core"
            if given != path:
                yield f"{at}: {field}: expected {path}, as in {BINDING}; got {given}"
        elif re.fullmatch(r"[\w:]*[A-Z_]{2,}|\d+", given) and field not in OTHERWISE_IN_C:
            default = known[name].default if name in known else None
            stated = default_in(fields[field][0])
            default = stated[0] if stated else default
            if default is not None and value_of(given, C_CONFIG) != default:
                wanted = f"{shown(default)} of {HEADER}:{fields[field][1]}"
                yield f"{at}: {field}: expected the default {wanted}, got {given}"
    for field in missing - OTHERWISE_IN_C.keys():
        yield f"{HEADER}:{fields[field][1]}: {field}: no default in {C_CONFIG}"


def page_complaints(known: dict[str, Option]) -> Iterator[str]:
    """The table of docs/limits.md lists every limit."""
    text, fields = text_of(PAGE), fields_of_c()
    start = text.index("\n## Every limit\n")
    end = text.index("\n## ", start + 1)
    rows, codes, above = {}, {}, ""
    for row in re.compile(r"^\| (.*) \|$", re.MULTILINE).finditer(text, start, end):
        cells, at = row[1].split(" | "), f"{PAGE}:{line_of(text, row.start())}"
        if len(cells) != 4 or cells[1] == "option":
            continue
        _, option, default, past = cells
        above = past = past + above if past.startswith("the same") else past
        named = re.fullmatch(r"`(\w+)`(?:; in C `(\w+)`|, (not|only) in C)?", option)
        if named is None:
            yield from other_row_complaints(at, option, default)
            continue
        name, field, where = named[1], named[2] or named[1], named[3]
        at = f"{at}: {name}"
        rows[name] = at
        codes[name] = codes.get(name, set()) | set(CODE.findall(past))
        if (field in fields) == (where == "not"):
            yield f"{at}: {HEADER} has {'a' if field in fields else 'no'} field {field}"
        if name in known:
            given = re.match(AMOUNT, default)
            found = number(given[1], given[2]) if given else None
            if (found is None) != (default == "none") or found != known[name].default:
                wanted = f"{shown(known[name].default)} of {OPTIONS}:{known[name].line}"
                yield f"{at}: expected the default {wanted}, got {default}"
            if default == "none" and f"`{name}`" not in text[:start]:
                yield f"{at}: expected it among the options that are off, above"
        elif where == "only" and field in fields:
            stated = default_in(fields[field][0])
            if stated is None or shown(stated[0]) != default:
                yield f"{at}: expected the default of {HEADER}:{fields[field][1]}, got {default}"
        elif name != "timeout_ms":
            yield f"{at}: no option of {OPTIONS}"
    for name, option in known.items():
        if (name in rows) == (name in WITHOUT_A_ROW):
            yield f"{OPTIONS}:{option.line}: {name}: expected a row in {PAGE}"
        elif name in rows and not option.codes <= codes[name]:
            yield f"{rows[name]}: expected {shown_codes(option)}"
    for field, (_, line) in fields.items():
        is_limit = field.startswith("max_") or field.endswith("_ms")
        if is_limit and not {field, in_python(field)} & rows.keys():
            yield f"{HEADER}:{line}: {field}: expected a row in {PAGE}"


def other_row_complaints(at: str, option: str, default: str) -> Iterator[str]:
    """Limits that the server has no option for say why, or whose option it is."""
    if re.match(r"none: \w|Python's own$|attribute `", option):
        return
    named = re.fullmatch(r"`(\w+)` of (.+?)(?:, not in C)?", option)
    if named is None:
        yield f"{at}: expected an option, or `none: ` and why; got {option}"
        return
    name, owner = named[1], named[2].replace("`", "")
    if owner not in FUNCTIONS:
        return
    found = source_default(FUNCTIONS[owner], name)
    if found is None or shown(found[0]) != default:
        wanted = f"{shown(found[0])} of {found[1]}" if found else f"of {FUNCTIONS[owner]}"
        yield f"{at}: {name}: expected the default {wanted}, got {default}"


class Mention(NamedTuple):
    """A default beside the name of an option, as in "`max_nesting` (128)"."""

    at: str
    given: float
    #: The defaults that it is compared with, and their places.
    defaults: list[tuple[float | None, str]]


def mentions(known: dict[str, Option]) -> Iterator[Mention]:
    """Those of known options on all pages, and of others on the pages of `SOURCES`."""
    for path in sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"]):
        file, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        for it in re.finditer(MENTION, text, re.MULTILINE):
            name = it[1] or it[2]
            sources = (source_default(source, name) for source in SOURCES.get(file, ()))
            defaults = [default for default in sources if default]
            if not defaults and (option := known.get(name)):
                defaults = [(option.default, f"{OPTIONS}:{option.line}")]
            if not defaults and file not in SOURCES:
                continue
            at = f"{file}:{line_of(text, it.start())}: {name}"
            yield Mention(at, number(it[3], it[4]), defaults)


def mention_complaints(known: dict[str, Option]) -> Iterator[str]:
    compared = 0
    for at, given, defaults in mentions(known):
        compared += len(defaults)
        if not defaults:
            yield f"{at}: no option of {' or '.join(SOURCES[at.partition(':')[0]])}"
        for default, where in defaults:
            if given != default:
                yield f"{at}: expected the default {shown(default)} of {where}, got {shown(given)}"
    if compared < MENTIONS_MIN:
        yield f"docs:1: expected {MENTIONS_MIN} defaults beside names of options, got {compared}"


def store_complaints(known: dict[str, Option]) -> Iterator[str]:
    """The defaults of a store's limits in Rust, in the header and on their page."""
    for name in ("max_bytes", "max_value_bytes", "max_watch_bytes"):
        default, where = source_default(STORE_OPTIONS, name) or (None, STORE_OPTIONS)
        wanted = f"{shown(default)} of {where}"
        places = {
            STORE: rf"\b{name.removeprefix('max_')}_max: (\w+ << \w+),",
            HEADER: rf"size_t {name};\s*/\*[^;]*; {AMOUNT}",
            STORE_PAGE: rf"`{name}`[^()|]*\({AMOUNT}\)",
        }
        for file, pattern in places.items():
            found = re.search(pattern, text := text_of(file))
            if found is None:
                yield f"{file}:1: {name}: expected the default {wanted}"
                continue
            given = value_of(found[1], file) if file == STORE else number(*found.groups())
            if given != default:
                at = f"{file}:{line_of(text, found.start())}: {name}"
                yield f"{at}: expected the default {wanted}, got {shown(given)}"


def main() -> None:
    known = options()
    checks = (
        core_complaints,
        c_complaints,
        c_table_complaints,
        page_complaints,
        mention_complaints,
        store_complaints,
    )
    complaints = [it for check in checks for it in check(known)]
    if complaints:
        sys.exit("\n".join(complaints))
    compared = sum(len(it.defaults) for it in mentions(known))
    print(f"options: {len(known)} limits, {compared} defaults beside their names on pages")


main()
