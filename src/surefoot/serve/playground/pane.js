// One answer, token by token: colours, the state machine, the timeline, a summary.
const SVG = "http://www.w3.org/2000/svg";
const LINES = [
  ["kurtosis", "K", "--k"],
  ["entropy", "entropy, nats", "--h"],
  ["determinacy", "determinacy", "--d"],
];
const WIDTH = 400, HEIGHT = 60;

const number = (x, digits = 3) => (x === null || x === undefined ? "–" : Number(x).toPrecision(digits));

export class Pane {
  constructor(template, title, details) {
    this.element = template.content.firstElementChild.cloneNode(true);
    this.element.querySelector("h2").textContent = title;
    this.tokens = [];
    this.at = -1;
    this.thresholds = [];
    this.details = details;
    this.box = this.element.querySelector(".tokens");
    this.box.addEventListener("keydown", (event) => this.move(event));
    this.box.addEventListener("focus", () => { if (this.at < 0 && this.tokens.length) this.point(0); });
  }

  // Limits of the profile that is named, as lines in the timeline. The name is known for sure only in the end.
  limits(profiles, name = this.element.querySelector("h2").textContent) {
    this.profiles = profiles;
    const profile = profiles.get(name);
    this.thresholds = profile ? [profile.low?.threshold, profile.high?.threshold].filter((x) => x != null) : [];
  }

  add(tokens, text) {
    if (!tokens.length && text) this.box.append(text); // the safe response comes from no token
    for (const token of tokens) {
      const span = document.createElement("span");
      span.className = "token";
      span.dataset.state = token.state;
      span.setAttribute("role", "option");
      span.textContent = token.text;
      const index = this.tokens.push(token) - 1;
      span.addEventListener("pointerenter", () => this.point(index));
      span.addEventListener("click", () => this.point(index));
      this.box.append(span);
      this.light(token.state);
    }
    this.draw();
  }

  light(state) {
    for (const item of this.element.querySelectorAll(".machine li")) {
      item.classList.toggle("lit", item.dataset.state === state);
    }
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !this.tokens.length) return;
    event.preventDefault();
    this.point(Math.max(0, Math.min(this.tokens.length - 1, this.at + step)));
  }

  point(index) {
    const spans = this.box.querySelectorAll(".token");
    spans[this.at]?.classList.remove("here");
    this.at = index;
    spans[index].classList.add("here");
    const token = this.tokens[index];
    this.light(token.state);
    const list = document.createElement("dl");
    const entries = {
      token: JSON.stringify(token.text), state: token.state, K: number(token.kurtosis),
      entropy: `${number(token.entropy)} nats`, determinacy: number(token.determinacy),
      temperature: number(token.temperature, 2), "top-p": number(token.top_p, 2),
      reason: token.reason || "nothing out of the ordinary",
    };
    for (const [name, value] of Object.entries(entries)) {
      const group = document.createElement("div");
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = value;
      group.append(dt, dd);
      list.append(group);
    }
    this.details.replaceChildren(list);
  }

  draw() {
    const timeline = this.element.querySelector(".timeline");
    timeline.replaceChildren(...LINES.map(([field, label, colour]) => {
      const values = this.tokens.map((t) => t[field]);
      const limits = field === "determinacy" ? this.thresholds : [];
      return chart(values, limits, label, colour);
    }));
  }

  end(report) {
    if (report.profile) {
      this.limits(this.profiles, report.profile.name);
      this.element.querySelector("h2").textContent = `${report.profile.name}, version ${report.profile.version}`;
    }
    this.draw();
    const states = Object.entries(report.states).filter(([, n]) => n).map(([s, n]) => `${s} ${n}`).join(", ");
    const entries = {
      mode: report.failure ? `${report.mode}: ${report.failure}` : report.mode, states,
      overrides: `${report.overrides.decided} decided, ${report.overrides.applied} applied`,
      "ended by": report.ended_by, arm: report.arm, trace: report.trace_id,
    };
    if (report.abstained) entries.abstained = report.reason;
    if (report.uncertain) entries.uncertain = report.uncertain.map((s) => JSON.stringify(s.text)).join(", ") || "nothing";
    this.element.querySelector(".summary").replaceChildren(...Object.entries(entries).flatMap(([name, value]) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = value;
      return [dt, dd];
    }));
  }
}

function chart(values, limits, label, colour) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const known = values.filter((x) => x !== null);
  const all = [...known, ...limits];
  const low = Math.min(...all), high = Math.max(...all);
  const x = (i) => (values.length > 1 ? (i / (values.length - 1)) * WIDTH : 0);
  const y = (v) => HEIGHT - 4 - ((v - low) / (high - low || 1)) * (HEIGHT - 20);
  let path = "", pen = "M";
  values.forEach((v, i) => {
    if (v === null) { pen = "M"; return; }
    path += `${pen}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
    pen = "L";
  });
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  line.style.stroke = `var(${colour})`;
  svg.append(line);
  for (const limit of limits) {
    const rule = document.createElementNS(SVG, "line");
    for (const [k, v] of Object.entries({ x1: 0, x2: WIDTH, y1: y(limit), y2: y(limit), class: "limit" })) rule.setAttribute(k, v);
    svg.append(rule);
  }
  const range = known.length ? `${number(Math.min(...known))} to ${number(Math.max(...known))}` : "not measured";
  const text = limits.length ? `${label}: ${range}; limits ${limits.map((l) => number(l)).join(", ")}` : `${label}: ${range}`;
  svg.setAttribute("aria-label", text);
  const figure = document.createElement("div");
  const caption = document.createElement("small");
  caption.textContent = text;
  figure.append(caption, svg);
  return figure;
}
