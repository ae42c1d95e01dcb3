// The playground: asks /v1/messages like any client, with the trace of every token in the stream.
import { Pane } from "./pane.js";

const $ = (id) => document.getElementById(id);
const CHOICES = {
  domain: ["general", "legal", "medical", "finance", "tech", "creative"],
  confidence: ["high", "medium", "low"],
  tolerance: ["balanced", "strict", "lenient"],
  fallback: ["none", "transparent", "conservative"],
};
const profiles = new Map();
let conversation = [];
let running = null;

function fill(select, values, labels = values) {
  select.replaceChildren(...values.map((value, i) => new Option(labels[i], value)));
}

function headers() {
  const key = $("key").value || sessionStorage.getItem("surefoot-key") || "";
  return { "content-type": "application/json", ...(key ? { "x-api-key": key } : {}) };
}

async function call(path, options = {}) {
  const response = await fetch(path, { headers: headers(), ...options });
  if (response.status === 401) {
    $("key_label").hidden = false;
    $("key").focus();
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error?.message ?? `the server said ${response.status}`);
  }
  return response;
}

async function connect() {
  const ready = await (await call("ready")).json();
  $("about").textContent = `${ready.model}${ready.steady ? "" : " (switched off)"}`;
  const loaded = (await (await call("v1/profiles")).json()).profiles;
  for (const { name } of loaded) {
    profiles.set(name, await (await call(`v1/profiles/${encodeURIComponent(name)}`)).json());
  }
  const names = [...profiles.keys()];
  fill($("profile"), ["", ...names], ["of the domain", ...names]);
  fill($("beside"), ["", ...names], ["nothing", ...names]);
}

function instruction() {
  return Object.fromEntries(Object.keys(CHOICES).map((key) => [key, $(key).value]));
}

function showLine() {
  $("line").value = "SSP:" + Object.entries(instruction()).map((pair) => pair.join("=")).join(";");
}

function say(role, text) {
  const p = document.createElement("p");
  p.className = role;
  p.textContent = text;
  $("chat").append(p);
  return p;
}

// Server-Sent Events of a response: [name, data].
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const lines = text.slice(0, end).split("\n");
      const name = lines.find((l) => l.startsWith("event: "))?.slice(7);
      const data = lines.filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).join("\n");
      if (data) yield [name, JSON.parse(data)];
    }
  }
}

async function answer(messages, profile, pane, signal, onText) {
  const wishes = { ...instruction(), trace: true, seed: Number($("seed").value) };
  if (profile) wishes.profile = profile;
  const body = {
    model: "any", messages, stream: true, surefoot: wishes,
    max_tokens: Number($("max_tokens").value), temperature: Number($("temperature").value),
  };
  const response = await call("v1/messages", { method: "POST", body: JSON.stringify(body), signal });
  let text = "";
  for await (const [name, data] of events(response)) {
    if (name === "content_block_delta") {
      text += data.delta.text;
      onText(text);
      pane.add(data.surefoot?.tokens ?? [], data.delta.text);
    } else if (name === "surefoot") {
      pane.end(data.surefoot);
    } else if (name === "error") {
      throw new Error(data.error.message);
    }
  }
  return text;
}

async function ask(event) {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  $("problem").textContent = "";
  $("send").disabled = true;
  $("stop").disabled = false;
  const prompt = $("prompt").value;
  const asked = [...conversation, { role: "user", content: prompt }];
  say("user", prompt);
  const shown = say("assistant", "…");
  const chosen = [$("profile").value, ...($("beside").value ? [$("beside").value] : [])];
  const panes = chosen.map((name) => new Pane($("pane"), name || `profile of '${$("domain").value}'`, $("details")));
  $("panes").replaceChildren(...panes.map((pane) => pane.element));
  try {
    const texts = await Promise.all(chosen.map((name, i) => {
      panes[i].limits(profiles);
      return answer(asked, name, panes[i], running.signal, (text) => { if (i === 0) shown.textContent = text; });
    }));
    conversation = texts[0] ? [...asked, { role: "assistant", content: texts[0] }] : asked.slice(0, -1);
  } catch (error) {
    if (error.name !== "AbortError") $("problem").textContent = error.message;
    else shown.textContent += " [stopped]";
  } finally {
    running.abort();
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
  }
}

for (const [key, values] of Object.entries(CHOICES)) {
  fill($(key), values);
  $(key).addEventListener("change", showLine);
}
showLine();
$("ask").addEventListener("submit", ask);
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  conversation = [];
  $("chat").replaceChildren();
  $("panes").replaceChildren();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});
$("key").addEventListener("change", () => {
  sessionStorage.setItem("surefoot-key", $("key").value);
  start();
});

function start() {
  connect().then(() => { $("problem").textContent = ""; }, (error) => { $("problem").textContent = error.message; });
}
start();
