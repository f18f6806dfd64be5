"""The site of the documentation: `make docs` builds it with Sphinx from the pages in git.

The source folder is the repository's, so that each relative link works here and where the files are
read in place.
"""

import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from sphinx import search
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

# Where `make docs` finds the package, whose docstrings are the reference.
sys.path.append(os.environ["UCALL_PACKAGES"])

from ucall.options import Options

project = "ucall"
author = "The authors of ucall"
release = metadata.version("ucall-rpc")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "ROADMAP.md",
    "SECURITY.md",
    "bench/README.md",
    "bench/NOTES.md",
    "crates/*/README.md",
    "examples/*/README.md",
]
# Folders that Sphinx must not search.
exclude_patterns = [".*", "target", "dist", "fuzz", "explorer", "python", "tests"]

html_theme = "furo"
html_title = f"ucall {release}"
html_extra_path = ["index.html"]
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "scorer.js")
html_copy_source = False
html_show_copyright = False
highlight_language = "text"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Copied without the prompt, and without the output of commands.
copybutton_prompt_text = "$ "
suppress_warnings = ["misc.highlighting_failure"]
default_role = "code"
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# One parameter a line, because a server has 80.
python_maximum_signature_line_length = 80
# `0o600` as it is written.
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "inherited-members": True}

# A list of parameters, which has no terms: screen readers need `ul` for it.
_PARAMETERS = re.compile(r"<dl>((?:\s*<dd>.*?</dd>)+\s*)</dl>", re.DOTALL)
_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
_LONG_NAME = re.compile(r'(?<=<span class="pre">)\w{16,}(?=</span>)')
# The commands to tests in pages, and folders, which only a file browser can show.
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
#: Pages for people who check, not for those who use it.
_EVIDENCE = ("docs/benchmarks", "docs/bad-input", "docs/evidence")
_FOLDER = re.compile(r"\]\((?P<path>[\w./-]+)\)")


class SearchNumbers(SearchEnglish):
    """Finds numbers, too, such as codes of errors, which Sphinx leaves out: as words."""

    js_splitter_code = r"""
var splitQuery = (query) => query.split(/[^\p{Letter}\p{Number}_]+/gu).filter((term) => term)
  .map((term) => (/^\d+$/.test(term) ? `n${term}` : term));
"""

    def split(self, input: str) -> list[str]:
        return [f"n{word}" if word.isdigit() else word for word in super().split(input)]


search.languages["en"] = SearchNumbers


def prepare_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Leaves out what tests read, and replaces a link to a folder by one to the nearest README."""
    here = Path(app.srcdir, name).parent

    def resolve(link: re.Match[str]) -> str:
        folder = here / link["path"]
        if not folder.is_dir():
            return link[0]
        while not (folder / "README.md").is_file():
            folder = folder.parent
        # The home is the page of the repository's own README.
        is_root = folder.resolve() == Path(app.srcdir)
        page = folder / ("docs/index.md" if is_root else "README.md")
        return f"]({os.path.relpath(page, here)})"

    source[0] = _FOLDER.sub(resolve, _COMMENT.sub("", source[0]))


def add_accessibility(
    app: Sphinx, name: str, template: str, context: dict[str, Any], page: object
) -> None:
    """Lets the keyboard scroll code and tables, and gives the captions of the menu their level."""
    body = context.get("body", "").replace("<pre", '<pre tabindex="0"')
    body = _PARAMETERS.sub(_list_parameters, body)
    body = _TABLE.sub(_break_names, body)
    context["body"] = body.replace('<table class="docutils', '<table tabindex="0" class="docutils')
    menu = context["furo_navigation_tree"]
    level = 'role="heading" aria-level="2"'
    context["furo_navigation_tree"] = menu.replace('role="heading"', level)


def _list_parameters(found: re.Match[str]) -> str:
    items = found[1].replace("<dd>", "<li>").replace("</dd>", "</li>")
    return f'<ul class="parameters">{items}</ul>'


def _break_names(table: re.Match[str]) -> str:
    """Long names leave room for the other columns."""
    return _LONG_NAME.sub(lambda name: name[0].replace("_", "_<wbr>"), table[0])


def show_options(
    app: Sphinx,
    what: str,
    name: str,
    item: Any,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """The options of a class with their types and defaults, in place of its ``**given``."""
    if signature and isinstance(item, type) and issubclass(item, Options):
        fields = [_option(item, field) for field in item.names()]
        signature = f"(*, {', '.join(fields)})"
    # What the server refuses, with the option's new name.
    return signature and signature.replace(", **others: Never", ""), returned


def _option(group: type[Options], name: str) -> str:
    option = f"{name}: {group.__annotations__[name]}"
    if name in group.required():
        return option
    value = group._defaults[name]
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return f"{option} = {value:_}" if is_int else f"{option} = {value!r}"


def name_landmarks(app: Sphinx, failure: Exception | None) -> None:
    """Names the two menus of each page, which the theme leaves without one."""
    for path in () if failure else Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        named = text.replace('<aside class="sidebar', '<aside aria-label="Pages" class="sidebar')
        named = named.replace('<aside class="toc', '<aside aria-label="On this page" class="toc')
        if named != text:
            path.write_text(named, encoding="utf-8")


def write_texts(app: Sphinx, failure: Exception | None) -> None:
    """Writes each page as Markdown beside its HTML, and for language models a list of them and all
    of them in one file: ``llms.txt`` and ``llms-full.txt`` (https://llmstxt.org)."""
    if failure:
        return
    pages = ["# ucall\n\n> Typed Python and C functions as a network service.\n"]
    texts = []
    for name in sorted(app.env.found_docs):
        text = _COMMENT.sub("", Path(app.srcdir, f"{name}.md").read_text(encoding="utf-8"))
        target = Path(app.outdir, f"{name}.md")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        if not name.startswith("docs/") or name.startswith(_EVIDENCE):
            continue
        title, _, rest = text.strip().removeprefix("# ").partition("\n")
        first = " ".join(rest.strip().partition("\n\n")[0].split())
        pages.append(f"- [{title}]({name}.md): {first}")
        texts.append(f"<!-- {name}.md -->\n{text}")
    Path(app.outdir, "llms.txt").write_text("\n".join(pages) + "\n", encoding="utf-8")
    Path(app.outdir, "llms-full.txt").write_text("\n".join(texts), encoding="utf-8")


def setup(app: Sphinx) -> None:
    # After the theme, which makes the menu.
    app.connect("html-page-context", add_accessibility, priority=900)
    app.connect("source-read", prepare_page)
    app.connect("autodoc-process-signature", show_options)
    app.connect("build-finished", name_landmarks)
    app.connect("build-finished", write_texts)
