// Creates and updates elements without parsing markup.

/** Creates an element with children; `class` and `text` are special, the rest are attributes. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** Changes a text only if it differs, so that a selection is kept. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets a value and its text: `<data value="…">…</data>`. */
export function setData(node, value, text) {
  const raw = value === null || value === undefined ? "" : String(value);
  if (node.getAttribute("value") !== raw) node.setAttribute("value", raw);
  setText(node, text);
  node.classList.toggle("unknown", raw === "");
}

/** Adjusts the number of children of `parent` to `length`; `make` creates new ones. */
export function resize(parent, length, make) {
  while (parent.children.length > length) parent.lastElementChild.remove();
  while (parent.children.length < length) parent.append(make());
}

/**
 * A table whose rows are updated cell by cell. On a narrow screen the style sheet displays rows as
 * cards, which removes the implicit roles of the elements, so the roles are explicit.
 */
export class Table {
  #body;
  #columns;
  #empty;

  /** `columns`: [{title, numeric}]; `empty`: the text shown if there are no rows. */
  constructor(caption, columns, empty) {
    this.#columns = columns;
    const heads = columns.map((column) =>
      element("th", {
        role: "columnheader",
        scope: "col",
        class: column.numeric ? "number" : null,
        text: column.title,
      }),
    );
    this.#body = element("tbody", { role: "rowgroup" });
    this.#empty = element("p", { class: "empty", text: empty });
    this.table = element(
      "table",
      { role: "table" },
      element("caption", { class: "hidden", text: caption }),
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)),
      this.#body,
    );
    this.root = element("div", { class: "table" }, this.table, this.#empty);
  }

  /** `rows`: arrays of cells, each {text, value, class, choose} or a string. */
  show(rows) {
    this.table.hidden = rows.length === 0;
    this.#empty.hidden = rows.length > 0;
    resize(this.#body, rows.length, () => this.#row());
    rows.forEach((cells, place) => {
      const row = this.#body.children[place];
      cells.forEach((cell, column) => fill(row.children[column].firstElementChild, cell));
    });
  }

  #row() {
    const cells = this.#columns.map((column, place) => {
      const attributes = { class: column.numeric ? "number" : null, "data-title": column.title };
      const content = column.button
        ? element("button", { type: "button", class: "choose" })
        : element("data", {});
      return place === 0
        ? element("th", { role: "rowheader", scope: "row", ...attributes }, content)
        : element("td", { role: "cell", ...attributes }, content);
    });
    return element("tr", { role: "row" }, ...cells);
  }
}

function fill(content, cell) {
  const {
    text,
    value = null,
    tone = "",
    choose = null,
  } = typeof cell === "string" ? { text: cell } : cell;
  if (content.tagName === "BUTTON") {
    setText(content, text);
    content.onclick = choose;
    return;
  }
  setData(content, value ?? text, text);
  if (content.dataset.tone !== tone) content.dataset.tone = tone;
}
