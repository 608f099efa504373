// Adding a voice: clip, words, name, consent; then its way from upload to the first sentence, with a verdict.
"use strict";
(() => {
  const { setup, t, api, el, notice, get, languageName, upload, loadVoices, audioUrl, Refused } = window.cosyd;
  const TRIAL_EVERY_MS = 400;

  function field(label, box, hint, id) {
    box.id = `cosyd-add-${id}`;
    return el("div", { class: "cosyd-field" }, el("label", { for: box.id }, label), box, hint ? el("small", {}, hint) : null);
  }

  function form(onClose) {
    const sentences = [1, 2, 3].map((n) => t(`voice.read_${n}`));
    const words = el("textarea", { rows: "2", maxlength: "1000" });
    const wordsNote = el("p", { class: "cosyd-note", role: "status" }, t("voice.transcript_none"));
    const wordsField = field(t("voice.transcript"), words, t("voice.transcript_hint"), "words");
    const listen = el("button", { type: "button", class: "cosyd-button cosyd-hear", hidden: true, onclick: writeDown }, t("voice.write_down"));
    wordsField.append(listen);
    const tag = el("select", {}, el("option", { value: "" }, t("voice.clip_language_auto")),
      ...setup.languages.map((code) => el("option", { value: code }, languageName(code))));
    const tagField = field(t("voice.clip_language"), tag, null, "language");
    const name = el("input", { type: "text", maxlength: "80", autocomplete: "off", placeholder: t("voice.name_hint") });
    const consent = window.cosyd.consentField("add");
    const save = el("button", { type: "submit", class: "cosyd-button cosyd-primary" }, t("voice.save"));
    const shut = el("button", { type: "button", class: "cosyd-link", onclick: onClose }, t("voice.cancel"));
    const acts = el("div", { class: "cosyd-clip-row cosyd-acts" }, save, shut);
    const way = el("div", { class: "cosyd-way", "aria-live": "polite" });
    const picker = window.cosyd.clipPicker({ sentences, seconds: Math.floor(setup.reference_s), changed: () => { draw(); check.take(picker.clip()); } });
    const check = window.cosyd.clipCheck();
    const lines = el("form", { class: "cosyd-add", novalidate: true, onsubmit: (event) => { event.preventDefault(); add(); } },
      el("p", { class: "cosyd-lead" }, t("voice.add_intro")),
      picker.element, check.element, wordsField, wordsNote, tagField, field(t("voice.name"), name, null, "name"), consent.element, acts, way);
    words.addEventListener("input", draw);

    function draw() {
      const uploading = picker.kind() === "upload";
      wordsField.hidden = tagField.hidden = !uploading;
      listen.hidden = !setup.hears || !picker.clip();
      wordsNote.hidden = !uploading || !picker.clip() || words.value.trim() !== "";
    }

    // What is said in the clip, for correction: a recogniser mishears, and the words must be exact.
    async function writeDown() {
      const clip = picker.clip();
      if (!clip) return;
      listen.disabled = true;
      listen.textContent = t("voice.writing_down");
      try {
        const heard = await upload("api/voices/transcribe", { ...check.fields(clip.file), language: tag.value });
        words.value = heard.text;
        if (!tag.value && setup.languages.includes(heard.language)) tag.value = heard.language;
        notice(t(heard.text ? "voice.written_down" : "voice.nothing_heard"));
        words.focus();
      } catch (error) { notice(error.message, "error"); }
      listen.disabled = false;
      listen.textContent = t("voice.write_down");
      draw();
    }

    function missing() {
      if (!picker.clip() || picker.busy()) return "voice.missing_clip";
      if (!name.value.trim()) return "voice.missing_name";
      return consent.missing();
    }

    // -- the way: upload, check, learn ----------------------------------------------------------------

    const steps = new Map();
    function startWay() {
      steps.clear();
      const list = el("ol", { class: "cosyd-steps" }, ...["upload", "check", "learn"].map((step) => {
        const line = el("li", {}, t(`voice.step_${step}`), el("small", {}));
        steps.set(step, line);
        return line;
      }));
      way.replaceChildren(list);
    }
    function step(at, note) {
      for (const [key, line] of steps) {
        const order = [...steps.keys()];
        line.dataset.state = order.indexOf(key) < order.indexOf(at) ? "done" : key === at ? "now" : "";
      }
      const small = steps.get(at)?.querySelector("small");
      if (small && note !== undefined && small.textContent !== note) small.textContent = note;
    }
    function verdict(kind, lead, sentences, ...more) {
      way.querySelectorAll(`.cosyd-verdict[data-kind="${kind}"]`).forEach((old) => old.remove());
      way.append(el("div", { class: "cosyd-verdict", "data-kind": kind, role: kind === "bad" ? "alert" : "status" },
        el("b", {}, lead), sentences.length ? el("ul", {}, ...sentences.map((s) => el("li", {}, s))) : null, ...more));
    }

    async function add() {
      const wrong = missing();
      if (wrong) {
        notice(t(wrong), "error");
        ({ "voice.missing_name": name, "voice.missing_person": consent.person, "voice.missing_consent": consent.first })[wrong]?.focus();
        return;
      }
      const clip = picker.clip(), recorded = clip.kind === "recording";
      lines.classList.add("cosyd-adding");
      save.disabled = true;
      startWay();
      step("upload");
      let made;
      try {
        made = await upload("api/voices", {
          name: name.value, ...consent.fields(),
          transcript: recorded ? clip.words : words.value, language: recorded ? setup.language : tag.value,
          source: recorded ? "recording" : "upload", ...check.fields(clip.file),
        }, () => step("check"));
      } catch (error) {
        for (const line of steps.values()) if (line.dataset.state === "now") line.dataset.state = "bad";
        verdict("bad", t("voice.not_added"), [error.message]);
        lines.classList.remove("cosyd-adding");
        save.disabled = false;
        return;
      }
      const { good, advice } = made.verdict;
      verdict(good ? "good" : "fair", t(good ? "voice.good" : "voice.could_be_better"), advice.map((a) => a.message));
      step("learn", t("voice.learn_wait"));
      loadVoices().catch(() => {});
      lines.classList.replace("cosyd-adding", "cosyd-added");
      acts.hidden = true;
      await tryOut(made);
      acts.hidden = false;
      acts.replaceChildren(el("button", { type: "button", class: "cosyd-button", onclick: onClose }, t("voice.close")));
    }

    // The voice is learned by the engine when it first speaks, so its first sentence is spoken right away.
    async function tryOut(voice) {
      try {
        const job = await api("POST", "api/jobs", { v: 1, text: t("voice.trial"), voice: voice.id, source: "page", mode: "builtin" });
        for (;;) {
          let view;
          try { view = await api("GET", `api/jobs/${job.id}`); } catch (error) {
            if (error instanceof Refused) throw error;
          }
          if (view?.state === "done") break;
          if (view?.error) throw new Error(view.error.message);
          if (view?.state === "cancelled") throw new Error(t("cancelled"));
          if (view?.wait?.message) step("learn", view.wait.message);
          else if (view) step("learn", t("voice.learn_wait"));
          await new Promise((later) => setTimeout(later, TRIAL_EVERY_MS));
        }
        step(null);
        steps.get("learn").dataset.state = "done";
        steps.get("learn").querySelector("small").textContent = "";
        for (const line of steps.values()) line.dataset.state = "done";
        verdict("ready", t("voice.ready", { name: voice.name }), [],
          el("audio", { controls: true, preload: "metadata", src: audioUrl(job.id, "mp3") }),
          el("button", { type: "button", class: "cosyd-button cosyd-primary", onclick: () => window.cosyd.useVoice(voice.id) }, t("voice_use")));
        window.dispatchEvent(new CustomEvent("cosyd-done"));
      } catch (error) {
        steps.get("learn").dataset.state = "bad";
        verdict("bad", t("voice.trial_failed", { name: get(voice.id)?.name ?? voice.name }), [error.message]);
      }
    }

    draw();
    return lines;
  }

  window.cosyd.addingForm = form;
})();
