// Adds to the pages what needs a script: every part is readable without it.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  closeTipsOnEscape();
  document.querySelectorAll(".recorded-run").forEach(countLooks);
  document.querySelectorAll(".follow-the-tensor").forEach(stepThrough);
  rememberFinishedLessons();
});

function closeTipsOnEscape() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") document.querySelectorAll(".tip").forEach((tip) => tip.classList.add("closed"));
  });
  document.querySelectorAll(".tip").forEach((tip) => {
    for (const kind of ["mouseleave", "focusout"]) tip.addEventListener(kind, () => tip.classList.remove("closed"));
  });
}

// How many measurements were opened before a cause was chosen: fewer is better, and nobody keeps the number.
function countLooks(run) {
  run.classList.add("scripted");
  const looks = run.querySelectorAll(".recorded-looks details");
  const seen = new Set();
  const note = document.createElement("p");
  note.setAttribute("role", "status");
  run.append(note);
  const tell = () => {
    const chosen = run.querySelector("input:checked");
    note.textContent = chosen ? `You looked at ${seen.size} of ${looks.length} measurements.` : "";
  };
  looks.forEach((look) => look.addEventListener("toggle", () => { if (look.open) seen.add(look); }));
  run.querySelectorAll("input").forEach((input) => input.addEventListener("change", tell));
}

// Show the rows one by one, as the tensor goes through the modules.
function stepThrough(table) {
  const rows = [...table.querySelectorAll("tbody tr")];
  let shown = rows.length;
  const steps = document.createElement("p");
  steps.className = "steps";
  const button = (text, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", () => { shown = act(shown); show(); });
    steps.append(made);
  };
  const show = () => rows.forEach((row, i) => row.classList.toggle("ahead", i >= shown));
  button("From the start", () => 1);
  button("One step", (n) => Math.min(n + 1, rows.length));
  button("All", () => rows.length);
  table.prepend(steps);
}

// A tick for each finished lesson, in this browser and nowhere else.
function rememberFinishedLessons() {
  const name = (address) => (address.match(/lessons\/([\w-]+)\.html/) || [])[1];
  const key = (lesson) => `rerail.finished.${lesson}`;
  let storage;
  try {
    storage = window.localStorage;
    storage.length;
  } catch {
    return; // a browser that keeps nothing: then without
  }
  const mark = () =>
    document.querySelectorAll(".bd-sidebar-primary a.internal").forEach((link) => {
      const lesson = name(link.href);
      const done = lesson && storage.getItem(key(lesson));
      const tick = link.querySelector(".tick");
      if (done && !tick) link.insertAdjacentHTML("beforeend", ' <span class="tick">(finished)</span>');
      if (!done && tick) tick.remove();
    });
  const here = name(window.location.href);
  const article = document.querySelector("article.bd-article");
  if (here && article) {
    const box = document.createElement("p");
    box.className = "finished";
    box.innerHTML = '<label><input type="checkbox"> I have finished this lesson (remembered in this browser only)</label>';
    const input = box.querySelector("input");
    input.checked = storage.getItem(key(here)) !== null;
    input.addEventListener("change", () => {
      if (input.checked) storage.setItem(key(here), "yes");
      else storage.removeItem(key(here));
      mark();
    });
    article.append(box);
  }
  mark();
}
