// Ranks the results of the site's search: pages for users before pages for contributors, and a guide
// before a reference page that matches as well. Sphinx inserts this file before its searchtools.js.
const USERS = /^(README|SECURITY|docs\/(guarantees|glossary|(tutorial|how-to|reference|examples)\/.*))$/;
const GUIDES = /^(README|docs\/(tutorial|how-to)\/.*)$/;

var Scorer = {
  score: ([page, _title, _anchor, _description, score]) =>
    score + (USERS.test(page) ? 100 : 0) + (GUIDES.test(page) ? 6 : 0),

  // Sphinx requires the other values; these are its defaults.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
