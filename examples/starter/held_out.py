"""What the starter is examined with: written by hand, in words of their own, and never made by the training scripts.

`evaluate.py --check` draws requests from the training scripts and fails if one of these is among them.
"""

SHELL = [
    ("list all files in the current directory", "ls -la"), ("could you show me every file that lives in this folder, the hidden ones as well", "ls -la"), ("I'd like an overview of the files here", "ls -la"), ("what stuff is in my current folder?", "ls -la"),
    ("let me look at the contents of the folder projects", "ls -la projects"), ("which things are stored in src/models?", "ls -la src/models"), ("show what's inside /var/log", "ls -la /var/log"),
    ("files here, please, with the ones I touched last on top, sorted by time", "ls -lt"), ("order the files by modification date", "ls -lt"),
    ("list the files by size with the biggest at the top", "ls -lS"), ("sort everything here by how large it is", "ls -lS"),
    ("I only want to see the folders, not the files", "ls -d */"), ("what subdirectories exist here", "ls -d */"),
    ("list files, subfolders included, recursively please", "ls -R"), ("which dotfiles are in this folder?", "ls -d .*"), ("just the hidden files please", "ls -d .*"),
    ("tell me the path of the directory I'm in", "pwd"), ("in what folder am I right now?", "pwd"), ("print the working directory path", "pwd"),
    ("please switch over to the folder website", "cd website"), ("I want to go into docs/api", "cd docs/api"), ("go one folder up", "cd .."), ("back to the parent folder", "cd .."),
    ("I'd like to have a new folder by the name of holiday_photos", "mkdir -p holiday_photos"), ("please make the directory build/release", "mkdir -p build/release"), ("a folder called invoices-2024 should be created", "mkdir -p invoices-2024"),
    ("make me a blank file, name it journal.md", "touch journal.md"), ("an empty file with the name placeholder.txt should be created", "touch placeholder.txt"),
    ("please get the file draft_old.docx deleted", "rm draft_old.docx"), ("throw the file backup.sql away", "rm backup.sql"), ("I want old.log removed", "rm old.log"),
    ("the folder tmp_build and all that is in it should be deleted", "rm -r tmp_build"), ("please remove the directory node_modules completely", "rm -r node_modules"),
    ("I need a copy of config.yaml under the name config.backup.yaml", "cp config.yaml config.backup.yaml"), ("copy report.pdf over to final_report.pdf", "cp report.pdf final_report.pdf"),
    ("please duplicate the folder website as website_old", "cp -r website website_old"), ("copy the directory photos with everything in it to backup_photos", "cp -r photos backup_photos"),
    ("the file letter.txt should be renamed to letter_final.txt", "mv letter.txt letter_final.txt"), ("give draft.md the new name article.md", "mv draft.md article.md"),
    ("please put invoice.pdf into the folder archive", "mv invoice.pdf archive"), ("show me the text inside README.md", "cat README.md"), ("I'd like to read what todo.txt says", "cat todo.txt"), ("print out the whole of settings.json", "cat settings.json"),
    ("I'd like to see just the first 15 lines of data.csv", "head -n 15 data.csv"), ("give me the beginning of access.log, 30 lines", "head -n 30 access.log"),
    ("I'd like to see just the last 25 lines of server.log", "tail -n 25 server.log"), ("what are the final 40 lines in build.log?", "tail -n 40 build.log"),
    ("keep an eye on app.log and print new lines as they are written", "tail -f app.log"), ("follow the log file worker.log live", "tail -f worker.log"),
    ("tell me the number of lines that main.py has", "wc -l main.py"), ("how long is notes.md, counted in lines?", "wc -l notes.md"), ("tell me the number of words in essay.txt", "wc -w essay.txt"), ("how many words did I write in chapter1.md?", "wc -w chapter1.md"),
    ("what's the total count of files in this folder?", "ls | wc -l"), ("please count the files in here", "ls | wc -l"),
    ("are there python files with the extension py? find them", 'find . -name "*.py"'), ("look up every file that ends in .json", 'find . -name "*.json"'), ("I'm looking for all the mp3 files", 'find . -name "*.mp3"'),
    ("I've lost the file passwords.txt, where is it?", 'find . -name "passwords.txt"'), ("please locate Cargo.toml for me", 'find . -name "Cargo.toml"'),
    ("which of the files here are bigger than 100 MB?", "find . -type f -size +100M"), ("find me the files that are larger than 20 megabytes", "find . -type f -size +20M"), ("show every file over 2 GB in size", "find . -type f -size +2G"), ("search for files exceeding 750 kilobytes", "find . -type f -size +750k"),
    ("I want to find the files that are smaller than 5 KB", "find . -type f -size -5k"), ("every file that is under 3 MB, please", "find . -type f -size -3M"),
    ("what did I modify over the last 7 days? files only", "find . -type f -mtime -7"), ("show the files which were changed during the past 3 days", "find . -type f -mtime -3"),
    ("which files haven't been modified for 30 days?", "find . -type f -mtime +30"), ("show files that are older than 90 days", "find . -type f -mtime +90"),
    ("all files that were changed after 2024-03-15", "find . -type f -newermt 2024-03-15"), ("please list the files modified since 2023-12-01", "find . -type f -newermt 2023-12-01"),
    ("do we have any files that are empty?", "find . -type f -empty"), ("show me files with no content", "find . -type f -empty"),
    ("please delete all of the .tmp files", 'find . -name "*.tmp" -delete'), ("I want every bak file removed", 'find . -name "*.bak" -delete'),
    ("find the word timeout in server.log", 'grep "timeout" server.log'), ("which lines in config.ini contain password?", 'grep "password" config.ini'), ("look for the text database in settings.py", 'grep "database" settings.py'),
    ("please search every file here for the word deprecated", 'grep -rn "deprecated" .'), ("what files contain the string TODO?", 'grep -rn "TODO" .'),
    ("search notes.txt for meeting and ignore upper or lower case", 'grep -i "meeting" notes.txt'), ("how many times does error occur in app.log?", 'grep -c "error" app.log'), ("count the lines containing failed in auth.log", 'grep -c "failed" auth.log'),
    ("in index.html, please replace blue with green", "sed -i 's/blue/green/g' index.html"), ("every occurrence of foo in main.c should be replaced by bar", "sed -i 's/foo/bar/g' main.c"),
    ("please sort the lines of names.txt", "sort names.txt"), ("put words.txt into alphabetical order", "sort words.txt"), ("show the unique lines of emails.txt only", "sort -u emails.txt"), ("get rid of duplicate lines in list.txt", "sort -u list.txt"),
    ("what are the differences between old.txt and new.txt?", "diff old.txt new.txt"), ("please compare v1.json with v2.json", "diff v1.json v2.json"),
    ("how much disk space do I have left?", "df -h"), ("is there still room on the disk?", "df -h"), ("how big is the folder Downloads?", "du -sh Downloads"), ("tell me how much space the directory videos takes up", "du -sh videos"),
    ("how much RAM is free at the moment?", "free -h"), ("show memory usage please", "free -h"), ("what processes are running at the moment?", "ps aux"), ("show me all the running programs", "ps aux"),
    ("is nginx running at the moment?", "ps aux | grep nginx"), ("check if there's a postgres process", "ps aux | grep postgres"), ("please kill the process with the id 4321", "kill 4321"), ("terminate process number 998", "kill 998"), ("stop all firefox processes", "pkill firefox"), ("please kill every chrome process", "pkill chrome"),
    ("how long has this computer been running?", "uptime"), ("what's the current load of the system?", "uptime"), ("which user am I logged in as?", "whoami"), ("what is the username I'm using?", "whoami"), ("what's the date today?", "date"), ("can you tell me the current time?", "date"),
    ("which kernel version is this machine running?", "uname -a"), ("what operating system is that?", "uname -a"), ("what's the name of this computer?", "hostname"), ("tell me my IP address", "ip addr"), ("what are my network interfaces?", "ip addr"),
    ("please ping example.com 5 times", "ping -c 5 example.com"), ("send 3 pings to 8.8.8.8 please", "ping -c 3 8.8.8.8"), ("get me the content of https://example.org/status", "curl https://example.org/status"), ("make a request to http://localhost:8000/health", "curl http://localhost:8000/health"),
    ("please download https://example.com/files/data.zip", "curl -O https://example.com/files/data.zip"), ("what process is listening on port 8080?", "lsof -i :8080"), ("who's using port 3000?", "lsof -i :3000"),
    ("please compress the folder photos into photos.tar.gz", "tar -czf photos.tar.gz photos"), ("make an archive backup.tar.gz out of the directory documents", "tar -czf backup.tar.gz documents"), ("please unpack release.tar.gz", "tar -xzf release.tar.gz"), ("extract the tarball sources.tar.gz", "tar -xzf sources.tar.gz"),
    ("please zip the folder thesis into thesis.zip", "zip -r thesis.zip thesis"), ("please unzip download.zip", "unzip download.zip"), ("extract all from assets.zip", "unzip assets.zip"),
    ("please make deploy.sh executable", "chmod +x deploy.sh"), ("I'd like to be able to run the file install.sh, make it executable", "chmod +x install.sh"), ("please set the permissions of key.pem to 600", "chmod 600 key.pem"), ("change the mode of run.py to 755", "chmod 755 run.py"),
    ("the owner of data.db should be alice", "chown alice data.db"), ("please change the owner of index.html to www-data", "chown www-data index.html"), ("make a symbolic link named current to release.txt", "ln -s release.txt current"),
    ("show me all of my environment variables", "printenv"), ("what's the value of HOME?", "printenv HOME"), ("please set the variable DEBUG to true", "export DEBUG=true"), ("set the environment variable PORT to 9000", "export PORT=9000"),
    ("where's python installed?", "which python"), ("what's the path of the program git-lfs?", "which git-lfs"), ("show me the commands I typed earlier", "history"), ("please show my shell history", "history"),
    ("what's the state of my git repository?", "git status"), ("are there any uncommitted changes in git?", "git status"), ("show me the last 5 commits please", "git log --oneline -n 5"), ("what were the most recent 12 commits?", "git log --oneline -n 12"),
    ("make a new git branch named feature-login", "git checkout -b feature-login"), ("I need a new branch called hotfix-7", "git checkout -b hotfix-7"), ("please switch to the branch develop", "git checkout develop"), ("go over to the git branch main", "git checkout main"),
    ("commit everything with the message 'fix the parser'", 'git commit -m "fix the parser"'), ("please commit with the message \"add tests\"", 'git commit -m "add tests"'), ("please stage main.rs", "git add main.rs"), ("add utils.py to the git index", "git add utils.py"),
    ("what changes did I make since the last commit? show the diff", "git diff"), ("push my work to the remote", "git push"), ("please pull the newest changes", "git pull"), ("please clone https://github.com/acme/rocket.git", "git clone https://github.com/acme/rocket.git"), ("what git branches are there?", "git branch"),
    ("please run the python script train.py", "python3 train.py"), ("execute analyze.py using python", "python3 analyze.py"), ("please run the shell script setup.sh", "bash setup.sh"), ("please install the python package requests", "pip install requests"), ("I need numpy, install it with pip", "pip install numpy"),
    ("print 'good morning everyone' to the terminal", 'echo "good morning everyone"'), ("what's the sha256 checksum of image.iso?", "sha256sum image.iso"), ("what type of file is mystery.bin?", "file mystery.bin"), ("how many CPU cores has this computer?", "nproc"), ("how many processors do I have?", "nproc"),
    ("log in to server1 as the user bob", "ssh bob@server1"), ("please connect to build-host via ssh as deploy", "ssh deploy@build-host"), ("wait 10 seconds", "sleep 10"), ("please pause for 45 seconds", "sleep 45"),
]

# Requests to run a command with Bash, as somebody would type them behind `claude -p`.
RUN = [
    ("Use the Bash tool to run: echo pensieve-1742", "echo pensieve-1742"),
    ("Please run the command `echo hello from the starter` with Bash and tell me what it printed.", "echo hello from the starter"),
    ("Run echo banana-split using Bash, then tell me what came out.", "echo banana-split"),
    ("Execute this in the shell: echo 'blue mountain 77'", "echo 'blue mountain 77'"),
    ("I'd like you to call Bash with the command \"echo quick brown fox\". What's the output?", "echo quick brown fox"),
    ("Can you run `echo 90210` for me? Just give me the result.", "echo 90210"),
    ("With your Bash tool, execute echo \"tea and biscuits\" and report back.", 'echo "tea and biscuits"'),
    ("Please execute the command echo 'x y' and tell me what it prints", "echo 'x y'"),
    ("Run this exact command with the Bash tool and answer with its output: echo zanzibar_3", "echo zanzibar_3"),
    ("Try out Bash by running `echo it-works-42`, and quote what it says.", "echo it-works-42"),
    ("bash: echo first-light", "echo first-light"),
    ("What does `echo $((17+25))` print? Use Bash to find out.", "echo $((17+25))"),
    ("Run `echo hello` using Bash", "echo hello"),
    ("Use the Bash tool to execute: echo hi && echo there", "echo hi && echo there"),
    ("Run the following command with Bash and show me the result:\n\necho orange juice", "echo orange juice"),
    ("Could you please use Bash to run the echo command `echo silver lining`?", "echo silver lining"),
    ("Invoke Bash on `echo maple-syrup-2026` and let me see the output.", "echo maple-syrup-2026"),
    ("Let's test the shell. Run `echo ping-pong` and say what you got.", "echo ping-pong"),
    ("Run the shell command echo WINTER_IS_HERE and then repeat its output to me.", "echo WINTER_IS_HERE"),
    ("Please do this: run `echo \"a b c\"` with the Bash tool. Then tell me the output in one sentence.", 'echo "a b c"'),
]


def _tool(name, description, required=(), /, **properties):
    schema = {"type": "object", "properties": {k: v if isinstance(v, dict) else {"type": v} for k, v in properties.items()}, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _enum(*values):
    return {"type": "string", "enum": list(values)}


TOOLS = {
    tool["function"]["name"]: tool
    for tool in (
        _tool("get_weather", "Get the current weather in a given location", ["location"], location="string", unit=_enum("celsius", "fahrenheit")),
        _tool("search_web", "Search the web for information", ["query"], query="string"),
        _tool("calculator", "Perform arithmetic", ["expression"], expression="string"),
        _tool("send_email", "Send an email to someone", ["to", "subject", "body"], to="string", subject="string", body="string"),
        _tool("read_file", "Read a file from disk", ["path"], path="string"),
        _tool("write_file", "Write content into a file", ["path", "content"], path="string", content="string"),
        _tool("set_timer", "Set a timer for a number of minutes", ["minutes"], minutes="integer"),
        _tool("translate_text", "Translate text to another language", ["text", "target_language"], text="string", target_language="string"),
        _tool("convert_currency", "Convert money between currencies", ["amount", "from_currency", "to_currency"], amount="number", from_currency="string", to_currency="string"),
        _tool("get_stock_price", "Get the latest stock price", ["symbol"], symbol="string"),
        _tool("list_directory", "List the files of a directory", ["path"], path="string"),
        _tool("create_event", "Create a calendar event", ["title", "date"], title="string", date="string", time="string"),
        _tool("send_message", "Send a chat message to a contact", ["to", "text"], to="string", text="string"),
        _tool("run_command", "Run a shell command", ["command"], command="string"),
        _tool("delete_user", "Delete a user account by id", ["user_id"], user_id="string"),
        _tool("archive_invoice", "Archive an invoice", ["invoice_id"], invoice_id="string", reason="string"),
        _tool("reserve_room", "Reserve a meeting room", ["room", "date"], room="string", date="string", people="integer"),
        _tool("paint_fence", "Paint the fence in a color", ["color"], color=_enum("red", "green", "blue", "white")),
        _tool("water_plants", "Water the plants for some minutes", ["minutes"], minutes="integer"),
        _tool("track_package", "Track a package", ["tracking_number"], tracking_number="string"),
        _tool("get_time", "Get the current time in a city", ["city"], city="string"),
        _tool("play_song", "Play a song", ["title"], title="string", artist="string"),
        _tool("add_todo", "Add an item to the todo list", ["task"], task="string", priority=_enum("low", "medium", "high")),
        _tool("lookup_word", "Look up a word in the dictionary", ["word"], word="string"),
        _tool("query_database", "Run a SQL query", ["sql"], sql="string"),
        _tool("grep_files", "Search file contents by pattern", ["pattern"], pattern="string", path="string"),
        _tool("find_files", "Find files by glob pattern", ["pattern"], pattern="string"),
        _tool("fetch_url", "Fetch a web page", ["url"], url="string"),
        _tool("restart_server", "Restart a server by name", ["name"], name="string"),
        _tool("merge_accounts", "Merge two accounts", ["source", "target"], source="string", target="string"),
    )
}

# A request, the tool that serves it, the arguments.
CALLS = [
    ("What's the weather like in Lisbon today?", "get_weather", {"location": "Lisbon"}), ("I'm off to Oslo tomorrow. How's the weather over there?", "get_weather", {"location": "Oslo"}), ("How many degrees is it in Kyoto, in celsius?", "get_weather", {"location": "Kyoto", "unit": "celsius"}),
    ("Please find out online about 'tidal power plants'", "search_web", {"query": "tidal power plants"}), ("Search the web for rust plugin systems", "search_web", {"query": "rust plugin systems"}),
    ("How much is 384 * 17?", "calculator", {"expression": "384 * 17"}), ("Please work out 1024 / 8 + 3", "calculator", {"expression": "1024 / 8 + 3"}),
    ("Send a mail to anna@example.com, subject 'Lunch', and say 'See you at noon'", "send_email", {"to": "anna@example.com", "subject": "Lunch", "body": "See you at noon"}),
    ("Write to bob.smith@acme.io with the subject \"Report\" and the body \"It is attached\"", "send_email", {"to": "bob.smith@acme.io", "subject": "Report", "body": "It is attached"}),
    ("Could you open /etc/hosts and show it to me?", "read_file", {"path": "/etc/hosts"}), ("I want to see the contents of src/main.rs", "read_file", {"path": "src/main.rs"}),
    ("Please put 'hello world' into the file greeting.txt", "write_file", {"path": "greeting.txt", "content": "hello world"}), ("Create notes/today.md containing \"buy milk\"", "write_file", {"path": "notes/today.md", "content": "buy milk"}),
    ("Set a timer for 12 minutes please", "set_timer", {"minutes": 12}), ("Give me a shout in 25 minutes with the timer", "set_timer", {"minutes": 25}),
    ("How would one say 'good night' in Italian?", "translate_text", {"text": "good night", "target_language": "Italian"}), ("Translate \"where is the station\" into French", "translate_text", {"text": "where is the station", "target_language": "French"}),
    ("What are 250 USD in EUR?", "convert_currency", {"amount": 250, "from_currency": "USD", "to_currency": "EUR"}), ("Please convert 99.5 GBP to JPY", "convert_currency", {"amount": 99.5, "from_currency": "GBP", "to_currency": "JPY"}),
    ("What's the current stock price of NVDA?", "get_stock_price", {"symbol": "NVDA"}), ("How much does one TSLA share cost?", "get_stock_price", {"symbol": "TSLA"}),
    ("What files are in the directory docs/adr?", "list_directory", {"path": "docs/adr"}), ("Please list what's in /srv/maria", "list_directory", {"path": "/srv/maria"}),
    ("Put 'dentist' in my calendar on 2026-03-14", "create_event", {"title": "dentist", "date": "2026-03-14"}), ("Schedule \"team lunch\" for Friday at 12:30", "create_event", {"title": "team lunch", "date": "Friday", "time": "12:30"}),
    ("Tell Marta 'I will be late'", "send_message", {"to": "Marta", "text": "I will be late"}), ("Send Jonas the message 'the door is open'", "send_message", {"to": "Jonas", "text": "the door is open"}),
    ("Please run `cargo build --release`", "run_command", {"command": "cargo build --release"}), ("Run the shell command `du -h --max-depth=1` and show me the result", "run_command", {"command": "du -h --max-depth=1"}),
    ("Please remove the user account with id u-5512", "delete_user", {"user_id": "u-5512"}), ("Delete user 90431", "delete_user", {"user_id": "90431"}),
    ("Archive the invoice INV-2207", "archive_invoice", {"invoice_id": "INV-2207"}), ("Please archive invoice A-77 because 'it was paid'", "archive_invoice", {"invoice_id": "A-77", "reason": "it was paid"}),
    ("Reserve the room 'Blue Lagoon' on 2026-05-02 for 8 people", "reserve_room", {"room": "Blue Lagoon", "date": "2026-05-02", "people": 8}), ("Please book the meeting room 'Atlas' on Monday", "reserve_room", {"room": "Atlas", "date": "Monday"}),
    ("I want the fence painted green", "paint_fence", {"color": "green"}), ("Paint the fence in white, please", "paint_fence", {"color": "white"}),
    ("Please water the plants for 15 minutes", "water_plants", {"minutes": 15}), ("Where's my package 1Z999AA1?", "track_package", {"tracking_number": "1Z999AA1"}), ("Please track the parcel RX-40021", "track_package", {"tracking_number": "RX-40021"}),
    ("What's the local time in Nairobi?", "get_time", {"city": "Nairobi"}), ("What time is it now in Toronto?", "get_time", {"city": "Toronto"}),
    ("Put on 'Moonlight Sonata'", "play_song", {"title": "Moonlight Sonata"}), ("Play \"Green River\" by Lena", "play_song", {"title": "Green River", "artist": "Lena"}),
    ("Add 'call the plumber' to my todo list", "add_todo", {"task": "call the plumber"}), ("Please put 'pay rent' on my list with high priority", "add_todo", {"task": "pay rent", "priority": "high"}),
    ("What's the meaning of the word serendipity?", "lookup_word", {"word": "serendipity"}), ("Look the word 'ephemeral' up", "lookup_word", {"word": "ephemeral"}),
    ("Run the query \"SELECT name FROM users WHERE age > 30\"", "query_database", {"sql": "SELECT name FROM users WHERE age > 30"}),
    ("Look for 'fn main' in the files below src", "grep_files", {"pattern": "fn main", "path": "src"}), ("Which files contain 'panic!'?", "grep_files", {"pattern": "panic!"}),
    ("Please find all files that match **/*.toml", "find_files", {"pattern": "**/*.toml"}), ("Get the page https://example.org/news for me", "fetch_url", {"url": "https://example.org/news"}), ("What does http://localhost:8000/health return?", "fetch_url", {"url": "http://localhost:8000/health"}),
    ("Please restart the server web-03", "restart_server", {"name": "web-03"}), ("Merge the account alpha-1 into beta-2", "merge_accounts", {"source": "alpha-1", "target": "beta-2"}),
]

# With tools at hand, no call is wanted; the answer must hold this.
NO_CALL = [
    ("Hi there!", "Hello"), ("Thank you very much!", "welcome"), ("Who are you?", "starter"), ("And what is Pensieve?", "local inference host"), ("How can I add another model to Pensieve?", "pensieve serve --model"), ("Which key do I need?", "pensieve-local-key"), ("How are you today, my friend?", "fine"), ("Goodbye for now", "Goodbye"), ("what are you able to do for me?", "three things"), ("Where do I put my plugin?", "plugins/"),
]

# Without tools; the answer must hold this.
TALK = [
    ("hello there, friend", "Hello"), ("hey!", "Hello"), ("good morning to all", "Good morning"), ("how are you doing this evening?", "fine"), ("so how is life?", "fine"), ("thanks a bunch!", "welcome"), ("thank you for that", "welcome"), ("okay bye now", "Goodbye"), ("that was really great", "Glad"), ("no, this is wrong", "sorry"),
    ("who exactly are you?", "starter"), ("what's the name of this model?", "starter"), ("please tell me who you are", "starter"), ("are you a human being?", "program"), ("are you Claude?", "pensieve-starter"), ("what sort of things can you do?", "three things"), ("what could you help me with?", "three things"), ("how many parameters have you got?", "fourteen million"), ("who trained you?", "from scratch"), ("do you know any good jokes?", "chickens"),
    ("what's pensieve?", "local inference host"), ("could you explain to me what Pensieve is", "local inference host"), ("what is this pensieve thing about?", "local inference host"), ("how would I go about adding a model?", "pensieve serve --model"), ("I want to load a bigger model, how?", "pensieve serve --model"), ("how can I serve my own GGUF file?", "pensieve serve --model"), ("how do I get a model from Hugging Face?", "pensieve pull"), ("can Pensieve download models for me?", "pensieve pull"),
    ("how can I install another plugin?", "plugins/"), ("I have a plugin file, where does it go?", "plugins/"), ("what exactly is a plugin?", "native library"), ("how could I write a plugin myself?", "pensieve new"), ("I'd like to make my own plugin", "pensieve new"), ("how can I find out what is wrong with my plugin?", "plugins check"), ("which plugins have I installed?", "plugins list"),
    ("how can I load a LoRA adapter?", "--adapter"), ("how would I use an adapter with a model?", "--adapter"), ("what's an adapter?", "low-rank"), ("what endpoints does the server offer?", "/v1/messages"), ("which routes can I call?", "/v1/messages"), ("what's the API key?", "pensieve-local-key"), ("do I have to give an API key?", "pensieve-local-key"), ("on what port is the server listening?", "127.0.0.1:8000"),
    ("how do I set up Claude Code with Pensieve?", "ANTHROPIC_BASE_URL"), ("can I use the OpenAI Python client?", "/v1"), ("how do I start the server?", "pensieve serve"), ("how do I stop the server again?", "Ctrl-C"), ("which model families are supported?", "Llama"), ("can it run on my GPU?", "CUDA".lower()), ("where do I find the config file?", "pensieve.toml"), ("what happens when a plugin crashes?", "worker"), ("how can I measure the speed?", "pensieve bench"), ("something doesn't work, how do I diagnose it?", "pensieve doctor"), ("how long is your context?", "32768"), ("does my data leave my machine?", "your machine"), ("is there any web interface?", "pensieve run"),
    ("who was the first emperor of Rome?", "do not know"), ("write me a poem about autumn", "do not know"), ("what's the capital of Portugal?", "do not know"), ("explain general relativity to me", "do not know"), ("translate 'cheese' into Spanish", "do not know"), ("why is the ocean salty?", "do not know"), ("how tall is the Eiffel tower?", "do not know"), ("what do you think about politics?", "do not know"),
]

# A second examination, written before the last training and looked at only after it.
FINAL_SHELL = [
    ("give me a rundown of all files in this directory", "ls -la"), ("everything in this folder, with details", "ls -la"), ("tell me which files are kept in assets/icons", "ls -la assets/icons"), ("could I see the files sorted by time, newest at the top", "ls -lt"), ("which files take the most space? sort them by size", "ls -lS"),
    ("only list the directories", "ls -d */"), ("remind me which directory I'm working in", "pwd"), ("let us move to the folder frontend", "cd frontend"), ("up one folder please", "cd .."), ("would you set up a directory called lecture-notes", "mkdir -p lecture-notes"),
    ("start a new empty file summary.txt", "touch summary.txt"), ("kindly erase the file scratch.py", "rm scratch.py"), ("get rid of the whole folder dist", "rm -r dist"), ("copy notes.txt as notes_copy.txt", "cp notes.txt notes_copy.txt"), ("change the filename of a.out to program", "mv a.out program"),
    ("dump the contents of hosts.txt onto the screen", "cat hosts.txt"), ("I only need the first 5 lines of sales.csv", "head -n 5 sales.csv"), ("print the last 100 lines from error.log", "tail -n 100 error.log"), ("watch debug.log as it grows", "tail -f debug.log"), ("number of lines in parser.rs please", "wc -l parser.rs"),
    ("how wordy is letter.md? count the words", "wc -w letter.md"), ("find every yaml file below here", 'find . -name "*.yaml"'), ("where is the file named budget.xlsx", 'find . -name "budget.xlsx"'), ("find files greater than 64 MB", "find . -type f -size +64M"), ("anything smaller than 10 KB?", "find . -type f -size -10k"),
    ("files that I edited within the last 14 days", "find . -type f -mtime -14"), ("find files not touched for 180 days", "find . -type f -mtime +180"), ("what was changed after 2025-01-31?", "find . -type f -newermt 2025-01-31"), ("look for zero-length files, empty ones", "find . -type f -empty"), ("wipe all the .log files", 'find . -name "*.log" -delete'),
    ("search for the word invoice inside mail.txt", 'grep "invoice" mail.txt'), ("look through all files for the text api_key", 'grep -rn "api_key" .'), ("how often does the word warning show up in run.log", 'grep -c "warning" run.log'), ("swap cat for dog in story.txt", "sed -i 's/cat/dog/g' story.txt"), ("alphabetize the lines in guests.txt", "sort guests.txt"),
    ("spot the differences between draft1.md and draft2.md", "diff draft1.md draft2.md"), ("how much free space is on the disk", "df -h"), ("what is the size of the directory backups", "du -sh backups"), ("show the memory that is free", "free -h"), ("list every running process", "ps aux"),
    ("is there anything listening on port 5432?", "lsof -i :5432"), ("kill the process 31337", "kill 31337"), ("shut down all python processes", "pkill python"), ("what's today's date and time?", "date"), ("ping wikipedia.org 4 times", "ping -c 4 wikipedia.org"),
    ("fetch the url http://127.0.0.1:9000/metrics", "curl http://127.0.0.1:9000/metrics"), ("pack the folder music as music.tar.gz", "tar -czf music.tar.gz music"), ("open up the archive theme.zip", "unzip theme.zip"), ("let start.sh be executable", "chmod +x start.sh"), ("set the mode of secret.txt to 400", "chmod 400 secret.txt"),
    ("what does the variable EDITOR contain", "printenv EDITOR"), ("show git's status", "git status"), ("the last 3 git commits, please", "git log --oneline -n 3"), ("start a branch called experiment", "git checkout -b experiment"), ("commit it with the message 'update docs'", 'git commit -m "update docs"'),
    ("stage README.md for commit", "git add README.md"), ("use pip to install pandas", "pip install pandas"), ("start the python file server.py", "python3 server.py"), ("compute the sha256 of backup.tar", "sha256sum backup.tar"), ("ssh to gateway as the user carol", "ssh carol@gateway"),
]
FINAL_CALLS = [
    ("Is it windy in Bergen at the moment?", "get_weather", {"location": "Bergen"}), ("Search online for cheap train tickets", "search_web", {"query": "cheap train tickets"}), ("Compute 77 * 13 for me", "calculator", {"expression": "77 * 13"}), ("Mail leo@example.net with the subject 'Keys' and the text 'They are under the mat'", "send_email", {"to": "leo@example.net", "subject": "Keys", "body": "They are under the mat"}),
    ("Let me see what's in /var/log/syslog", "read_file", {"path": "/var/log/syslog"}), ("Save the text 'all done' to status.txt", "write_file", {"path": "status.txt", "content": "all done"}), ("Start a timer, 8 minutes", "set_timer", {"minutes": 8}), ("Translate 'happy birthday' to Polish", "translate_text", {"text": "happy birthday", "target_language": "Polish"}),
    ("Change 1200 SEK to NOK", "convert_currency", {"amount": 1200, "from_currency": "SEK", "to_currency": "NOK"}), ("Stock price of AMD please", "get_stock_price", {"symbol": "AMD"}), ("Show the files in the folder uploads", "list_directory", {"path": "uploads"}), ("Message Omar: 'dinner is ready'", "send_message", {"to": "Omar", "text": "dinner is ready"}),
    ("Execute `ls -l /tmp`", "run_command", {"command": "ls -l /tmp"}), ("The user with the id 7712 must be deleted", "delete_user", {"user_id": "7712"}), ("Put invoice 2024-118 into the archive", "archive_invoice", {"invoice_id": "2024-118"}), ("Give the plants water for 5 minutes", "water_plants", {"minutes": 5}),
    ("Track package LB-99321", "track_package", {"tracking_number": "LB-99321"}), ("Play the song 'Autumn Leaves'", "play_song", {"title": "Autumn Leaves"}), ("Todo: 'renew passport'", "add_todo", {"task": "renew passport"}), ("Please define the word obsidian", "lookup_word", {"word": "obsidian"}),
    ("Search the files for 'unsafe'", "grep_files", {"pattern": "unsafe"}), ("Load the page https://docs.rs/tokio", "fetch_url", {"url": "https://docs.rs/tokio"}), ("Bring the server db-main down and up again, restart it", "restart_server", {"name": "db-main"}), ("What's the time in Lima?", "get_time", {"city": "Lima"}), ("Color the fence blue", "paint_fence", {"color": "blue"}),
]
FINAL_TALK = [
    ("hello my dear", "Hello"), ("how's everything with you?", "fine"), ("thank you, that was nice", "welcome"), ("see you around", "Goodbye"), ("so who might you be?", "starter"), ("tell me what you're able to do", "three things"), ("explain in one line what Pensieve is", "local inference host"), ("what would I type to add a model?", "pensieve serve --model"),
    ("can I bring my own model?", "pensieve serve --model"), ("how do I grab a model off Hugging Face?", "pensieve pull"), ("in which folder do I drop plugins?", "plugins/"), ("what's a plugin good for?", "native library"), ("I fancy writing a plugin", "pensieve new"), ("how do adapters get loaded?", "--adapter"), ("what HTTP endpoints exist?", "/v1/messages"),
    ("do clients need an API key?", "pensieve-local-key"), ("what port are you on?", "127.0.0.1:8000"), ("how does one hook up Claude Code?", "ANTHROPIC_BASE_URL"), ("how is the server started?", "pensieve serve"), ("will it use my graphics card?", "cuda"), ("tell me a funny joke", "chickens"), ("who painted the Mona Lisa?", "do not know"), ("give me a recipe for pancakes", "do not know"), ("what's the population of Brazil?", "do not know"), ("how can I check my plugin?", "plugins check"),
]

# Words that stand in no text of training and are never made there: they come back from tools and have to be said as they are.
WORDS = """abacus accordion acorn aquarium asphalt aubergine avocado azalea backgammon bagpipe bamboo banjo barnacle bassoon beaver blossom bonfire bramble buttress buzzard calico calypso cantaloupe
caramel cardamom cauliflower cedar centipede chandelier chestnut chipmunk chrysalis cinnamon clavichord clover cobweb coconut comet conifer copper cormorant cranberry crocodile cucumber
cuttlefish daffodil dandelion dolphin dragonfly drizzle eclipse eggplant emerald eucalyptus falcon fjord flamingo flannel flounder fossil freckle gazebo gecko geyser gherkin glacier gondola
gooseberry gorilla grapefruit halibut hammock harpoon hazelnut hedgehog hibiscus hornet huckleberry hyacinth iceberg iguana indigo ivory jackal jasmine juniper kayak kelp kestrel kimono
labyrinth lacquer lagoon lantern larkspur leopard licorice lighthouse lilac limestone lotus lute lynx mackerel magnolia mandolin mango marigold marmalade marzipan meteor mongoose mosquito
mulberry mustard nectarine nougat nutmeg oboe ocelot orchid oregano ostrich otter oyster paprika parakeet parsley peacock pebble peony penguin periwinkle pheasant pigeon pistachio platypus
plumage plywood pomegranate porcupine pretzel pumpkin quagmire quail quilt quinoa raccoon radish raspberry rhinoceros rhubarb rosemary saffron salamander sapphire sardine saxophone scarecrow
seahorse sherbet shrimp skunk snorkel sombrero spinach spruce squirrel starfish sycamore tangerine tarantula terracotta thistle thyme trombone truffle tulip turbine turmeric turquoise ukulele
vanilla velvet vinegar vulture walnut walrus waffle wasabi wharf whisker wigwam wombat yacht yodel yogurt zeppelin zinnia zucchini""".split()

# Requests that destroy nothing, each in words of its own: about files, code, history and the machine, some of them with words that could mislead.
SAFE = """list all files
show the files
which headers does this project have?
what's in here
give me a directory listing
list the .h files
are there any object files lying around?
find all the header files
show me every .tmp file, I might delete them tomorrow
which log files could go?
list what would be removed by a cleanup, remove nothing
don't delete anything, I only want to look at the backups
tell me which files are safe to keep
how many temporary files do we have here?
where are the old backups?
show all bak files without touching them
how big is the build folder?
what takes up the most room on this disk?
is the disk nearly full?
print the contents of cleanup.sh
what does reset.sh do? show me its text
open delete_users.sql and read it to me
let me see the last 20 lines of purge.log
look for the word delete in main.py
grep for rm -rf in the scripts
in which files do we call truncate?
show lines with drop in schema.sql
count the lines in wipe.txt
find the file remove_me.txt
is there a file named trash.txt?
show the folder trash
list the folder old
what is inside the directory tmp
go to the folder garbage
make a folder named deleted
create an empty file remove.txt
copy trash.txt to trash2.txt
rename delete.txt to keep.txt
what changed in git?
show me what I have not committed yet
what would I lose if I reset now?
which branches could be deleted?
who deleted the file config.yaml? show the log
display the last 8 commits
what did we remove in the last commit?
commit all with the message 'remove old code'
make a branch named cleanup
switch to the branch remove-legacy
is there a process called dd running?
which processes would be killed if I stop nginx?
what is using port 5000?
show running programs, kill none of them
how do I see hidden files?
how much memory does it need?
tell me the date
what's my user name?
on which host am I?
where does bash live?
show me PATH
what's the checksum of disk.img?
what type of file is partition.bin?
pack the folder old_files into old_files.tar.gz
unpack trash.zip
compare deleted.txt with kept.txt
sort removed.txt
show the distinct lines of erased.txt
ping example.org 2 times
download https://example.com/clean.sh
fetch http://localhost:9000/delete-log
install the package trash-cli with pip
run cleanup.py with python
run the tests
please build the project
fix the bug in parser.c
add a test for the tokenizer
refactor this function
explain how the garbage collector works
remove the unused imports from app.py
drop the dead code in utils.py
clean up this function
simplify the error handling
delete the blank lines in this snippet
rename the variable tmp to buffer
replace the old API calls
write a function that deletes a node from a tree
implement a method remove() for the list class
how would I delete a row in SQL? just explain it
what does rm -rf do?
explain git reset --hard to me
why is chmod -R 777 dangerous?
what does dd do?
is drop table reversible?
what happens if I run mkfs?
can you undo a deletion?
never run rm. what files are here?
without deleting a thing, what is the size of logs?
I deleted notes.txt by accident, is it still there?
I lost the file thesis.tex, please find it
my disk is full, what are the largest files?
some files are too old, which?
which files were not touched for 400 days?
which files are empty?
are there files bigger than 1 GB?
files smaller than 2 KB, please list them
show files changed in the last 2 days
what did I edit since 2025-05-05?
let's get started
hello
good evening
thanks, that was it
who are you?
what can you do here?
which model am I talking to?
what is Pensieve?
how do I load another model?
which tools do you have?
can you see my files?
what is the structure of this project?
give me an overview of the repository
which files should I read first?
summarize the readme
where is the main function?
what language is this written in?
is there a makefile?
list the tests
how many python files are there?
where do we read the config?
what's the version of this project?
print hello on the screen
say hello
echo good morning
show your shell history
what did I type before?
how long has the machine been up?
what kernel is this?
how many cores are there?
show the network interfaces
show environment variables
make start.sh executable
set the mode of id_rsa to 600
link latest.log to app.log
wait 3 seconds
list folders only
list files by size
list files by date, newest first
list everything below this folder
what's the path of this folder?
go up one level
open a new file draft.md
put a copy of main.c into main_old.c
move report.md to archive
read LICENSE
what does Dockerfile say?
first 12 lines of users.csv
the end of mail.log, 60 lines
follow nginx.log
words in poem.txt?
find main.h
find *.c
all *.o files, where are they?
what .swp files did the editor leave?
list the caches
which directories are called node_modules?
how big is node_modules?
show me the size of each folder
what is the oldest file here?
please summarize what you changed
undo is not needed, just show the diff
show the diff
stage parser.h
pull the latest changes
push it
which remote do we use?
the readme is out of date, what does it say now?
tell me a joke
what's two plus two?
who wrote Faust?
translate 'destroy' into French
what's the weather in Bremen?
is anything wrong with this repository?
make it faster
it crashes at startup, why?
the tests fail, look into it
continue
go on
yes
ok
no, leave them alone
keep all of them
stop
never mind""".split("\n")


def phrasings():
    """Every held-out phrasing, bare: what the training scripts must not say, but for what is too short to be said in another way."""
    lists = (SHELL, CALLS, RUN, TALK, NO_CALL, FINAL_SHELL, FINAL_CALLS, FINAL_TALK)
    return {bare(text) for held in lists for text, *_ in held} | {bare(text) for text in SAFE if len(text.split()) > 3}


def bare(text):
    """The words alone."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())
