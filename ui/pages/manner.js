// How a text is spoken: the mode, a style or dialect for a cloned voice, and the recording of a voice change.
//
// What voice and engine cannot do is greyed, with one sentence that says why and what mends it.
"use strict";
(() => {
  const { setup, t, el, find, repeat, shelf, get, cloned, rich } = window.cosyd;
  const MODES = ["builtin", "zero_shot", "cross_lingual", "instruct", "convert"];
  let mode = "builtin", voice = "";

  // -- style ------------------------------------------------------------------------------------------

  function select(name, kind, options) {
    const box = el("select", { id: `cosyd-${name}` }, el("option", { value: "" }, t("manner.none")),
      ...Object.keys(options).map((key) => el("option", { value: key }, t(`${kind}.${key}`))));
    return [box, el("label", { class: "cosyd-field", for: box.id }, el("span", {}, t(`manner.${name}`)), box)];
  }
  const [style, styleField] = select("style", "style", setup.styles);
  const [dialect, dialectField] = select("dialect", "dialect", setup.dialects);
  const words = el("input", { id: "cosyd-words", type: "text", maxlength: "300", placeholder: t("manner.words_hint"), autocomplete: "off" });
  const stylePanel = el("div", { class: "cosyd-manner" },
    el("div", { class: "cosyd-pair" }, styleField, dialectField),
    el("label", { class: "cosyd-field", for: words.id }, el("span", {}, t("manner.words")), words));

  // The same joining as pipeline.voices.styles.
  function instruction() {
    const own = words.value.trim();
    const parts = [setup.dialects[dialect.value], setup.styles[style.value], own && (/[。！？.!?]$/.test(own) ? own : `${own}。`)];
    return parts.filter(Boolean).reduce((out, part) =>
      out + (!out || (/[。！？]$/.test(out) && part.charCodeAt(0) > 127) ? "" : " ") + part, "");
  }

  // Brings back what a recording was made with: known names go to their lists, the rest to the words.
  function takeInstruction(text) {
    let left = text ?? "";
    for (const [box, options] of [[dialect, setup.dialects], [style, setup.styles]]) {
      const found = Object.entries(options).find(([, said]) => left.includes(said));
      box.value = found ? found[0] : "";
      if (found) left = left.replace(found[1], "").trim();
    }
    words.value = left.replace(/。$/, "");
  }

  // -- voice change -----------------------------------------------------------------------------------

  const source = window.cosyd.clipPicker({ seconds: setup.convert_s, hint: t("manner.source_hint", { seconds: setup.convert_s }) });
  const sourcePanel = el("div", { class: "cosyd-manner" },
    el("h3", { class: "cosyd-h" }, t("manner.source")), source.element);

  // -- modes ------------------------------------------------------------------------------------------

  // "" when the mode can be pressed, else why not.
  function obstacle(wanted) {
    if (wanted === "builtin") return "";
    if (!shelf.known) return " ";
    if (!shelf.cloning.available) return shelf.cloning.message;
    if (!cloned().length) return t("manner.add_first");
    const here = get(voice);
    if (here && !here.builtin) {
      if (here.modes.includes(wanted)) return "";
      return t(wanted === "zero_shot" && !here.transcript ? "manner.no_words" : "manner.cannot");
    }
    return cloned().some((other) => other.modes.includes(wanted)) ? "" : t("manner.cannot");
  }

  function draw() {
    const box = find("modes");
    if (!box) return;
    const obstacles = MODES.map(obstacle);
    [...box.children].forEach((button, i) => {
      button.disabled = obstacles[i] !== "";
      button.title = obstacles[i].replaceAll("`", "");
      button.setAttribute("aria-pressed", mode === MODES[i]);
    });
    const here = get(voice);
    const stuck = obstacles.slice(1).every(Boolean) ? obstacles.find(Boolean)
      : here && !here.builtin ? obstacles.find(Boolean) : "";
    const say = stuck || t(`manner.hint_${mode}`);
    const hint = find("hint");
    if (hint.dataset.text !== say) {
      hint.dataset.text = say;
      hint.replaceChildren(...rich(say));
    }
    hint.classList.toggle("cosyd-off", !!stuck);
    document.body.classList.toggle("cosyd-converting", mode === "convert");
    const wanted = mode === "instruct" ? stylePanel : mode === "convert" ? sourcePanel : null;
    const panel = find("manner");
    if (panel.firstChild !== wanted) panel.replaceChildren(...(wanted ? [wanted] : []));
  }

  function press(wanted) {
    mode = wanted;
    const here = get(voice);
    if (wanted === "builtin" && here && !here.builtin) {
      window.cosyd.chooseVoice((get(shelf.fallback) ?? shelf.voices.find((v) => v.builtin)).id);
    } else if (wanted !== "builtin" && !here?.modes.includes(wanted)) {
      window.cosyd.chooseVoice(cloned().findLast((other) => other.modes.includes(wanted)).id);
    }
    draw();
  }

  function voiceChosen(id) {
    voice = id;
    const here = get(id);
    if (here && !here.modes.includes(mode)) mode = here.modes[0] ?? "builtin";
    draw();
  }

  // What `generate` sends beside the text: { mode, instruct?, file?, missing? }; `missing` is a sentence.
  function manner() {
    if (mode === "instruct") {
      const said = instruction();
      return said ? { mode, instruct: said } : { mode, missing: t("manner.need_one") };
    }
    if (mode !== "convert") return { mode };
    const clip = source.clip();
    if (!clip || source.busy()) return { mode, missing: t("manner.source_none") };
    const name = clip.kind === "upload" ? clip.file.name : new Date().toLocaleString();
    return { mode, file: clip.file, label: t("manner.source_label", { name }) };
  }

  function takeManner(recording) {
    const here = get(recording.voice);
    if (here?.modes.includes(recording.mode) && recording.mode !== "convert") mode = recording.mode;
    takeInstruction(recording.instruct);
    draw();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#cosyd-modes button");
    if (button && !button.disabled) press(MODES[[...button.parentElement.children].indexOf(button)]);
  });
  window.addEventListener("cosyd-voices", draw);
  Object.assign(window.cosyd, { manner, takeManner, voiceChosen });
  let drawn = null;
  repeat(() => { // Gradio mounts the tab late, and again when one comes back to it
    if (find("modes") && find("modes") !== drawn) { drawn = find("modes"); if (find("hint")) delete find("hint").dataset.text; draw(); }
    return 300;
  }, 300);
})();
