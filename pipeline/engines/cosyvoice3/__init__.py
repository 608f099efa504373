"""CosyVoice 3: our own inference runtime for the official Fun-CosyVoice3-0.5B files.

    errors      what can be wrong with the files, as EngineUnavailable
    yaml_plain  cosyvoice3.yaml as plain data          config    sizes and constants, from yaml, json and
    shapes
    official    the official directory and its .pt     schema    which tensors must be there, with which
    shapes
    convert     official tensors -> our layout         cache     our layout on disk, mapped at start
    tokenizer   text <-> ids                           features  the five extractors (numpy)
    enrol       reference audio -> voice arrays        prompts   what the LLM and flow are given in each mode
    sampling    repetition-aware sampling              linear    fp32, bf16 and int8 weights
    llm         Qwen2 body, KV cache                   decode    text ids -> speech tokens, batched
    bistream    text piece by piece                    flow      tokens -> log-mel
    dit         the flow's network                     vocoder   log-mel -> samples
    vocoder_stream  the same on windows                synthesis the parts joined
    random_weights  a full-size checkpoint of noise    engine    the Engine protocol

Only the worker process imports this package, and only `engine` lazily imports torch's heavy parts. Formulas
are from the description in docs/cosyvoice3.md; goldens in tests/data/cosyvoice3 hold them.
"""
