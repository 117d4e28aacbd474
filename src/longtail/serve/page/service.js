// Requests to the service, and elements. If it needs an API key, the user is prompted once; the key is kept for this tab.

let key = sessionStorage.getItem("longtail-key") ?? "";
let keyPrompt = null;

export class HttpError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function hasKey() {
  return key !== "";
}

function promptForKey() {
  keyPrompt ??= new Promise((resolve) => {
    const field = make("input", { id: "key", type: "password", autocomplete: "off", required: "" });
    const form = make("form", { id: "key-form" },
      make("h2", { id: "key-title", text: "API key" }),
      make("p", { class: "hint", text: "This service asks for a key. It stays in this tab." }),
      make("label", { class: "hidden", for: "key", text: "API key" }),
      field,
      make("div", { class: "row" },
        make("button", { type: "submit", class: "strong", text: "Use it" }),
        button("Not now", () => close(""), { id: "key-cancel" })));
    const dialog = make("dialog", { id: "key-dialog", "aria-labelledby": "key-title" }, form);
    const close = (value) => {
      dialog.onclose = null;
      dialog.close();
      dialog.remove();
      keyPrompt = null;
      resolve(value);
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      close(field.value.trim());
    };
    dialog.onclose = () => close("");
    document.body.append(dialog);
    dialog.showModal();
  });
  return keyPrompt;
}

export async function ask(path, { body, signal, method } = {}) {
  const sentKey = key;
  const headers = sentKey ? { Authorization: `Bearer ${sentKey}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) {
    const entered = key === sentKey ? await promptForKey() : key; // another request may have set a key meanwhile
    if (!entered) throw new HttpError(401, answer.detail);
    key = entered;
    sessionStorage.setItem("longtail-key", key);
    return ask(path, { body, signal, method });
  }
  if (!response.ok) throw new HttpError(response.status, answer.detail ?? `status ${response.status}`);
  return answer;
}

function filled(element, { text, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

// Make an element. Texts go in as text nodes only: nothing from a label or a query is ever read as HTML.
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export function button(text, work, attributes = {}) {
  const element = make("button", { type: "button", text, ...attributes });
  element.addEventListener("click", () => work(element));
  return element;
}

export function say(place, text, wrong = false) {
  place.textContent = text;
  place.classList.toggle("wrong", wrong);
}

export function rounded(score) {
  return typeof score === "number" ? score.toFixed(Math.abs(score) < 10 ? 3 : 1) : "";
}

export function percent(share) {
  if (share > 0.99) return "> 99 %";
  return share < 0.01 ? "< 1 %" : `${Math.round(100 * share)} %`;
}

export function counted(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

// Copy a text; pages that came without TLS from another machine have no clipboard of their own.
export async function copy(text, element) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    element.focus();
  }
  const before = element.dataset.text ?? element.textContent;
  element.dataset.text = before;
  element.textContent = "Copied";
  setTimeout(() => (element.textContent = before), 1500);
}
