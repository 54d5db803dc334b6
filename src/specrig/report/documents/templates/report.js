"use strict";
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

// Tables: a click on a column's title sorts each group of rows; a field above tables of fifteen rows and more hides the rows without its words.
const number = (text) => { const found = text.replace(/,(?=\d{3})/g, "").match(/^(?:< )?([-−]?\d[\d.]*(?:e[-+]?\d+)?)/); return found ? parseFloat(found[1]) : NaN; };
const compare = (a, b) => {
  const [x, y] = [number(a), number(b)];
  return Number.isNaN(x) && Number.isNaN(y) ? a.localeCompare(b) : Number.isNaN(x) ? 1 : Number.isNaN(y) ? -1 : x - y;
};
function sortBy(title, column) {
  const down = title.getAttribute("aria-sort") === "ascending";
  all("th", title.parentNode).forEach((other) => other.removeAttribute("aria-sort"));
  title.setAttribute("aria-sort", down ? "descending" : "ascending");
  for (const body of title.closest("table").tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
    const text = (row) => row.cells[column].textContent.trim();
    rows.sort((a, b) => (text(a) === "–") - (text(b) === "–") || (down ? -1 : 1) * compare(text(a), text(b)));
    body.append(...rows);
  }
}
for (const table of all("table")) {
  const rows = all("tbody tr:not(.group)", table);
  if (!table.tHead || rows.length < 2) continue;
  if (!table.closest(".first")) all("th", table.tHead).forEach((title, column) => {
    const button = document.createElement("button");
    button.append(...title.childNodes);
    button.addEventListener("click", () => sortBy(title, column));
    title.append(button);
  });
  if (rows.length < 15) continue;
  const field = Object.assign(document.createElement("input"), { type: "search", placeholder: `filter ${rows.length} rows` });
  field.setAttribute("aria-label", "words that a row must have");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const body of table.tBodies) {
      const group = body.querySelector(".group");
      const lines = [...body.rows].filter((row) => row !== group);
      for (const row of lines) {
        const text = `${group ? group.textContent : ""} ${row.textContent}`.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      body.hidden = lines.every((row) => row.hidden);
    }
  });
  table.parentNode.before(field);
}

// Figures: the point next to the pointer says its values, and a click on a legend's entry switches its series off and on.
const said = document.body.appendChild(Object.assign(document.createElement("div"), { className: "tip", hidden: true }));
const NEAR = 14; // pixels
const distance = (box, x, y) => Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom));
function wire(svg) {
  const points = all("[data-tips]", svg).flatMap((artist) => {
    const drawn = all("use", artist).length ? all("use", artist) : all("path", artist);
    return artist.dataset.tips.split("|").map((tip, place) => ({ tip, artist, shape: drawn[place] })).filter((point) => point.shape);
  });
  const tell = (event) => {
    let best = null, least = NEAR;
    for (const point of points) {
      const away = point.artist.classList.contains("off") ? NEAR : distance(point.shape.getBoundingClientRect(), event.clientX, event.clientY);
      if (away < least) [best, least] = [point, away];
    }
    said.hidden = !best;
    if (!best) return;
    said.textContent = best.tip;
    const room = document.documentElement.clientWidth - said.offsetWidth - 8;
    said.style.left = `${Math.max(8, Math.min(event.clientX + 12, room))}px`;
    said.style.top = `${event.clientY + (event.clientY > 90 ? -12 - said.offsetHeight : 20)}px`;
  };
  svg.addEventListener("pointermove", tell);
  svg.addEventListener("pointerdown", tell);
  svg.addEventListener("pointerleave", () => { said.hidden = true; });

  const series = all("[data-series]", svg), off = new Set();
  const has = (artist, name) => artist.dataset.series.split("|").includes(name);
  for (const entry of all("[data-switch]", svg)) {
    const name = entry.dataset.switch;
    if (!series.some((artist) => has(artist, name))) continue;
    const toggle = () => {
      if (!off.delete(name)) off.add(name);
      series.forEach((artist) => artist.classList.toggle("off", [...off].some((other) => has(artist, other))));
      all("[data-switch]", svg).forEach((other) => other.classList.toggle("faded", off.has(other.dataset.switch)));
      entry.setAttribute("aria-pressed", String(!off.has(name)));
    };
    entry.addEventListener("click", toggle);
    if (!entry.querySelector("text")) continue; // its line or marker: a mouse may click it, a keyboard needs it not
    for (const [key, value] of Object.entries({ role: "button", tabindex: "0", "aria-pressed": "true" })) entry.setAttribute(key, value);
    entry.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } });
  }
}
all("figure svg").forEach(wire);

// Phones: figures have a drawing of their own for a narrow window, which is unpacked when it is needed.
async function unpack(figure) {
  const bytes = Uint8Array.from(atob(figure.dataset.phone), (sign) => sign.charCodeAt(0));
  delete figure.dataset.phone;
  const text = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  figure.insertAdjacentHTML("afterbegin", await new Response(text).text());
  wire(figure.firstElementChild);
}
const narrow = matchMedia("(max-width: 640px)");
const fit = () => { if (narrow.matches) all("figure[data-phone]").forEach(unpack); };
narrow.addEventListener("change", fit);
fit();

// Contents: at the side of a wide window they are open; in a narrow one they are a menu that folds after a choice.
const menu = document.querySelector(".toc details"), wide = matchMedia("(min-width: 68rem)");
const lay = () => { menu.open = wide.matches; };
wide.addEventListener("change", lay);
menu.addEventListener("click", (event) => { if (event.target.tagName === "A") lay(); });
lay();

// A link to a folded section unfolds it, and paper shows them all.
const unfold = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", unfold);
addEventListener("beforeprint", () => all("details").forEach((section) => { section.open = true; }));
unfold();
