// A list of any length: only visible rows are elements. More data are requested near the end.
import { h, replace } from "./dom.js";

const OVERSCAN = 8;

export class VirtualList {
  /** `render(row, index)` gives the elements inside a row; `href(row)` where it leads; `more()` is called near the end. */
  constructor({ label, rowHeight, render, href, more = () => {} }) {
    Object.assign(this, { rowHeight, render, href, more, rows: [], isEnd: true, focused: 0 });
    this.body = h("div", { class: "rows", role: "list", "aria-label": label });
    const on = { scroll: () => this.#draw(), keydown: (event) => this.#key(event) };
    this.element = h("div", { class: "list", on }, this.body);
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  set(rows, isEnd) {
    this.rows = rows;
    this.isEnd = isEnd;
    this.element.style.setProperty("--height", `${rows.length * this.rowHeight}px`);
    this.first = null;
    this.#draw();
  }

  #draw() {
    // Before layout the height is 0: use one that fills any screen.
    const height = this.element.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.rowHeight) - OVERSCAN);
    const last = Math.min(this.rows.length, Math.ceil((this.element.scrollTop + height) / this.rowHeight) + OVERSCAN);
    if (!this.isEnd && last + 2 * OVERSCAN >= this.rows.length) this.more();
    if (first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    const hadFocus = this.body.contains(document.activeElement);
    replace(this.body, this.rows.slice(first, last).map((row, offset) => this.#row(row, first + offset)));
    if (hadFocus) this.#focus(Math.max(first, Math.min(last - 1, this.focused)));
  }

  #row(row, index) {
    const inner = h("a", { href: this.href(row), tabindex: index === this.focused ? "0" : "-1", "data-index": index,
      on: { focus: () => { this.focused = index; } } }, this.render(row, index));
    // Most rows are no elements, so a screen reader gets the index and the count; -1 says that more may come.
    const position = { "aria-setsize": this.isEnd ? this.rows.length : -1, "aria-posinset": index + 1 };
    const vars = { "--top": `${index * this.rowHeight}px`, "--row": `${this.rowHeight}px` };
    return h("div", { class: "row", role: "listitem", ...position, vars }, inner);
  }

  #focus(index) {
    this.focused = index;
    const found = this.body.querySelector(`[data-index="${index}"]`);
    if (!found) return;
    for (const other of this.body.querySelectorAll('a[tabindex="0"]')) other.tabIndex = -1;
    found.tabIndex = 0;
    found.focus({ preventScroll: true });
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || !this.rows.length) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(this.rows.length - 1, this.focused + moves[event.key]));
    const top = index * this.rowHeight;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + this.rowHeight > this.element.scrollTop + this.element.clientHeight)
      this.element.scrollTop = top + this.rowHeight - this.element.clientHeight;
    this.focused = index;
    this.#draw();
    this.#focus(index);
  }
}
