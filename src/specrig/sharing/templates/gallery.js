"use strict";
// What is chosen stands in the address, so that a choice can be sent to somebody.
const form = document.querySelector("form"), rows = [...document.querySelectorAll("tbody tr")];
const fields = [...form.elements];
const columns = new Map(["machine", "model", "engine"].map((name, place) => [name, place]));
const fits = (row, { name, value }) => {
  if (name !== "method") return !value || row.cells[columns.get(name)].textContent === value;
  return value === "*" || (value ? row.dataset.method === value : "best" in row.dataset);
};
function show() {
  for (const row of rows) row.hidden = !fields.every((field) => fits(row, field));
  const shown = rows.filter((row) => !row.hidden).length;
  document.querySelector("[role=status]").textContent = shown ? `${shown} of ${rows.length} rows` : "No published study fits.";
}
for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (form.elements[name]) form.elements[name].value = value;
form.addEventListener("change", () => {
  history.replaceState(null, "", `#${new URLSearchParams(fields.filter((field) => field.value).map((field) => [field.name, field.value]))}`);
  show();
});
form.hidden = false;
show();
