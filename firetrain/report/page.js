"use strict";

// dark mode: the system's setting until the button is pressed
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

// a click on a heading sorts by its column: numbers by size, texts alphabetically, dashes last
const rank = (text) => {
  const number = text.match(/^-?[\d,]*\.?\d+/);
  return number ? parseFloat(number[0].replaceAll(",", "")) : text;
};
const order = (a, b) => {
  if ((a === "-") !== (b === "-")) return a === "-" ? Infinity : -Infinity;
  const [first, second] = [rank(a), rank(b)];
  if (typeof first !== typeof second) return typeof first === "number" ? -1 : 1;
  return typeof first === "number" ? first - second : first.localeCompare(second);
};
for (const table of document.querySelectorAll("table.data")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.firstElementChild.addEventListener("click", () => {
    const descending = heading.getAttribute("aria-sort") === "ascending";
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const text = (row) => row.cells[column].textContent.trim();
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const found = order(text(a), text(b));
      return descending && Number.isFinite(found) ? -found : found;
    });
    table.tBodies[0].append(...rows);
  }));
}

const filter = document.getElementById("filter");
filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...document.getElementById("main-table").tBodies[0].rows];
  rows.forEach((row) => { row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word)); });
  document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
});

// show the values of the point nearest to the pointer below each plot
for (const figure of document.querySelectorAll("figure.plot")) {
  const marks = JSON.parse(figure.dataset.marks);
  const svg = figure.querySelector("svg"), hover = figure.querySelector(".hover");
  figure.querySelector(".canvas").addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    const x = (event.clientX - box.left) / box.width * view.width, y = (event.clientY - box.top) / box.height * view.height;
    let nearest = null, least = 40 ** 2;
    for (const [left, top, text] of marks) {
      const distance = (left - x) ** 2 + (top - y) ** 2;
      if (distance < least) [nearest, least] = [text, distance];
    }
    hover.textContent = nearest ?? "\u00a0";
  });
}
