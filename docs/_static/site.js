/* Long code in tables that may break, tables that sort by a click, and the filter of the page of
   keys. Nothing is loaded. */
document.addEventListener("DOMContentLoaded", () => {
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = parseFloat(text);
    return Number.isNaN(number) ? text.toLowerCase() : number;
  };
  const compared = (a, b) => {
    if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
    return typeof a === "number" ? -1 : 1;
  };
  for (const code of document.querySelectorAll("article td code .pre")) {
    const pieces = code.textContent.split(/(?<=[(,./=_])(?=\w)/);
    if (code.textContent.length < 20 || pieces.length < 2) continue;
    code.style.whiteSpace = "normal";
    const broken = pieces.flatMap((piece) => [document.createElement("wbr"), piece]);
    code.replaceChildren(...broken.slice(1));
  }
  for (const table of document.querySelectorAll("article table")) {
    if (!table.tHead || table.tBodies[0].rows.length < 5) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.classList.add("sorts");
      head.tabIndex = 0;
      const sort = () => {
        const ascending = head.ariaSort === "descending";
        const rows = [...table.tBodies[0].rows];
        rows.sort((one, other) => {
          const [a, b] = [value(one, column), value(other, column)];
          /* Empty cells stay below. */
          if (a === "" || b === "") return (a === "") - (b === "");
          return ascending ? compared(a, b) : compared(b, a);
        });
        for (const cell of table.tHead.rows[0].cells) cell.ariaSort = null;
        head.ariaSort = ascending ? "ascending" : "descending";
        table.tBodies[0].append(...rows);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
    });
  }
  const filter = document.querySelector("input.key-filter");
  filter?.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const section of document.querySelectorAll("article section section")) {
      let shown = 0;
      for (const row of section.querySelectorAll("tbody tr")) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      section.hidden = !shown;
    }
  });
});
