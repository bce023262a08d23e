// Makes elements. Text is always a text node, so that no name becomes HTML.

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return filled(node, attributes, children);
}

function button(text, act, attributes) {
  const node = el("button", { type: "button", ...attributes }, text);
  node.addEventListener("click", act);
  return node;
}

// A labelled choice among [value, text].
function choice(label, options, chosen, act) {
  const node = el(
    "select",
    {},
    options.map(([value, text]) => el("option", { value }, text)),
  );
  node.value = chosen;
  node.addEventListener("change", () => act(node.value));
  return el("label", {}, `${label} `, node);
}

// `columns` are [title, class]; a cell is a text or a node.
function table(columns, rows, label) {
  const cell = (tag) => (text, at) =>
    el(tag, { class: columns[at][1] || null, scope: tag === "th" ? "col" : null }, text ?? "-");
  const head = el("tr", {}, columns.map(([title], at) => cell("th")(title, at)));
  const body = rows.map((row) => el("tr", {}, row.map(cell("td"))));
  const all = el("table", { "aria-label": label }, el("thead", {}, head), el("tbody", {}, body));
  // A wide table scrolls by itself, also with the arrow keys.
  return el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": label }, all);
}

// A table that shows some rows, and more on request. `row` makes the cells of an item.
const ROWS_STEP = 50;
function longTable(columns, items, row, label) {
  const place = el("div", {});
  const show = (shown) => {
    const parts = [table(columns, items.slice(0, shown).map(row), label)];
    if (items.length > shown) {
      const left = `${counted(shown, "row")} of ${items.length.toLocaleString("en")}. `;
      const more = button(`Show ${ROWS_STEP} more`, () => {
        show(shown + ROWS_STEP);
        place.querySelector("button")?.focus();
      });
      parts.push(el("p", {}, left, more));
    }
    place.replaceChildren(...parts);
  };
  show(ROWS_STEP);
  return place;
}

function bar(share) {
  const inner = el("i", {});
  inner.style.width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
  return el("span", { class: "bar", "aria-hidden": "true" }, inner);
}

function key(entries) {
  const one = ([name, colour]) => el("li", { class: `c${colour}` }, el("i", {}), name);
  return el("ul", { class: "key" }, entries.map(one));
}

function byId(id) {
  return document.getElementById(id);
}

function tell(text) {
  byId("tip").textContent = text;
}

