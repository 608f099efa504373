// Audio worklet: hands the microphone's samples to the page, 128 at a time.
registerProcessor("cosyd-tap", class extends AudioWorkletProcessor {
  process(inputs) {
    if (inputs[0]?.[0]) this.port.postMessage(inputs[0][0].slice());
    return true;
  }
});
