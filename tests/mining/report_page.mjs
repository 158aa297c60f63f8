// Runs the script of a report page without a browser: `node report_page.mjs PAGE KEYS` presses keys, and prints the
// precision curve of the labels as JSON.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const [, , file, keys] = process.argv;
const page = readFileSync(file, "utf-8");
const data = page.split('id="data">')[1].split("</script>")[0];
const script = page.split("<script>")[1].split("</script>")[0];

class Element {
  constructor(name) {
    Object.assign(this, { tagName: name.toUpperCase(), children: [], dataset: {}, value: "", hidden: false, handlers: {} });
  }
  append(...children) {
    for (const child of children) {
      this.children = this.children.filter((old) => old !== child);
      this.children.push(child);
    }
  }
  replaceChildren() { this.children = []; }
  setAttribute() {}
  querySelector(name) {
    for (const child of this.children.filter((child) => child instanceof Element)) {
      if (child.tagName === name.toUpperCase()) return child;
      const inner = child.querySelector(name);
      if (inner) return inner;
    }
    return undefined;
  }
  addEventListener(kind, handler) { this.handlers[kind] = handler; }
  get valueAsNumber() { return this.value === "" ? NaN : Number(this.value); }
  focus() { this.handlers.focus?.(); }
  click() {}
}

const elements = {};
const document = {
  title: "",
  handlers: {},
  createElement: (name) => new Element(name),
  createElementNS: (namespace, name) => new Element(name),
  getElementById: (id) => (elements[id] ??= new Element(id === "data" ? "script" : "div")),
  addEventListener: (kind, handler) => (document.handlers[kind] = handler),
};
document.getElementById("data").textContent = data;
document.getElementById("which").value = "all";
document.getElementById("order").value = "bands";
document.getElementById("width").value = "5";

let saved = "";
class Blob {
  constructor(parts) { saved = parts.join(""); }
}
const localStorage = { getItem: () => null, setItem() {} };
const URL = { createObjectURL: () => "", revokeObjectURL() {} };
const context = vm.createContext({ document, localStorage, Blob, URL, console });
vm.runInContext(script, context);

const body = new Element("body");
for (const key of JSON.parse(keys)) document.handlers.keydown({ key, target: body, preventDefault() {} });
const points = vm.runInContext("report.grid.threshold.map((value, point) => estimateAt(point))", context);
elements.save.handlers.click();
const column = (name) => points.map((point) => point && point[name]);
console.log(JSON.stringify({
  precision: column("precision"),
  low: column("low"),
  high: column("high"),
  live: elements.live.textContent,
  saved,
}));
