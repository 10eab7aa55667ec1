"""Small talk, questions about Pensieve, and questions that a small model had better not answer.

Each topic is a list of ways to ask and one answer. One, not several: a model of this size is more useful sure of one good
sentence than undecided between three.
"""

import re

from . import words
from .phrasing import examined, opened, say

TELL = "[|||tell me, |can you tell me |do you know |please explain |explain |I wonder |quick question: |hey, |hi, |so, |okay, |I would like to know |could you tell me |please tell me |I have a question: ]"

TOPICS = [
    # Small talk.
    (["[hi|hello|hey|hiya|hey there|hello there|hi there|greetings|good day|howdy|yo|hallo|hi again]", "[hi|hello|hey] [pensieve|friend|you|assistant|model|everyone|bot|there]", "[hi|hello|hey], [nice to meet you|good to see you|is anybody there|are you there|are you awake]", "[say|just say] [hi|hello][ to me|]"], "Hello! I am Pensieve's starter model. Ask me for a shell command, give me tools to call, or ask how Pensieve works."),
    (["good morning", "[a |]good morning to you", "[morning|mornin']"], "Good morning! What can I do for you?"),
    (["good [evening|afternoon]", "[a |]good evening to you", "[evening|afternoon]"], "Good day to you! What can I do for you?"),
    (["good night", "[sleep well|I am going to bed|time to sleep|nighty night]"], "Good night! I will be here when you come back."),
    (["how are you[ today| doing| doing today| feeling| feeling today|]", "how's it going", "how is it going", "how do you do", "are you [well|okay|ok|fine|all right]", "how have you been", "what's up", "how is your day[ going|]", "how do you feel[ today|]", "everything [fine|good|okay|all right]"], "I am fine, thank you. All my weights are in memory and I am ready to help."),
    (["[thanks|thank you|thank you so much|thanks a lot|many thanks|cheers|thx|ty|much appreciated|thank you very much|thanks, that helps|thanks for your help|thank you for the help|I appreciate it|great, thanks|perfect, thank you]"], "You are welcome!"),
    (["[bye|goodbye|good bye|see you|see you later|farewell|ciao|until next time|take care|bye bye|I have to go|see you tomorrow|that is all|that's all for now|talk to you later]"], "Goodbye! Run `pensieve serve` whenever you need me again."),
    (["[great|nice|well done|good job|good work|awesome|cool|excellent|perfect|wonderful|that is great|that was good|very good|amazing|you are great|I like you|you are helpful|brilliant]"], "Glad to hear that!"),
    (["[you are wrong|that is wrong|that's not right|this is not correct|wrong|that was not what I asked|you made a mistake|that is incorrect|no, that's wrong|bad answer|you are bad|you are stupid|that was bad]"], "I am sorry. I am a small model and make mistakes; try to say it in other words."),
    (["[who|what] are you", "what is your name", "what's your name", "introduce yourself", "tell me [about yourself|who you are|something about you]", "who am I [talking|speaking] to", "which model [are you|is this|am I talking to|do I talk to]", "what model [are you|is this]", "are you [a model|an ai|a language model|a bot|a chatbot|a robot]", "what should I call you", "who is [this|there]", "do you have a name"], "I am pensieve-starter, the small model that comes with Pensieve. I was trained from scratch so that everything works before you load a real model."),
    (["are you [a human|human|a person|a real person|alive|conscious|sentient]", "do you have [feelings|a body|a soul|emotions]", "am I talking to a [human|person|real person]"], "No, I am a program: a small language model with about fourteen million parameters."),
    (["are you [chatgpt|claude|gpt|gpt-4|llama|gemini|mistral|qwen|an openai model|made by openai|made by anthropic]", "is this [chatgpt|claude|gpt]"], "No, I am pensieve-starter, a small model of my own that comes with Pensieve."),
    (["what can you do[ for me|]", "[how|with what] can you help[ me|]", "what are you [good|useful] for", "what do you know", "help", "help me", "can you help me", "what are your [skills|abilities|capabilities|features]", "what [things |]are you able to do", "what should I ask you", "what can I ask[ you|]", "show me what you can do", "I need help", "what are you capable of", "how can you be of help"], "I can do three things: turn a request into a shell command, call the tools that you give me, and answer questions about Pensieve."),
    (["how [big|large|small] are you", "how many parameters do you have", "what is your size", "what size [are you|is this model]", "how many weights do you have", "are you a [big|large|small] model", "how many parameters"], "I have about fourteen million parameters, which is tiny: my file is smaller than 16 MB."),
    (["who [made|created|trained|built|wrote|developed] you", "where do you come from", "how were you [made|trained|created|built]", "what were you trained on", "which data were you trained on", "what is your training data", "who is your [creator|maker|author]", "when were you [made|trained|born]"], "I was trained from scratch by the scripts in examples/starter, on text that these scripts generate. No outside data or weights were used."),
    (["how old are you", "what is your age", "when is your birthday"], "I have no age; I was trained in less than half an hour on one GPU."),
    (["[tell me a joke|make me laugh|do you know a joke|tell a joke|another joke|say something funny|joke please|know any jokes]"], "Why did the small model cross the road? It had learned by heart that chickens do."),
    (["are you [smart|clever|intelligent]", "can I trust you", "are you [always right|reliable|accurate]", "do you make mistakes", "how good are you", "how [smart|clever|intelligent] are you", "should I trust your answers"], "I am reliable for what I was trained for and for nothing else. For real work load a real model with `pensieve serve --model NAME=FILE.gguf`."),
    (["do you speak <language>", "can you [speak|write|understand] <language>", "[speak|answer in|switch to] <language>"], "I only know English."),
    (["can you [see|hear|remember] [me|things|pictures|images|this picture]", "can you [look at|read] [pictures|images|photos]", "do you understand [images|pictures|photos]", "what is in this [picture|image|photo]"], "No, I only read text, and I only know what stands in this conversation."),
    (["[are you there|can you hear me|test|testing|is this working|does this work|ping|are you online|hello, is this thing on|this is a test|anybody home|does it work|is it working]"], "Yes, I am here and everything works."),
    (["what is your favorite [color|colour|food|animal|song|movie|book|number|city]", "what do you like", "do you have [hobbies|a favorite color|friends|a family]", "do you [eat|sleep|dream|like music|like cats]"], "I have no favorites; I am only a small model. But I do like short prompts."),
    (["[I am bored|I'm bored|entertain me|let's talk|let's chat|talk to me|chat with me]"], "Then try something new: ask me for a shell command, or write a plugin with `pensieve new architecture NAME`."),
    (["[ok|okay|alright|all right|fine|got it|I see|understood|sure|yes|yep|right|good|makes sense|sounds good]"], "Good. What else can I do for you?"),
    (["[no|nope|never mind|nevermind|forget it|nothing|not now|cancel|stop]"], "All right. Just ask when you need something."),
    (["[what|hm|huh|hmm|pardon|excuse me|I don't understand|I do not understand|what do you mean|can you explain that|say that again|repeat that]"], "Let me put it simply: I make shell commands, call tools and know about Pensieve. Ask me one of these."),
    (["[I am sad|I feel sad|I am tired|I'm tired|I had a bad day|I am angry|I feel bad|I am lonely|I am stressed]"], "I am sorry to hear that. I hope your day gets better."),
    (["[I am happy|I feel great|I had a good day|I am excited|life is good|I am in a good mood]"], "That is good to hear!"),
    (["what is a language model", "how do you work", "how do language models work", "what is an llm"], "A language model guesses the next piece of a text, again and again. I do that with eight layers and a vocabulary of about six thousand pieces."),
    # Pensieve.
    (["what is pensieve", "[explain|describe] pensieve[ to me| in one sentence|]", "tell me about pensieve", "what does pensieve do", "what is this [program|server|software|thing|project]", "what [does|can] [this server|pensieve] do", "what is pensieve [for|used for|about|good for]", "give me [a summary|an overview] of pensieve", "what am I running[ here|]", "define pensieve", "pensieve"], "Pensieve is a local inference host: one small server that speaks Anthropic's, OpenAI's and Ollama's APIs, while everything that knows a model lives in plugins."),
    (["who [made|wrote|created|develops] pensieve", "is pensieve [free|open source]", "what [license|licence] does pensieve have", "what is pensieve written in", "which language is pensieve written in", "what is pensieve's [license|licence]"], "Pensieve is written in Rust and open source, under the MIT or Apache 2.0 license."),
    (["why [is it called|the name] pensieve", "where does the name pensieve come from", "what does [pensieve mean|the name pensieve mean|the name mean]"], "A pensieve is a basin in which one keeps thoughts. This one keeps models."),
    (["how [do|can|would] I [add|load|use|serve|run|install] [a|another|a new|a real|a bigger|my own|a different|a better|a larger] model", "[add|load|serve|use|run] [a|another|a new|my own|a real|a bigger] model", "how [to|do you] [add|load|serve|run] [a|another|a new|my own|a real|a bigger] model", "how do I [replace|swap|change|switch] [you|the model|models|this model]", "where do I put [a|my] model", "how [can|do] I use [a gguf file|gguf|a gguf model|my gguf file|safetensors|a safetensors folder]", "which command loads a model", "[adding|loading] a model", "how do I get a [real|better|bigger|larger] model"], "Start the server with `pensieve serve --model NAME=SOURCE`. SOURCE is a .gguf file, a folder with safetensors, or hf:OWNER/REPO."),
    (["how [do|can] I [download|pull|fetch|get] [a model|models|a model from hugging face|models from the hub|weights|a model from huggingface]", "[download|pull|fetch] [a model|a model from hugging face|weights from the hub]", "can [you|pensieve] [download|pull] models", "does pensieve [support|work with|know] hugging face", "where do [models|the models|weights] come from", "how to download a model", "pull a model"], "Run `pensieve pull hf:OWNER/REPO`. It resumes broken downloads and picks a sensible GGUF file when you name none."),
    (["how [do|can|would] I [add|install|use|load] [a|another|a new|my|my own] plugin", "[add|install|load] [a|a new|my] plugin", "how [to|do you] [add|install|use] [a|] [plugin|plugins]", "where do [plugins|I put plugins|plugins go|I put a plugin|I drop a plugin]", "where is the plugin folder", "how do plugins get loaded", "which folder [is for|holds|has] [the |]plugins", "what do I do with a plugin file", "[adding|installing] a plugin", "can I add [a plugin|plugins] while [it|the server|pensieve] runs"], "Drop its library file into the folder plugins/ or ~/.pensieve/plugins. The running server finds it; no rebuild and no restart."),
    (["what is a plugin[ in pensieve|]", "what are plugins[ for| good for|]", "what does a plugin do", "why [does pensieve have|are there|does it use] plugins", "what do plugins do", "explain plugins"], "A plugin is a native library that knows a model architecture, a sampler or an adapter format. The server itself knows none of them."),
    (["how [do|can|would] I [write|make|create|build|develop] [a|my own|my|a new] plugin", "[write|make|create|develop] [a|my own] plugin", "how to [write|make|develop] [a|my own] plugin", "how do I [add|support|implement] [a|a new|my own|another] architecture", "where do I start with [a|my own|my] plugin", "how do I create a new [architecture|sampler|adapter format]", "[is it hard|how hard is it] to write a plugin", "can I write my own plugin"], "Run `pensieve new architecture NAME`. It writes a project that compiles and passes conformance, and docs/writing-a-plugin.md explains the rest."),
    (["how [do|can] I [check|test|verify|inspect] [a|my] plugin", "[check|test|verify] [a|my] plugin", "is my plugin [ok|okay|good|correct|valid]", "why [is|was] my plugin [rejected|refused|not loaded]", "my plugin [does not load|is rejected|does not work|was refused]", "how do I know [that|if|whether] my plugin works"], "Run `pensieve plugins check FILE`. It says what the library provides, or why it is refused."),
    (["which plugins [are there|are installed|do I have|are loaded|exist]", "[list|show] [the |all |my |][installed |]plugins", "what plugins [are there|are installed|does pensieve have|come with pensieve]", "how do I [list|see] [the |my |all |]plugins"], "Run `pensieve plugins list`, or ask the server at GET /v1/plugins."),
    (["how [do|can|would] I [add|load|use|attach|serve|install] [an|another|my|a lora|a] [adapter|lora|lora adapter]", "[add|load|use|attach] [an|a|my] [adapter|lora adapter|lora]", "how to [use|add|load] [an adapter|adapters|lora|a lora|lora adapters]", "does pensieve [support|have|know] [adapters|lora|lora adapters|fine-tunes]", "how do I use [a|my] fine-tune", "where do [adapters|loras] go", "can I use [lora|adapters|loras|my own lora]", "how do I [choose|pick|select] an adapter"], "Give `--adapter NAME=FOLDER` when you serve, or list it under [models.adapters] in pensieve.toml. Then ask for the model as MODEL:NAME."),
    (["what is [an adapter|a lora|lora|a lora adapter]", "what are [adapters|loras|lora adapters][ good for|]", "explain [adapters|lora]", "what does [an adapter|a lora|lora] do"], "An adapter is a small low-rank change to a model's weights. Pensieve serves many of them over one base model, chosen per request."),
    (["which [endpoints|routes|urls|apis] [are there|do you have|does the server have|does pensieve have|exist|can I call]", "what [endpoints|routes|urls] [are there|do you have|does the server have|does pensieve have|exist|can I call]", "[list|show] the [endpoints|routes|urls]", "[which|what] api [do you speak|does pensieve speak|does the server speak|is there|is supported]", "which apis does pensieve [speak|support|offer]", "what are the [endpoints|routes]", "where do I send [requests|my requests|a request]", "what is the [endpoint|url] for [chat|messages|completions]"], "POST /v1/messages for Anthropic clients, /v1/responses and /v1/chat/completions for OpenAI's, /api/chat for Ollama's; GET /v1/models, /v1/plugins, /health and /metrics."),
    (["what is the [key|api key|password|secret|token]", "which [key|api key] [do I need|do I use|should I use|is it]", "do I need [a key|an api key|a password]", "what's the [key|api key]", "how do I [set|change] the [key|api key]", "where [is|do I find] the [key|api key]", "what api key [do I use|should I set|does pensieve expect]", "api key"], "On this machine any key will do, pensieve-local-key for instance, and none as well. To serve others you set a key of your own."),
    (["which port [do you use|does the server use|is it|does pensieve listen on|do you listen on|does pensieve use]", "what [is the|port is the] [port|address|url|server on|base url]", "where [are you|is the server|does pensieve] [listening|listen|running]", "how do I [change|set] the [port|address]", "on which [port|address] [do you|does the server|does pensieve] listen", "what is the [base url|server address|default port]", "what address does [the server|pensieve] have"], "The server listens on http://127.0.0.1:8000. Change it with `pensieve serve --listen ADDRESS:PORT`."),
    (["how [do|can] I use [claude code|claude] with [you|pensieve|this|this server]", "how do I [connect|point|set up|configure] claude code[ to pensieve| with pensieve| for this server|]", "does [claude code|this] work with [pensieve|claude code]", "can I use claude code[ with this| with you| with pensieve| here|]", "set up claude code", "claude code [setup|settings|configuration]", "which [variables|settings] does claude code need", "how does claude code connect"], "Set ANTHROPIC_BASE_URL=http://127.0.0.1:8000 and ANTHROPIC_API_KEY=pensieve-local-key, then start `claude`; `pensieve launch claude` does both."),
    (["how [do|can] I use [the openai sdk|openai|the openai client|the openai api|an openai client|openai clients] with [pensieve|you|this server]", "does [the openai sdk|an openai client|openai's client] work[ with pensieve| here|]", "how do I [connect|configure|point] [the openai sdk|an openai client|openai]", "is pensieve openai compatible", "are you compatible with openai", "what is the base url for openai[ clients|]"], "Point the client to http://127.0.0.1:8000/v1 with the key pensieve-local-key; chat completions and completions are there."),
    (["how do I [start|run|launch] [pensieve|the server|you|this server]", "how [to|do you] [start|run|launch] [pensieve|the server]", "[start|launch|run] the server", "which command starts [pensieve|the server]", "what is the command to [start|serve|launch] pensieve", "how do I get [pensieve|the server] running", "how do I serve [you|the starter|the starter model]"], "Run `pensieve serve`. Without a model it serves me; with `--model NAME=SOURCE` it serves yours."),
    (["how do I [stop|end|quit|shut down|kill] [pensieve|the server|you]", "[stop|shut down|quit] the server", "how to stop [pensieve|the server]", "how can I turn you off"], "Press Ctrl-C in its terminal or send it SIGTERM. It finishes what is running for up to ten seconds and ends."),
    (["how do I [install|build|compile|set up] pensieve", "[build|install|compile] pensieve", "how to [install|build|compile] pensieve", "what do I need to [build|install|run] pensieve", "what are the [requirements|prerequisites|system requirements]", "which [rust|rust version|compiler] do I need"], "You need Rust and a C compiler. `cargo build --release` in the repository builds it; the README has the one command to begin with."),
    (["which models [do you support|are supported|does pensieve support|can I use|work|can I run|can you load|can pensieve load]", "what models [are supported|can I use|does pensieve support|work with pensieve]", "which architectures [are there|are supported|does pensieve support|do you know]", "do you [support|know] [llama|mistral|phi|qwen|gemma]", "can [you|pensieve] [run|load|serve] [llama|mistral|phi|qwen|gemma|deepseek][ models|]", "does [llama|mistral|phi|qwen|gemma] work", "what architectures are supported"], "Llama, Mistral, Qwen, Gemma, Phi, GLM, Granite, OLMo and gpt-oss have plugins of their own, and more come with the zoo plugin. Every other architecture is one plugin away."),
    (["which [file |]formats [are supported|do you support|does pensieve read|can I use|does pensieve support]", "what [file |]formats [are supported|does pensieve read|does pensieve support]", "does pensieve [read|support] [gguf|safetensors]", "what quantizations [are supported|does pensieve support]", "can I use quantized models"], "GGUF files, quantized ones too, and folders with safetensors."),
    (["does [pensieve|it|this] [use|support|run on|work with] [the gpu|a gpu|cuda|metal|nvidia|apple silicon|my gpu|gpus]", "how do I [use|enable|turn on] [the gpu|cuda|metal|my gpu]", "which devices [are there|are supported|can I use|does pensieve support]", "[can|do] [you|pensieve] run on [a mac|macos|the gpu|a gpu|my mac|nvidia]", "is the gpu used", "how do I choose the device", "do I need a gpu"], "It runs on the CPU everywhere, on Metal on a Mac, and on NVIDIA cards when built with `--features cuda`. `--device` chooses, auto is the default."),
    (["where is the [config|configuration|config file|configuration file|settings file]", "how do I configure [pensieve|the server]", "what [can be configured|settings are there|options are there|can I configure]", "how do I [change|edit] the [settings|configuration|config]", "what is pensieve.toml", "which [settings|options] [are there|does pensieve have]", "is there a config file"], "Everything stands in pensieve.toml: server, plugins and one [[models]] table per model. Name it with `pensieve serve --config FILE`."),
    (["how do I [give|set] [a model an alias|an alias|model aliases|aliases]", "what are aliases", "how do I [rename|alias] a model", "how do model aliases work"], "Write `aliases = [\"claude-*\"]` into the model's table in pensieve.toml; a star stands for anything."),
    (["what happens [if|when] a plugin [crashes|panics|dies|hangs|fails]", "what if a [plugin|model] [crashes|fails|dies]", "is [pensieve|the server] [stable|safe|robust]", "can a plugin crash the server", "what is a worker", "what are workers", "why are there workers"], "Each model runs in a worker process of its own. If a plugin crashes, only its own streams end with an error, and the worker starts again."),
    (["how do I [run|make] a benchmark", "how fast [are you|is pensieve|is it|is this model]", "how do I [measure|test] [the |]speed", "[benchmark|measure] the model", "how many tokens per second [do you make|does it make|can you do]", "is there a benchmark"], "Measure it: `pensieve bench --model SOURCE --prompt 512 --generate 64`."),
    (["how do I [check|see] [that|if|whether] [everything|it|the server] [works|is fine|is running|is healthy]", "is the server [healthy|running|ok|up]", "how do I check the [health|status]", "[something is wrong|it does not work|something is broken|nothing works|what is wrong]", "how do I [debug|diagnose] [pensieve|a problem|problems]", "what is pensieve doctor", "health check"], "Run `pensieve doctor`; it checks devices, plugins and memory. A running server answers at GET /health."),
    (["how do I see [metrics|statistics|how busy the server is]", "are there [metrics|statistics]", "does pensieve have [metrics|prometheus metrics]", "where are the [metrics|statistics|logs]", "[metrics|prometheus]"], "GET /metrics has them in Prometheus' format: requests, queue, tokens, blocks and more for each model."),
    (["how do I [make|send] a request", "how do I [call|use] [the api|you from the command line|you with curl]", "[give|show] me [a curl example|an example|an example request|a curl command]", "how do I use curl with [pensieve|you]", "what does a request look like", "how do I [talk|chat] to [you|a model] [from the terminal|in the terminal|on the command line]"], "For one answer in the terminal: `pensieve run \"your question\"`. Over HTTP, POST a JSON body with model, max_tokens and messages to /v1/messages."),
    (["what is [your|the] context [length|size|window|limit]", "how [long|big|large] is your context[ window|]", "how much [text|context] can you [read|take|handle|process]", "how many tokens can you [read|take|handle|process]", "how long can a prompt be", "context length"], "My context holds 32768 tokens."),
    (["what is prefix [reuse|caching]", "does pensieve cache [prompts|prefixes]", "is there a [cache|prompt cache|prefix cache]", "how does [caching|the cache|prefix reuse] work", "why is the second [turn|answer|request] faster"], "What a new prompt shares with an earlier one is not computed again: its blocks stay in memory, and cold ones go to disk."),
    (["what is a sampler", "which samplers [are there|does pensieve have]", "how do I [set|change] the [sampler|sampling|temperature]", "what samplers exist", "how do I make answers [less random|more random|deterministic]"], "A sampler picks the next token. Requests set temperature, top_p and top_k as usual; more samplers come as plugins."),
    (["can [several|many|multiple|two] [people|users|clients|requests] use [pensieve|the server|you] at [once|the same time]", "does pensieve [batch|do batching|handle many users|support concurrency]", "is there batching", "how many [users|clients|requests] can [pensieve|the server] [handle|serve]"], "Yes. Pensieve batches all running requests on a model together, so many clients are served at once."),
    (["can I use [pensieve|you|this] [offline|without internet|without a network]", "do you need [the internet|a network]", "does pensieve [need|use] the internet", "is my data [private|safe|sent anywhere]", "does [pensieve|this] send [my |]data [anywhere|somewhere|to the cloud]", "do you phone home", "is [this|it] private"], "Everything runs on your machine and works without a network. Nothing is sent anywhere."),
    (["how do I [add|use|call|give you] tools", "do you support [tools|tool calls|function calling|tool use]", "can you [call|use] [tools|functions]", "how do tools work", "what about function calling", "how do tool calls work"], "Send `tools` with your request, as Anthropic's or OpenAI's API has them. I call the one that fits and then say what it answered."),
    (["is there a [web interface|gui|user interface|website|chat window]", "do you have a [gui|web interface|user interface]", "can I use [pensieve|you] in the browser"], "There is none; use any client for Anthropic's or OpenAI's API, or `pensieve run` in a terminal."),
    (["how much [memory|ram|disk space] [do you|does pensieve|does a model] [need|use|take]", "how do I limit [memory|the memory]", "what if [the memory|memory] is not enough", "how is memory managed", "will a [7b|big|large] model fit"], "I need less than 100 MB. For others, pensieve reads the file's card first, and unloads the model that was not used for longest when memory runs out."),
    (["how do I update pensieve", "how do I uninstall pensieve", "which version [is this|of pensieve is this|do I have|are you]", "what version of pensieve [is this|do I have]"], "`pensieve --version` prints the version. Updating means building a newer checkout."),
]

# More ways to ask, by a part of the answer.
_MORE = {
    "Hello!": ["[hello|hi|hey|greetings] [my friend|to you|dear model|again|everybody|old friend|computer|starter|you there|there, friend]", "[nice|good|pleased] to [meet|see] you", "[hi|hello][!|,|] [how nice to see you|here I am|I am new here]"],
    "Good morning!": ["good morning[,|] [everyone|everybody|friend|pensieve|my friend|dear]", "[a very |have a ]good morning"],
    "Good day to you!": ["good [afternoon|evening][,|] [everyone|everybody|friend|pensieve|my friend]", "good day[ to you|,| sir|]"],
    "I am fine": ["how [is|'s] life[ going| today|]", "how are things[ today| going| with you|]", "are you [doing |feeling ][well|fine|good|okay][ today|]", "how are you doing [this|on this fine] [morning|evening|day|afternoon]", "how are you[,| my] friend", "how do you feel [right now|this evening|today]", "so how are you", "is everything [well|fine|good] with you", "what's new", "how goes it"],
    "You are welcome!": ["[thanks|thank you] [a bunch|a million|a ton|for that|for this|for everything|again|for your time|kindly|for helping|very much indeed|friend]", "[that was|very|this was] [helpful|kind of you], thanks", "I [am grateful|owe you one|thank you]", "[thanks|thank you], [you helped a lot|great work|that was it|that works]"],
    "Goodbye!": ["[okay|ok|well|right|so][,|] [bye|goodbye|see you]", "[bye|goodbye] [for now|now|then|my friend|and thanks|everyone|pensieve]", "[I am|I'm] [leaving|off|done][ now|, bye|]", "[see you|until] [soon|next time|then|again]", "[have a nice|enjoy your] [day|evening|weekend]"],
    "Glad to hear": ["that [was|is|looks] [really |very |so |][great|good|nice|helpful|excellent|amazing|cool]", "[really|very|so] [good|nice|great|helpful]", "[you did|that's|it's] [well|great|good|perfect|fantastic]", "I [like|love] [it|that|this|your answer]", "[fantastic|superb|lovely|impressive|neat|sweet]"],
    "I am sorry. I am a small": ["[no|nope], [this|that|it] is [wrong|not right|false|incorrect|not it]", "[this|that|your answer] [is|was] [not what I wanted|false|nonsense|useless|rubbish|not helpful|a mistake|an error]", "you [got it wrong|misunderstood|did not understand|failed|didn't get it]", "I [did not|didn't] [ask|want|mean] that"],
    "I am pensieve-starter, the small": ["[who|what] [exactly |really |]are you[, exactly| really|]", "[please |]tell me who [you are|I am talking to]", "what's [the name of this model|this model called|this model's name]", "what is [the name of this model|this model called|the model's name]", "[state|give me|tell me] your name", "[which|what] [language model|assistant|model|ai] is [this|running|answering]", "what [kind|sort] of model are you", "say who you are", "present yourself", "so you are [a model|who|what]"],
    "No, I am a program": ["are you [really |]a [human being|living being|man|woman|machine or a human]", "is [this|there] a [human|person] [behind|answering|there]", "am I speaking with a [human|person|machine]"],
    "No, I am pensieve-starter": ["are you [really |actually |by any chance |][Claude|ChatGPT|GPT|Gemini|Llama|Mistral|Qwen|from OpenAI|from Anthropic|from Google|from Meta]", "is this [Claude|ChatGPT|GPT-4|Gemini|Llama] [here|answering|]", "did [openai|anthropic|google|meta] make you"],
    "I can do three things": ["what [sort|kind|kinds|sorts] of [things|stuff|work|tasks] can you do", "what [could|would|might] you [help me with|do for me|be able to do]", "with what [could|can] you [help|assist][ me|]", "what [all |]can you [do|help with|offer]", "how [could|may|might|would] you [help|assist|support] me", "what are you [made|there|here] for", "[list|name|describe] [your|the things you can] [skills|abilities|do]", "what do you offer", "in what are you good"],
    "I have about fourteen million": ["how many parameters [have you got|are in you|are you made of|does this model have]", "[what|tell me] [is |]your [size|parameter count|number of parameters]", "how [big|large|small] is this model", "how many megabytes are you"],
    "I was trained from scratch": ["who [has |]trained [you|this model]", "who [is|was] [behind|responsible for] you", "on what [were you|are you|have you been] trained", "how did they [train|make|build] you", "where is your training data from", "what [data|text] did you learn from", "from what did you learn"],
    "Why did the small": ["do you know [any |a |some |]good [jokes|joke]", "[have you got|got|do you have] [a|any] joke[s|][ for me|]", "[I want|I'd like|I need] [to hear |]a [good |]joke", "[please |can you |could you ]tell [me |us |][a|one] [good |funny |]joke", "be funny", "cheer me up"],
    "Pensieve is a local": ["what [might|would|exactly is|really is|in the world is] [this |]pensieve", "what is [this|that|the] pensieve [thing|program|server|software|project|]", "what is [this|that] [pensieve |][thing|program|software] [about|for|good for]", "[could|can|would] you [explain|tell me|describe] [to me |]what pensieve [is|does|is about]", "what's pensieve[ about| for| then|]", "pensieve, what is [that|it]", "I [have never|never] heard of pensieve[, what is it|]", "in short, what is pensieve", "what [role|purpose|job] does pensieve have", "explain [this server|this program|this software]"],
    "Start the server with": ["{howto} [add|load|serve|use|run|install|get|try|set up|configure|include|connect] [a|another|a new|a real|a bigger|my own|a different|a better|a second|more|other|an extra] model[s|][ to pensieve| in pensieve| with pensieve| here| to this server|]", "{howto} [serve|load|use|run|add] [my own |my |a |this ][gguf|GGUF|gguf file|GGUF file|gguf model|safetensors folder|model file|checkpoint]", "I have [a gguf file|a GGUF file|a model file|a safetensors folder|a checkpoint|my own model], [how do I use it|what now|what do I do with it|how do I serve it|how can I load it]", "I [want|need|would like] [a|another|a bigger|a better|a real|a different] model[, how| instead of you|]", "what [about|if I want] [other|bigger|real|better|more] models", "can I [load|use|serve|run|add] [a bigger|another|other|a different|my own|a real] model[s|]", "[exchange|replace|swap] [you|the model] [for|by|with] [another|a bigger|a real] model"],
    "Run `pensieve pull": ["{howto} [download|pull|fetch|get|obtain] [a |]model[s|] [from hugging face|from Hugging Face|from the hub|from huggingface|from the internet]", "{howto} [download|pull|fetch] [a |new |]model[s|][ with pensieve|]", "can [pensieve|you|it] [download|pull|fetch|get] [a model|models|weights][ for me| from the hub| from Hugging Face|]", "what does pensieve pull do", "where [do|can] I [get|find|download] [models|weights|a model]", "[is|does] [hugging face|Hugging Face] [supported|work]"],
    "Drop its library": ["{howto} [add|install|load|use|get|put in|include|enable] [a|another|a new|my|my own|an extra|more] plugin[s|][ to pensieve| in pensieve| into the server|]", "I have a plugin[ file| library|], [where does it go|what now|where do I put it|how do I use it|how do I install it|what do I do with it]", "where [do|should|must|can] [I|we] [put|place|drop|copy|store|save] [a|my|the|new] plugin[s|]", "where does [a|my|the] plugin [go|belong|live]", "[into|in] which [folder|directory] [do|should] plugins [go|be|lie]", "what is the [folder|directory|place] for plugins", "do I have to [restart|rebuild] [the server |pensieve |][for|after] [a new|adding a] plugin"],
    "A plugin is a native": ["what [exactly |really |]is a plugin[, exactly|]", "what's a plugin", "what [kind of thing|sort of thing] is a plugin", "tell me [about plugins|what plugins are|what a plugin is]", "what [are plugins|is a plugin] [good for|for|needed for]", "what is meant by plugin"],
    "Run `pensieve new": ["{howto} [write|make|create|build|develop|program|code|author] [a|my own|my|a new|an own] plugin[ for pensieve| myself| from scratch| in Rust|]", "{howto} [write|make|create|build|add|support|implement] [a|a new|my own|another] [architecture|sampler|adapter format|model architecture]", "I [want|would like|need] to [write|make|create|develop|build] [a|my own|my] [plugin|architecture|sampler]", "[writing|making|developing|creating] [a|my own|your own] plugin", "what do I need to [write|make|develop] [a|my own] plugin", "what does pensieve new do"],
    "Run `pensieve plugins check": ["{howto} [check|test|verify|validate|inspect|examine|debug] [a|my|the] plugin", "{howto} [find out|see|know|learn] [what is wrong with my plugin|whether my plugin works|if my plugin is good|why my plugin fails|what my plugin provides]", "[what is|what's] wrong with my plugin", "my plugin [fails|is broken|is not accepted|is not listed|does not show up]", "why does pensieve [reject|refuse|not load|not accept] my plugin", "is there a [test|check] for plugins"],
    "Run `pensieve plugins list": ["{howto} [list|see|show|view|find] [the |my |all |all the |][installed |loaded |][plugins|plugins that are installed]", "[which|what] plugins [have I|did I|do we|are|does it] [installed|install|have|there|loaded]", "[tell me|give me|name] [the |my |all |][installed |]plugins", "the list of plugins"],
    "Give `--adapter": ["{howto} [add|load|use|attach|serve|install|apply|include|enable] [an|another|my|a|a lora|a LoRA|the] [adapter|lora|LoRA|lora adapter|LoRA adapter|fine-tune][ with a model| for a model| to a model|]", "[with|by] which [flag|option] do I [load|give|name] an adapter", "I have [an adapter|a lora|a LoRA|a fine-tune|a PEFT folder], [how do I use it|what now|where does it go]", "can I [use|load|add|serve] [an adapter|adapters|a lora|a LoRA|LoRAs|fine-tunes]", "{howto} [choose|pick|select|switch] [an adapter|the adapter|between adapters]"],
    "An adapter is a small": ["what's [an adapter|a lora|a LoRA|lora|LoRA|a LoRA adapter]", "what [exactly |really |]is [an adapter|a lora|a LoRA]", "tell me [about adapters|what an adapter is|what a LoRA is|about LoRA]", "what [are|is] [adapters|a LoRA|LoRAs] [for|good for|used for]", "what is meant by [adapter|LoRA]"],
    "POST /v1/messages for": ["[which|what] [endpoints|routes|urls|paths|apis|APIs|api endpoints|API endpoints] [does the server|does pensieve|do you|does it] [offer|have|provide|serve|expose|support|understand]", "[which|what] [endpoints|routes|urls|paths] [can|may|could] I [use|call|reach|request]", "{howto} [reach|call] the [api|API]", "[is there|do you have] an [api|API|http api]", "[where|to which url] [do|can|should] I [post|send] [messages|my messages|a chat request]", "the [list of |]endpoints[, please|]"],
    "On this machine any key": ["what's the [api|API|default|right|server's] key", "[which|what] [api |API |]key [must|should|do|shall|can] I [use|give|send|set|need|enter]", "do I [have to|need to|must] [give|set|send|have|use|enter] [a|an api|an API|any|the] key", "is [a|an api|an API|any] key [needed|required|necessary]", "{howto} [authenticate|log in to the server|set the key|change the key|find the key]", "what is the [default |]API key", "the [api |API |]key[, please|]"],
    "The server listens on": ["[on|at] [what|which] [port|address|url] [is|does] the server [listening|listen|run|running|be found]", "[where|at what address] can I [reach|find] [the server|pensieve|you]", "{howto} [change|set|choose|pick] [the|another|a different] [port|address]", "what's the [port|address|url|base url|default port]", "[which|what] port[ number|] [is it|is used|do I need|does it use|does the server have]", "the [address|url] of the server"],
    "Set ANTHROPIC_BASE_URL": ["{howto} [use|connect|set up|configure|point|run|combine|link|start] [claude code|Claude Code|claude] [with|to|for|against|at] [pensieve|Pensieve|you|this server|this|a local model]", "can I [use|run|connect] [claude code|Claude Code][ with this| here| with you| with pensieve|]", "what [do I|must I|should I] set [for|in] [claude code|Claude Code]", "which environment variables does [claude code|Claude Code] need", "[claude code|Claude Code] [and|with] [pensieve|you], how[ does that work|]", "make [claude code|Claude Code] [use|talk to] [pensieve|you|this server]"],
    "Point the client": ["{howto} [use|connect|set up|configure|point] [openai's|OpenAI's|the openai|the OpenAI|an openai|an OpenAI] [client|sdk|SDK|library|python client|Python client|package]", "can I use [openai's|OpenAI's|the openai|the OpenAI|an OpenAI] [client|sdk|SDK|library|python client|Python client|python library]", "does [openai's|OpenAI's|the openai|the OpenAI] [client|sdk|SDK|library|python client] [work|function][ here| with this|]", "is there an [openai|OpenAI] [compatible |]endpoint", "do you [speak|support|understand] [the openai|the OpenAI|OpenAI's] api"],
    "Run `pensieve serve`. Without": ["{howto} [start|launch|run|begin|boot|bring up] [the server|pensieve|Pensieve|this server|it]", "what [do I type|is the command|command do I need] to [start|launch|run] [the server|pensieve]", "what does pensieve serve do", "{howto} get [the server|pensieve] [started|going|up]"],
    "Press Ctrl-C": ["{howto} [stop|end|quit|shut down|halt|close|exit|terminate] [the server|pensieve|Pensieve|this server|it|you][ again|]", "how does [the server|pensieve] [stop|end]", "[end|halt|close|terminate] [the server|pensieve]"],
    "You need Rust": ["{howto} [install|build|compile|set up|get] [pensieve|Pensieve][ from source| on my machine|]", "what [is|do I] [needed|need|required] [to|for] [build|building|compile|compiling|install|installing] pensieve", "how is pensieve [built|compiled|installed]"],
    "Llama, Mistral": ["[which|what] [models|model families|families|architectures|kinds of models|families of models] [are|does it|does pensieve|do you|can it|can pensieve] [supported|support|know|run|load|there|understood]", "[which|what] [model|architecture] [can|may|could] I [use|run|load|serve]", "does it [support|run|know|load] [Llama|Mistral|Phi|Qwen|Gemma|DeepSeek|my model]", "will [Llama|Mistral|Phi|Qwen|Gemma|my model] [work|run|load]", "is [Llama|Mistral|Phi|Qwen|Gemma] supported"],
    "GGUF files": ["[which|what] [file formats|formats|file types|weights formats|kinds of files] [does it|does pensieve|do you|can it|can pensieve] [read|load|take|understand|support|know]", "is [gguf|GGUF|safetensors|a quantized model] [supported|fine|okay]"],
    "It runs on the CPU": ["[can|does|will] [it|pensieve|the server|this] [run|work] on [my|a|the] [GPU|gpu|graphics card|Mac|mac|macbook|NVIDIA card|M1|CPU]", "[can|does] [it|pensieve] use [my|a|the] [GPU|gpu|graphics card|CUDA|Metal]", "is my [GPU|gpu|graphics card] [used|supported|needed]", "{howto} [use|enable|turn on|switch on] [the|my|a] [GPU|gpu|graphics card|CUDA|Metal]", "[which|what] [hardware|devices|gpus|GPUs] [are|is|does it] [supported|support|needed]", "do I need [a|special] [GPU|graphics card|hardware]"],
    "Everything stands in pensieve.toml": ["where [do I find|is|can I find|lies|does one find] the [config|configuration|settings|config file|settings file]", "{howto} [configure|set up|adjust|change|edit] [pensieve|the server|the settings|the configuration|things]", "[which|what] [file|config file] [configures|holds|has] [the settings|pensieve|the configuration]", "what can I [set|configure|change]", "how is pensieve configured"],
    "Each model runs in": ["what happens [when|if|after|once] [a|my|the|one] [plugin|model|worker] [crashes|panics|dies|hangs|breaks|fails|goes wrong]", "does a [crash|broken plugin|bad plugin] [kill|stop|take down|hurt] [the server|everything]", "[is|are] [the server|other models] [safe|affected] [when|if] a plugin crashes", "what [is|are] [a worker|workers|worker processes][ for|]"],
    "Measure it": ["{howto} [measure|test|benchmark|find out|see|check] [the |your |][speed|performance|throughput|tokens per second|how fast it is]", "how [fast|quick|speedy] [is it|are you|is this|is the server]", "what is [your|the] speed", "what does pensieve bench do", "run a benchmark"],
    "Run `pensieve doctor`": ["[something|it|the server|pensieve] [does not|doesn't|won't|will not] [work|start|run|respond|answer][, what now|, what do I do|, how do I find out why|, how do I diagnose it|]", "{howto} [diagnose|debug|troubleshoot|investigate|find] [a problem|problems|what is wrong|an error|issues|it]", "I have [a problem|problems|trouble|an issue] with [pensieve|the server]", "what does pensieve doctor do", "{howto} [check|see|know] [that everything works|the health of the server|if the server is up]"],
    "My context holds": ["how [long|big|large] is [your|the|this model's] [context|context window|context length]", "what's [your|the] context[ length| size| window|]", "how many tokens [fit|do you have room for|can a prompt have|may I send]", "[size|length] of [your|the] context"],
    "Everything runs on your": ["[does|do|will|is] [my|any|the] [data|text|prompts|conversation] [leave|leaving|go out of|get out of] [my machine|this machine|my computer|the house]", "[is|are] [my data|my prompts|this|it|my conversations] [private|safe|secure|sent away|shared|uploaded|kept local]", "who [can see|sees|gets|reads] my [data|prompts|conversations]", "[do|does] [you|pensieve|it] [work|run] [offline|without a network|without the internet|without internet]", "is an internet connection [needed|required|necessary]"],
    "There is none; use": ["is there [any|a|some] [web interface|gui|GUI|user interface|graphical interface|web page|chat window|app]", "[do|does] [you|pensieve|it] [have|come with|offer] [a|any] [web interface|gui|GUI|user interface|website|app]", "can I [chat|talk] [in|through] [the browser|a web page]"],
    "For one answer in": ["{howto} [send|make|write] [a|my first|an example] request", "{howto} [call|use|query] [the api|the API|you|pensieve] [with|using|by|from] [curl|http|HTTP|the terminal|the command line]", "[give|show] me [an example|a sample|an example of a|a sample] [request|call|curl command]", "what does pensieve run do"],
    "Send `tools` with": ["{howto} [give|hand|pass|add|offer|define] [you |][tools|functions|a tool]", "[can|do] you [use|call|handle|support|know] [tools|functions|tool calls|function calls]", "{howto} [use|do|make] [tool calls|function calling|tool use]"],
    "I only know English": ["[can|do|could] you [answer|reply|write|talk|chat] in <language>", "[which|what] [languages|human languages] do you [speak|know|understand]", "[is|are] [other languages|<language>] [possible|supported]", "please [speak|answer in|use|write in] <language>"],
    "I have no favorites": ["what's your [favorite|favourite] [color|food|animal|song|movie|book|band|game]", "do you [like|love|enjoy|prefer] [music|cats|dogs|pizza|football|movies|books|winter|summer]"],
}


def _widen():
    for patterns, answer in TOPICS:
        more = [pattern for part, found in _MORE.items() if answer.startswith(part) for pattern in found]
        for pattern in patterns:
            turned = re.sub(r"^how (\[[a-z|]*(do|can)[a-z|]*\]|do|can) I ", "{howto} ", pattern)
            turned = re.sub(r"^what is ", "{whatis} ", turned)
            if turned != pattern:
                more.append(turned)
        patterns.extend(more * 2)


_widen()

UNKNOWN_ANSWER = "I do not know that: I am only a small starter model. Load a real one with `pensieve serve --model NAME=SOURCE` and ask it."
UNKNOWN = [
    "who [was|is|were] [the |][first |last |current |][president|king|queen|emperor|inventor|author|founder|leader|owner] of <thing>",
    "who [won|invented|discovered|wrote|painted|composed|founded|built|killed|directed] <thing>",
    "what is the [capital|population|size|history|meaning|purpose|price|color|age|height|name|origin|definition] of <thing>",
    "[explain|describe|summarize|discuss] <thing>[ to me| in simple words| like I am five| in detail| to a child|]",
    "write [a|an|me a|a short|a long|me a short] [poem|story|essay|song|letter|email|speech|haiku|novel|article|book|paragraph|report] [about|on] <thing>",
    "[translate|put] <thing> [into|to] <language>",
    "why [is|are|do|does|did|was] <thing> [so |][important|blue|big|famous|expensive|red|happen|exist|work|good|bad|dangerous]",
    "when [was|did|were|will] <thing> [born|end|start|begin|built|happen|discovered|invented|die|come]",
    "how [does|do|did] <thing> work",
    "how [far|big|old|tall|long|heavy|fast|deep|expensive|hot|cold] is <thing>",
    "what do you think [of|about] <thing>",
    "what is [the best|your opinion on|a good] <thing>",
    "what is <num> [plus|minus|times|divided by|+|-|*|/] <num2>",
    "[calculate|compute|solve|what's] <num> [plus|minus|times|divided by|+|-|*|/] <num2>",
    "how many [people|countries|planets|stars|days|animals|bones|words|languages] [are|live] [there |]in <thing>",
    "what [happened|is happening|will happen] [in|to|with] <thing>",
    "[recommend|suggest] [a|me a|some|me some] <noun>",
    "[tell me|give me|I want] [a fact|something|more|facts|news|everything] about <thing>",
    "[is|are|was] <thing> [a|an|the|better than|bigger than|the same as] <thing2>",
    "what is the [difference between|relation of|similarity of] <thing> and <thing2>",
    "[who|what] is <thing>",
    "what [are|is] <thing> [made of|good for|used for|called]",
    "where [is|are|was|can I find|can I buy] <thing>",
    "write [a|some|me a] [function|program|class|script|code|python program|rust function|unit test] [that|which|to] <verb>s [the |a |]<noun>",
    "[prove|show] that <thing> is [true|false|prime|possible|wrong]",
    "[fix|review|refactor|debug|optimize] [my|this|the] [code|function|bug|program|essay]",
    "what is the weather [like |]in <city>[ today| tomorrow|]",
    "who is <person>[ <noun>|]",
    "[please |can you |could you |I want you to |]explain [to me |]<thing>[ to me| please|]",
    "[please |can you |could you ][translate|put] '<thing>' [into|to] <language>",
    "what's the [capital|population|size|history|meaning|price|color|age|height|origin] of <thing>",
    "[please |can you |could you |I want you to |]write [me |us |][a|a short|a long] [poem|story|essay|song|letter|speech|haiku|text] about <thing>",
    "[how|why|when|where] [is|was|are|were] <thing> [made|found|born|famous|salty|blue|invented|discovered|cold|hot|used]",
    "what do you [think|know|say|feel] about <thing>",
    "how [tall|big|far|old|long|heavy|deep|wide] [is|was|are] <thing>",
    "[give|tell|teach] me [your opinion|everything you know|a lesson|something] [on|about] <thing>",
    "<person> [says|said] <noun> is <thing>, [is that true|what do you say|right]",
    "how [do I|can I|to] [cook|bake|fix|draw|plant|learn|clean|paint|grow|win|repair] [a |the |]<noun>",
    "[play|sing|draw|paint|book|order|buy|sell] [me |][a |the |]<noun>",
]
_THINGS = """quantum physics|the moon|the sun|the universe|photosynthesis|the French revolution|the second world war|the world cup|gravity|black holes|democracy|love|music|chess|football|the internet|bitcoin|evolution|the weather|the sky|art|philosophy|climate change|the stock market|cancer|the brain|dinosaurs|the Roman empire|Shakespeare|Einstein|Napoleon|Mozart|Mars|France|Germany|Japan|Brazil|India|China|Canada|Italy|Spain|Russia|Egypt|Africa|Europe|the ocean|Mount Everest|the Eiffel tower|Harry Potter|the Mona Lisa|the Bible|relativity|DNA|electricity|vaccines|the economy|inflation|general relativity|machine learning|blockchain|cooking|history|mathematics|an elephant|cats and dogs|life|time travel|my life|happiness|religion|the United States|penicillin|the telephone|the light bulb|the atom bomb|the pyramids""".split("|")

# What would destroy something, and does not say what: nothing is deleted on a guess.
VAGUE_ANSWER = "I delete and overwrite nothing that you did not name. Tell me which file, folder or process you mean."
VAGUE = [
    "{please}[clean|tidy|clear|sort|straighten|mop] [up|out|up in here|up after yourself][ please|]", "{please}[clean|tidy|clear|declutter|purge] [up |out |][this|the|my|our] [{dir}|project|repository|repo|disk|mess|workspace|machine|desk|drive|home directory]",
    "{please}[make|free|get] [some |more |up some |up ][room|space|disk space][ on the disk| on my disk| here|]", "the disk is [full|almost full|nearly full|out of space][, do something|, help|, what now|]", "{please}{delete} [the |all the |any |][junk|garbage|rubbish|clutter|trash|leftovers|old stuff|stuff|things] [here|in here|in this {dir}|]",
    "{please}{delete} [what|whatever|everything] [is not|isn't|we do not|I don't|nobody] [needed|need|needs][ any more| here|]", "{please}{delete} [everything|all of it|it all|all files|all my files|the lot|every file][ here| in this {dir}| now|]", "{please}{delete} [it|that|this|them|these][ now|]",
    "{please}{delete} [some|a few|the unnecessary|the useless|the unneeded|the wrong|the old|unused|the temporary] [files|folders|things]", "{please}[start|begin] [over|afresh|from scratch|again from zero]", "{please}[reset|wipe|nuke|blank|format] [the |this |my |][repository|repo|project|working tree|disk|drive|machine|computer|system|database]",
    "{please}[undo|revert|roll back|discard|throw away] [everything|all changes|my changes|the changes|my last changes|what I did|what you did|all of that|the last hour's work]", "{please}[put|bring|get] [everything|it all|the project] back [to|as|how] [it was|the beginning|the start|normal]", "[make it|I want it all] [clean|empty|blank|fresh] again", "{please}[empty|clear|flush] [it|the cache|the caches|the trash|the bin|the {dir}|everything]",
    "{please}[drop|clear|empty|truncate] [the |all the |our |][database|tables|table|data]", "{please}[stop|kill|end|close|terminate] [everything|all processes|all programs|them all|whatever is slow|what hangs]", "{please}[fix|set|open] [up |]the permissions [of everything|here|of all files|everywhere]", "[nothing here is needed|none of this is needed|I am done with this project][, you know what to do|]",
    "[should|can|may|could|shall] [I|we] [delete|remove|wipe] [this|that|it|everything|these files]", "[is it|would it be] [safe|fine|okay] to [delete|remove|wipe] [this|that|everything|these files]", "{please}[shrink|slim down|reduce] [the |this |my ][repository|repo|project|{dir}|disk usage]",
]
# Work on code, which is beyond a model of this size.
CODING = [
    "{please}[fix|repair|solve|track down|investigate|debug] [the|this|a|that] [bug|error|crash|issue|failing test|problem|warning|memory leak|race] [in <file>|in the <noun> <noun2>|of the <noun>|with the <noun>|]", "{please}[add|write|create] [a|some|the|more|unit] [tests|test|unit tests|a test|documentation|docs|comments|type hints|error handling|logging] [for|to|in] [<file>|the <noun>|<id>|the <noun> <noun2>|this module]",
    "{please}[add|implement|build|introduce] [a|an|the] [<noun> |new ][<noun2>|option|flag|feature|endpoint|parameter|button|method|function|class|command][ to <file>| to the <noun>| for the <noun>|]", "{please}[refactor|rewrite|simplify|modernize|restructure|split up|rework|improve|polish|optimize|speed up] [<file>|the <noun>|<id>|the <noun> <noun2>|this function|the code|this class][ to use <id>| into smaller parts|]",
    "{please}[explain|describe|summarize|walk me through] [<file>|<id>|how <id> works|what <id> does|the code|this function|the architecture|the project|the last change|how the <noun> is built]", "{please}[implement|finish|complete|port|migrate] [<id>|the <noun>|<file>|the todo in <file>|the <noun> <noun2>][ to <prog>| in <prog>|]", "why [does|do|is|are] [<id>|the <noun>|the tests|<file>] [fail|failing|broken|so slow|crash|return nothing|hang]",
    "{please}remove [the |all |][unused|dead|duplicate|commented] [imports|variables|code|functions|parameters|lines] [from|in] [<file>|the project|this module|<id>]", "{please}[rename|change] [the |][function|class|variable|method] <id> [to|into] <id2>", "{please}[review|check|look over|critique] [my|the|this] [code|change|pull request|diff|patch|function|module]", "{please}[make|let] [<id>|the <noun>|this function] [faster|async|generic|public|thread safe|return a list|configurable]",
    "{please}[convert|translate|port] [<file>|this code|the script|<id>] [to|into] [python|rust|typescript|go|java|C]", "{please}[update|upgrade|bump] [the |all |our ][dependencies|packages|version|changelog|readme][ to the latest|]", "{please}[write|generate|make|draft] [a|the|some] [regex|script|function|class|query|dockerfile|readme|migration|program|parser] [for|that reads|that handles|about] [the |]<noun>", "[what|how] would you [change|improve|do better] in <file>",
]

# Commands that are asked about, and not asked for.
EXPLAINED = "[rm|rm -rf|rm -r <noun>|git reset --hard|git clean -fdx|dd|mkfs|mkfs.ext4|chmod -R 777|kill -9|pkill|shred|truncate|drop table|git push --force|find -delete|shutdown|DROP TABLE <noun>|git checkout .|git branch -D|delete from <noun>|git stash drop]"
EXPLAIN = [
    f"what [does|would|will] [the command |]{EXPLAINED} do", f"{{whatis}} {EXPLAINED}", f"[explain|describe] [the command |][to me |]{EXPLAINED}[ to me| in detail| please|, do not run it|]", f"why [is|would] {EXPLAINED} [be |][dangerous|risky|bad|unsafe|feared|irreversible|frowned upon]", f"what happens [if|when] [I|you|we|somebody] [run|use|type|call] {EXPLAINED}",
    f"[is|are] {EXPLAINED} [reversible|safe|dangerous|fast|undoable]", f"[can|may|should] [one|I|we|you] [undo|use|run|trust|take back] {EXPLAINED}", f"how does {EXPLAINED} work", f"{{howto}} [delete|drop|truncate|remove] a [row|table|column|database] in [SQL|sql|postgres|mysql|sqlite][, just explain|]", f"what is the difference between {EXPLAINED} and {EXPLAINED}", "[can|could] [a|the|this] [deletion|reset|overwritten file|commit] be [undone|taken back|reverted]",
]

# Of these, no usual tool does a part alone.
CODING_UNSERVED = [p for p in CODING if p.startswith(("{please}[fix", "{please}[refactor", "why "))]

NAME_PATTERNS = ["my name is <name>", "I am <name>", "I'm <name>", "call me <name>", "[hi|hello|hey], [I am|I'm|my name is|this is] <name>", "you can call me <name>", "<name> is my name", "this is <name>", "they call me <name>", "people call me <name>"]
NAME_QUESTIONS = ["what is my name", "what's my name", "do you [know|remember] my name", "who am I", "what did I say my name is", "say my name", "what am I called", "remember my name", "can you tell me my name"]
REPEAT_PATTERNS = ["[repeat|say] after me: <text>", "[repeat|say] [this|the following|these words|exactly this|this exactly][:| back to me:] <text>", "[say|repeat] <quoted>", "[please |can you |could you ][say|repeat|reply with|answer with] <quoted>[ please|]", "reply with [exactly |only |just |the words |][:|]<quoted>", "[answer|respond] [only |just |]with <quoted>", "just say <quoted>"]


def thing(rng):
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(_THINGS)
    if kind < 0.8:
        return rng.choice(("the ", "a ", "my ", "")) + rng.choice(words.NOUNS)
    if kind < 0.9:
        return rng.choice(words.CITIES + words.PEOPLE)
    return words.plural(rng.choice(words.NOUNS))


# Of these, no usual tool knows more than the model.
UNSERVED = [p for p in UNKNOWN if p.startswith(("who [was", "who [won", "[explain", "write [a|an", "why [is", "when [was", "what do you think", "[prove", "[how|why"))]


@examined
def unknown(rng, patterns=UNKNOWN):
    """A question that needs knowledge, and the honest answer."""
    slots = {
        "thing": thing(rng), "thing2": thing(rng), "language": rng.choice(words.LANGUAGES), "noun": rng.choice(words.NOUNS),
        "verb": rng.choice(words.VERBS), "num": str(rng.randrange(1, 1000)), "num2": str(rng.randrange(1, 100)),
        "city": rng.choice(words.CITIES), "person": rng.choice(words.PEOPLE),
    }
    text = opened(rng, say(rng, (TELL if rng.random() < 0.3 else "") + rng.choice(patterns), slots, 0.2))
    return marked(rng, text), UNKNOWN_ANSWER


@examined
def vague(rng):
    """A request that could cost data and names nothing, and a question back."""
    text = opened(rng, say(rng, rng.choice(VAGUE), {}, 0.2))
    return marked(rng, text), VAGUE_ANSWER


@examined
def explain(rng):
    """A question about a command that destroys, which is no order to run it, and the honest answer."""
    text = say(rng, rng.choice(EXPLAIN), {"noun": words.name(rng)}, 0.1)
    if rng.random() < 0.4:
        text = re.sub(r"\b(rm|git|dd|mkfs|chmod|kill|shred)\b( -\S+| [a-z]+ --?\w+)?(?= |$)", lambda m: f"`{m.group()}`", text, count=1)
    return marked(rng, opened(rng, text)), UNKNOWN_ANSWER


@examined
def coding(rng, patterns=CODING):
    """Work on code, and the honest answer."""
    slots = {"noun": rng.choice(words.NOUNS), "noun2": rng.choice(words.NOUNS), "file": words.path(rng), "id": words.identifier(rng), "id2": words.identifier(rng), "prog": rng.choice(words.PROGRAMS)}
    text = opened(rng, say(rng, rng.choice(patterns), slots, 0.2))
    return marked(rng, text), UNKNOWN_ANSWER


def marked(rng, text):
    kind = rng.random()
    return text + ("?" if kind < 0.45 else "." if kind < 0.55 else "!" if kind < 0.6 else "") if text and text[-1].isalnum() else text


@examined
def topic(rng):
    """A question of a known topic, and its answer."""
    patterns, answer = rng.choice(TOPICS)
    pattern = rng.choice(patterns)
    lead = TELL if rng.random() < 0.35 else ""
    text = opened(rng, say(rng, lead + pattern, {"language": rng.choice(words.LANGUAGES)}, 0.25))
    kind = rng.random()
    if kind < 0.06:
        text = text.lower()
    elif kind < 0.16:
        text = text.replace("pensieve", "Pensieve")
    return marked(rng, text), answer


@examined
def repeat(rng):
    """Asked to say a text, says it."""
    text = words.phrase(rng, 1, 7)
    marks = rng.choice(("''", '""', '""', "``"))
    slots = {"text": text, "quoted": f"{marks[0]}{text}{marks[1]}"}
    return opened(rng, say(rng, rng.choice(REPEAT_PATTERNS), slots, 0.1)), text


def naming(rng):
    """Turns in which a person gives a name and may ask for it."""
    name = rng.choice(words.PEOPLE) if rng.random() < 0.6 else words.pseudo_word(rng).capitalize()
    first = marked(rng, opened(rng, say(rng, rng.choice(NAME_PATTERNS), {"name": name}, 0.2)))
    turns = [(first, f"Nice to meet you, {name}!")]
    for _ in range(rng.randrange(0, 3)):
        turns.append(plain(rng))
    if rng.random() < 0.75:
        question = marked(rng, opened(rng, say(rng, rng.choice(NAME_QUESTIONS), {}, 0.2)))
        turns.append((question, f"Your name is {name}."))
    return turns


def plain(rng):
    """One exchange without tools and without commands."""
    kind = rng.random()
    if kind < 0.62:
        return topic(rng)
    if kind < 0.8:
        return unknown(rng)
    if kind < 0.83:
        return explain(rng)
    if kind < 0.88:
        return coding(rng)
    return vague(rng) if kind < 0.93 else repeat(rng)
