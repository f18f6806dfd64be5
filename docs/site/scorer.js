// How pages rank in the search of the site. The values beside `score` are those of Sphinx.
var Scorer = {
  // The page of errors first among guides, which come before what is for contributors.
  score: ([page, title, anchor, description, score]) => {
    if (page === "docs/errors") return score + 3;
    if (/^docs\/(limits|security|troubleshooting)$/.test(page)) return score + 2;
    if (/^[A-Z]|^(bench|crates|examples)\/|^docs\/(bad-input|benchmarks|coming-from)/.test(page)) {
      return score - 4;
    }
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
