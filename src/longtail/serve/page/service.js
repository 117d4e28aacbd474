// Requests to the service. If it needs an API key, the user is prompted once; the key is kept for this tab.

let key = sessionStorage.getItem("longtail-key") ?? "";
let keyPrompt = null;

export class HttpError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function promptForKey() {
  keyPrompt ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    const form = document.getElementById("key-form");
    const field = document.getElementById("key");
    const close = (value) => {
      dialog.onclose = null;
      dialog.close();
      field.value = "";
      keyPrompt = null;
      resolve(value);
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      close(field.value.trim());
    };
    document.getElementById("key-cancel").onclick = () => close("");
    dialog.onclose = () => close("");
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

// Make an element. Texts go in as text nodes only: nothing from a label or a query is ever read as HTML.
export function make(tag, { text, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

export function mark(label) {
  if (label.frequency === 0) return make("span", { class: "mark new", text: "new", title: "no training points" });
  if (!label.bin) return make("span");
  return make("span", { class: `mark ${label.bin}`, text: label.bin, title: `training points: ${label.frequency}` });
}

export function rounded(score) {
  return typeof score === "number" ? score.toFixed(Math.abs(score) < 10 ? 3 : 1) : "";
}
