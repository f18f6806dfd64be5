// How pages rank in the search of the site. The values beside `score` are those of Sphinx, but for
// objNameMatch and objPartialMatch: a guide comes before the names of its subject.
var Scorer = {
  // Pages of the words' name first, then the page of errors, then guides, which come before what is
  // for contributors.
  score: ([page, title, anchor, description, score]) => {
    const words = (new URLSearchParams(location.search).get("q") || "").toLowerCase().split(/\s+/);
    const stems = words.map((word) => word.replace(/(ing|es|s)$/, "")).filter((it) => it.length > 2);
    if (!description && stems.some((stem) => title.toLowerCase().includes(stem))) score += 3;
    if (page === "docs/errors") return score + 3;
    if (/^docs\/(limits|security|troubleshooting)$/.test(page)) return score + 2;
    if (/^[A-Z]|^(bench|crates|examples)\/|^docs\/(bad-input|benchmarks|coming-from)/.test(page)) {
      return score - 4;
    }
    return score;
  },
  objNameMatch: 8,
  objPartialMatch: 3,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
