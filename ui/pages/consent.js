// Whose voice it is: the choice without which no voice is made, for adding and for importing one.
"use strict";
(() => {
  const { setup, t, el } = window.cosyd;
  const CONSENTS = ["own", "agreed", "guardian", "synthetic"];

  // `place` makes the ids of one form unique; `changed` is called after a choice.
  function consentField(place, changed = () => {}) {
    const person = el("input", { type: "text", maxlength: "80", autocomplete: "off", id: `cosyd-${place}-person` });
    const personField = el("div", { class: "cosyd-field" }, el("label", { for: person.id }, t("voice.consent_person")), person);
    const draw = () => { personField.hidden = chosen() !== "agreed"; };
    const radios = CONSENTS.map((value) => el("input", { type: "radio", name: `cosyd-${place}-consent`, value, onchange: () => { draw(); changed(); } }));
    const chosen = () => radios.find((radio) => radio.checked)?.value;
    const today = new Intl.DateTimeFormat(setup.language === "zh" ? "zh-CN" : "en", { dateStyle: "long" }).format(new Date());
    const element = el("fieldset", { class: "cosyd-consent" }, el("legend", {}, t("voice.consent")),
      ...radios.flatMap((radio) => [el("label", {}, radio, t(`voice.consent_${radio.value}`)), radio.value === "agreed" ? personField : null]).filter(Boolean),
      el("small", {}, t("voice.consent_today", { date: today })));
    draw();
    return {
      element, first: radios[0], person,
      fields: () => ({ consent: chosen(), person: chosen() === "agreed" ? person.value : "" }),
      missing: () => (!chosen() ? "voice.missing_consent" : chosen() === "agreed" && !person.value.trim() ? "voice.missing_person" : null),
    };
  }

  window.cosyd.consentField = consentField;
})();
