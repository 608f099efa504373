// What the page's scripts share: texts, requests that outlive an exchanged web process, and small DOM helpers.
// No library, nothing from another host. Texts come from pipeline/messages through window.COSYD.
"use strict";
window.cosyd = (() => {
  const setup = window.COSYD;
  const zh = setup.language === "zh";
  const HAN = /\p{Script=Han}/u;

  function sizeText(bytes) {
    let value = Math.abs(bytes), unit = "B";
    for (const bigger of ["KB", "MB", "GB", "TB"]) {
      if (value < 1000) break;
      value /= 1024;
      unit = bigger;
    }
    const digits = (unit === "GB" || unit === "TB") && value < 100 ? 1 : 0;
    return `${value.toFixed(digits).replace(/\.0$/, "")} ${unit}`;
  }

  function timeText(seconds) {
    const unit = zh ? ["秒", "分钟", "小时", "天"] : ["s", "min", "h", "days"];
    if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, "")} ${unit[0]}`;
    if (seconds < 90) return `${Math.round(seconds)} ${unit[0]}`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} ${unit[1]}`;
    if (seconds < 172800) return `${Math.round(seconds / 3600)} ${unit[2]}`;
    return `${Math.round(seconds / 86400)} ${unit[3]}`;
  }

  // The same filling as pipeline.messages: between two Han characters there is no blank.
  function fill(template, params) {
    let out = "", gap = false, at = 0;
    for (const hole of template.matchAll(/\{(\w+)(?::(\w+))?\}/g)) {
      let literal = template.slice(at, hole.index);
      if (gap && literal.startsWith(" ") && HAN.test(literal[1] || "")) literal = literal.slice(1);
      out += literal;
      at = hole.index + hole[0].length;
      const raw = params[hole[1]];
      const value = raw === undefined || raw === null ? "?"
        : hole[2] === "size" ? sizeText(raw) : hole[2] === "time" ? timeText(raw) : String(raw);
      if (zh && HAN.test(value[0] || "") && out.endsWith(" ") && HAN.test(out.at(-2) || "")) out = out.slice(0, -1);
      gap = zh && HAN.test(value.at(-1) || "");
      out += value;
    }
    let rest = template.slice(at);
    if (gap && rest.startsWith(" ") && HAN.test(rest[1] || "")) rest = rest.slice(1);
    return out + rest;
  }

  const has = (key) => key in setup.texts;
  const t = (key, params = {}) => fill(setup.texts[key] ?? setup.texts[`page.${key}`] ?? key, params);

  class Refused extends Error {}  // the server answered, and its sentence is the message

  const url = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;

  async function api(method, path, body, patienceMs) {
    let answer;
    try {
      answer = await fetch(url(path), {
        method,
        signal: patienceMs ? AbortSignal.timeout(patienceMs) : undefined,
        headers: body === undefined ? {} : { "Content-Type": "application/json" },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch {
      throw new Error(t("failed_fetch"));
    }
    let data = null;
    try { data = await answer.json(); } catch { /* a proxy's own error page */ }
    if (answer.status === 401) location.reload();
    if (!answer.ok) {
      if (data?.error?.message) throw new Refused(data.error.message);
      throw new Error(t("failed_fetch"));
    }
    return data;
  }

  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  const find = (id) => document.getElementById(`cosyd-${id}`);
  const shown = (id) => { const e = find(id); return e && e.offsetParent !== null ? e : null; };

  // Our sentences put commands in backticks.
  const rich = (text) => text.split(/`([^`]+)`/).map((part, n) => (n % 2 ? el("code", {}, part) : part)).filter((part) => part !== "");

  let noticeTimer = 0;
  function notice(text, kind = "info") {
    const box = find("notice");
    if (!box) return;
    clearTimeout(noticeTimer);
    box.replaceChildren(...rich(text));
    box.dataset.kind = kind;
    box.hidden = !text;
    if (text) noticeTimer = setTimeout(() => { box.hidden = true; }, kind === "error" ? 12000 : 4000);
  }

  // Runs `work` now and then, one run at a time, slower while the tab is hidden. `work` returns ms until the next.
  function repeat(work, ms) {
    const run = async () => {
      let next = ms;
      try { next = (await work()) ?? ms; } catch { next = Math.max(ms, 1500); }
      setTimeout(run, document.hidden ? Math.max(next, 5000) : next);
    };
    run();
  }

  function audioUrl(id, format, download) {
    return url(`api/jobs/${id}/audio?format=${format}${download ? "&download=1" : ""}`);
  }

  // `subtitles`: what was said is a text, so that it can be shown while it is heard.
  function downloads(id, { subtitles = false } = {}) {
    return el("details", { class: "cosyd-downloads" },
      el("summary", {}, t("download")),
      el("div", {}, ...setup.formats.map((format) => el("a", {
        href: audioUrl(id, format, true), download: "", "aria-label": t("download_as", { format }),
      }, format)), ...(subtitles ? ["srt", "vtt"].map((format) => el("a", {
        href: url(`api/history/${id}/subtitles?format=${format}`), download: "", class: "cosyd-subtitles",
        "aria-label": t("subtitles_as", { format: format.toUpperCase() }),
      }, format, el("small", {}, t("subtitles")))) : [])));
  }

  // Menus close when one clicks elsewhere or presses Escape, and open where they can be seen.
  const openMenus = () => document.querySelectorAll("details.cosyd-downloads[open]");
  document.addEventListener("click", (event) => {
    for (const open of openMenus()) if (!open.contains(event.target)) open.open = false;
    if (event.target.closest?.('[role="tab"]')) notice("");  // what it was about is out of sight
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const open of openMenus()) { open.open = false; open.querySelector("summary").focus(); }
    notice("");
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.open) event.target.lastChild?.scrollIntoView?.({ block: "nearest" });
  }, true);

  // Two voices at once cannot be understood.
  document.addEventListener("play", (event) => {
    for (const other of document.querySelectorAll("audio")) if (other !== event.target) other.pause();
  }, true);

  // Gradio names the browser's language; the page is in the visitor's, which a screen reader must know.
  const root = document.documentElement;
  const spoken = zh ? "zh-CN" : "en";
  const tell = () => { if (root.lang !== spoken) root.lang = spoken; };
  new MutationObserver(tell).observe(root, { attributes: true, attributeFilter: ["lang"] });
  tell();

  return { setup, t, has, api, url, el, find, shown, notice, rich, repeat, audioUrl, downloads, Refused, HAN, sizeText, timeText };
})();
