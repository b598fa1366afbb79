// Theme, sortable scores, and the start of everything.

function theme() {
  const button = $("theme");
  const wish = matchMedia("(prefers-color-scheme: dark)");
  let dark = wish.matches;
  const label = () => {
    button.textContent = dark ? "Light theme" : "Dark theme";
    button.setAttribute("aria-pressed", String(dark));
  };
  button.addEventListener("click", () => {
    dark = !dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    label();
  });
  wish.addEventListener("change", () => {
    if (document.documentElement.dataset.theme) return;
    dark = wish.matches;
    label();
  });
  label();
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.value === undefined) return cell.textContent;
    return cell.dataset.value === "" ? Infinity : Number(cell.dataset.value);
  };
  heads.forEach((head, column) => {
    const button = node("button", head.textContent, { type: "button" });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].sort((one, two) => {
        const [a, b] = [key(one, column), key(two, column)];
        const order = typeof a === "string" ? a.localeCompare(b) : a - b;
        return up ? order : -order;
      });
      body.replaceChildren(...rows);
    });
  });
}

document.querySelectorAll(".static").forEach((part) => part.remove());
document.querySelectorAll(".live").forEach((part) => { part.hidden = false; });
theme();
document.querySelectorAll("table.sortable").forEach(sortable);
retentionMap(payload.retention);
if (payload.example !== null) fields(payload.example, payload.scales);
