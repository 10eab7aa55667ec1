"""Requests for a shell command, each with the one command that answers it.

An intent is a command with slots, and ways to ask for it in the language of phrasing.py. What stands in a slot is copied
from the request, or brought into the form that the command takes ("10 megabytes" becomes 10M).
"""

import json

from . import words
from .phrasing import ended, opened, say

INTENTS = [
    ("ls -la", ["{list} {all} {files} {here}", "{list} {all} {files}{maybehere}", "what [files|documents] are {here}", "what is {here}", "what's in [this|the current] {dir}", "{list} {files} [including|with|and] [the |]hidden [ones|files] {here}", "ls", "dir", "{how} {list} [all |the |]files {here}", "[which|what] files [do I have|are there|exist]{maybehere}", "directory listing", "{list} the {dir} [contents|listing]", "{list} [all |the |]files with [details|permissions|sizes]{maybehere}", "[detailed|long|full] [listing|list] of [the |this |]{dir}", "[everything|all files] in [this|the current] {dir}"]),
    ("ls -la <dir>", ["{list} {all} {files} [in|inside|of|under|within] {thedir}<dir>", "what is [in|inside] {thedir}<dir>", "what files are [in|inside|under] {thedir}<dir>", "{how} {list} the [files|contents] of {thedir}<dir>", "{list} the contents of {thedir}<dir>", "ls <dir>", "{list} [|what is in ]<dir>", "[which|what] files does <dir> [contain|have]"]),
    ("ls -lt", ["{list} [the |all |]files [sorted|ordered|arranged] by [date|time|modification time|modification date|age|last change]{maybehere}", "{list} [the |]files, [newest|most recent|latest] first{maybehere}", "sort [the |]files by [date|time|when they were changed|modification time]", "{list} [the |]most recently [changed|modified|edited] files", "which files [changed|were changed|were modified] [last|most recently]", "{how} {list} files [by|sorted by] [date|modification time]"]),
    ("ls -lS", ["{list} [the |all |]files [sorted|ordered|arranged] by [size|file size|how big they are]{maybehere}", "{list} [the |]files, [largest|biggest] first{maybehere}", "sort [the |]files by [size|file size]", "which files are the [largest|biggest]", "{list} the [largest|biggest] files{maybehere}", "{how} {list} files by size"]),
    ("ls -d */", ["{list} [only |just |][the |all |][directories|folders|subdirectories|subfolders]{maybehere}", "{list} only [the |]{dir} names, [no|not] files", "which [directories|folders|subfolders] are [here|there]", "what [folders|directories|subdirectories] do I have", "{how} {list} only [directories|folders]"]),
    ("ls -R", ["{list} [all |]files [recursively|in all subdirectories|including subdirectories|with all subfolders]", "[recursive|recursively] {list} [of |]{files}", "{list} everything {here} and [below|in its subfolders|all subdirectories]", "recursive listing", "{how} {list} files recursively"]),
    ("ls -d .*", ["{list} [only |just |][the |all |]hidden files{maybehere}", "{list} [the |all |]dotfiles{maybehere}", "which [hidden files|dotfiles] are [here|there]", "what files are hidden{maybehere}", "{list} files [starting|that start] with a dot", "{how} {list} hidden files"]),
    ("pwd", ["where am I", "which {dir} am I in", "{what} the [current|working|present] {dir}", "{what} the [path|full path|location] of the [current|working] {dir}", "what {dir} [is this|are we in]", "{show} [my |the |]current [path|location]", "pwd", "{how} {show} the [current|working] {dir}", "in which {dir} are we", "{show} [the |]working directory"]),
    ("cd <dir>", ["[go|move|change|switch|navigate|jump] [in|]to {thedir}<dir>", "change [the |]{dir} to <dir>", "enter {thedir}<dir>", "cd [to|into] <dir>", "open {thedir}<dir> [in the shell|in the terminal]", "{how} [go|change|switch|get] to {thedir}<dir>", "take me to {thedir}<dir>"]),
    ("cd ..", ["go [up|back] one [level|{dir}]", "[go|move|change] to the parent {dir}", "[go|move] up [a|one] {dir}", "go to the {dir} above", "cd up", "leave this {dir}", "{how} [go|get] to the parent {dir}", "one {dir} up"]),
    ("mkdir -p <dir>", ["{create} [a|a new|the|new] {dir} [called|named|with the name||with name] <dir>", "{create} {dir} <dir>", "mkdir <dir>", "new {dir} <dir>", "{how} {create} a {dir} [called|named] <dir>", "I need a {dir} [called|named] <dir>", "make <dir> as a {dir}", "there should be a {dir} [called|named] <dir>"]),
    ("touch <file>", ["{create} [an|a new|a new, |the|an|a blank|one] [empty |blank |]file [called|named|with the name||with name] <file>", "{create} [empty |]file <file>", "touch <file>", "new [empty |]file <file>", "{how} {create} [an empty|a new] file [called|named] <file>", "I need an empty file [called|named] <file>"]),
    ("rm <file>", ["{delete} {thefile}<file>", "{delete} the file [called|named] <file>", "{how} {delete} {thefile}<file>", "I [do not|don't|no longer] need <file>[ any more|], {delete} it", "get <file> off my disk"]),
    ("rm -r <dir>", ["{delete} the {dir} [called |named |]<dir>", "{delete} {dir} <dir> [and|with] [everything in it|all its contents|its contents|all that is in it]", "{delete} the whole {dir} <dir>", "{delete} the <dir> {dir}", "{how} {delete} the {dir} <dir>", "recursively {delete} [the {dir} |]<dir>"]),
    ("cp <file> <file2>", ["copy {thefile}<file> [to|as|into|over to] <file2>", "make a copy of {thefile}<file> [called|named|as|with the name] <file2>", "duplicate {thefile}<file> [as|to] <file2>", "cp <file> <file2>", "{how} copy <file> to <file2>", "back up {thefile}<file> [as|to] <file2>", "create <file2> as a copy of <file>"]),
    ("cp -r <dir> <dir2>", ["copy the {dir} <dir> to <dir2>", "copy the whole {dir} <dir> [to|into] <dir2>", "make a copy of the {dir} <dir> [called|named|as] <dir2>", "recursively copy <dir> to <dir2>", "duplicate the {dir} <dir> as <dir2>", "{how} copy the {dir} <dir> to <dir2>", "copy {dir} <dir> and [everything in it|all its contents] to <dir2>"]),
    ("mv <file> <file2>", ["rename {thefile}<file> [to|as|into] <file2>", "move {thefile}<file> to <file2>", "mv <file> <file2>", "change the name of {thefile}<file> to <file2>", "{how} [rename|move] <file> to <file2>", "give {thefile}<file> the [new |]name <file2>", "call {thefile}<file> <file2> [instead|from now on]"]),
    ("mv <file> <dir>", ["move {thefile}<file> [to|into] the {dir} <dir>", "put {thefile}<file> [in|into|inside] {thedir}<dir>", "move <file> into <dir>", "{how} [move|put] <file> into the {dir} <dir>", "<file> should [go|be moved] into the {dir} <dir>"]),
    ("cat <file>", ["{show} [the |][contents|content|text] of {thefile}<file>", "{show} {thefile}<file>", "what is [in|inside|written in] {thefile}<file>", "what's in {thefile}<file>", "read {thefile}<file>", "cat <file>", "{how} {show} [the contents of |]{thefile}<file>", "what does {thefile}<file> [say|contain]", "dump {thefile}<file>", "open {thefile}<file>", "let me read {thefile}<file>"]),
    ("head -n <n> <file>", ["{show} the first <n> lines [of|in|from] {thefile}<file>", "first <n> lines of <file>", "{show} the [top|beginning|initial] <n> lines [of|in|from] {thefile}<file>", "head <n> [lines |]<file>", "{how} {show} the first <n> lines of <file>", "the <n> lines at the [top|beginning|start] of <file>", "{what} [in |]the first <n> lines of {thefile}<file>"]),
    ("tail -n <n> <file>", ["{show} the last <n> lines [of|in|from] {thefile}<file>", "last <n> lines of <file>", "{show} the [bottom|final|ending|most recent] <n> lines [of|in|from] {thefile}<file>", "tail <n> [lines |]<file>", "{how} {show} the last <n> lines of <file>", "the <n> lines at the [end|bottom] of <file>", "{what} [in |]the last <n> lines of {thefile}<file>"]),
    ("tail -f <file>", ["follow {thefile}<file>[ as it grows| live|]", "watch {thefile}<file> [grow|as it grows|live|for new lines|for changes]", "keep [showing|printing] new lines of {thefile}<file>", "stream {thefile}<file>", "monitor {thefile}<file> [live|in real time|as it is written]", "tail <file> [live|continuously|and follow]", "{how} [follow|watch] {thefile}<file> [live|in real time|as it grows]", "show me new lines in <file> as they [come|arrive|appear]"]),
    ("wc -l <file>", ["{count} [the |]lines [are in|in|of|does it have in] {thefile}<file>", "how many lines [does {thefile}<file> have|are there in {thefile}<file>|has {thefile}<file>|are in <file>]", "line count [of|for] <file>", "{what} the [number of lines|line count] [in|of] {thefile}<file>", "{how} count [the |]lines [in|of] {thefile}<file>", "length of {thefile}<file> in lines"]),
    ("wc -w <file>", ["{count} [the |]words [are in|in|of] {thefile}<file>", "how many words [does {thefile}<file> have|are there in {thefile}<file>|has {thefile}<file>|are in <file>]", "word count [of|for] <file>", "{what} the [number of words|word count] [in|of] {thefile}<file>", "{how} count [the |]words [in|of] {thefile}<file>"]),
    ("ls | wc -l", ["{count} [the |]files{maybehere}", "how many files are [here|there|in this {dir}|in the current {dir}]", "{what} the number of files {here}", "{how} count [the |]files {here}", "file count{maybehere}", "how many [files|entries|items] does [this|the current] {dir} [have|contain]"]),
    ('find . -name "*.<ext>"', ["{find} {all} [files|documents] with [the |][extension|ending|suffix] <ext>{below}", "{find} {all} <ext> [files|documents]{below}", "{find} {all} .<ext> files{below}", "{find} {all} [files|documents] [ending|that end|whose names end] [in|with] .<ext>{below}", "{find} {all} *.<ext> files{below}", "{how} find [all |]<ext> files{below}", "where are [all |]my <ext> files", "which <ext> files [are there|do I have|exist]{below}", "{find} everything with a .<ext> extension", "{find} files of type <ext>{below}"]),
    ('find . -name "<file>"', ["{find} [a|the|any] file [called|named] <file>{below}", "where is {thefile}<file>", "[find|locate|search for|look for] {thefile}<file>{below}", "{how} find [the |a |]file [called|named] <file>", "in which {dir} is {thefile}<file>", "{find} files [named|called] <file>", "where did I put {thefile}<file>"]),
    ("find . -type f -size +<size>", ["{find} {all} [files|documents] {larger} <size>{below}", "{find} files [above|over] <size>{below}", "{how} find files {larger} <size>{below}", "which files are [larger|bigger] than <size>", "[files|documents] {larger} <size>{below}", "{find} [big|large] files[,|] {larger} <size>{below}", "{find} anything {larger} <size>{below}", "are there [any |]files {larger} <size>", "what files [take|use|occupy] more than <size>"]),
    ("find . -type f -size -<size>", ["{find} {all} [files|documents] {smaller} <size>{below}", "{find} files [below|under] <size>{below}", "{how} find files {smaller} <size>{below}", "which files are smaller than <size>", "[files|documents] {smaller} <size>{below}", "{find} [small|little] files[,|] {smaller} <size>{below}", "{find} anything {smaller} <size>{below}", "are there [any |]files {smaller} <size>", "what files [take|use|occupy] less than <size>"]),
    ("find . -type f -mtime -<n>", ["{find} {all} files [modified|changed|edited|updated|touched|written] [in|within|during|over] the [last|past] <n> days{below}", "{find} files that [changed|were modified|were changed|were edited] in the [last|past] <n> days", "which files [changed|were modified|were edited|did I change|did I edit] in the [last|past] <n> days", "files from the last <n> days", "{how} find files [modified|changed] in the [last|past] <n> days", "{find} files [newer|younger] than <n> days", "{find} files [changed|modified] less than <n> days ago"]),
    ("find . -type f -mtime +<n>", ["{find} {all} files older than <n> days{below}", "{find} files [not|that were not|that have not been] [modified|changed|edited|touched|updated] [in|for|within] [the last |the past |]<n> days", "which files are older than <n> days", "{how} find files older than <n> days", "{find} files [last |]modified more than <n> days ago", "{find} old files, [more|older] than <n> days", "[files|documents] that are more than <n> days old"]),
    ("find . -type f -newermt <date>", ["{find} {all} files [modified|changed|edited|created|written|updated] [since|after] <date>{below}", "{find} files newer than <date>", "which files [changed|were modified|were edited|did I change] [since|after] <date>", "{how} find files [changed|modified|newer] [since|after|than] <date>", "{find} files from after <date>", "everything [changed|modified] since <date>"]),
    ("find . -type f -empty", ["{find} {all} empty files{below}", "{find} files [that are empty|with nothing in them|of size zero|with zero bytes|without content|with no content]{below}", "which files are empty{below}", "{how} find empty files{below}", "are there [any |]empty files{below}", "zero byte files"]),
    ('find . -name "*.<ext>" -delete', ["{delete} {all} <ext> files{below}", "{delete} {all} .<ext> files{below}", "{delete} {all} files [ending in|ending with|with the extension|with extension] .<ext>{below}", "{how} {delete} all <ext> files{below}", "{delete} every <ext> file{below}", "find and {delete} [all |]<ext> files{below}", "clean up [all |]the <ext> files"]),
    ('grep "<word>" <file>', ["{search} for {word}<word> in {thefile}<file>", "[find|show|show me|print|get|list] {word}<word> in {thefile}<file>", "{show} [the |all |]lines [with|containing|that contain|that mention|having] <word> in {thefile}<file>", "{search} {thefile}<file> for {word}<word>", "grep <word> in <file>", "{how} {search} for {word}<word> in {thefile}<file>", "where does {thefile}<file> mention <word>", "which lines of {thefile}<file> contain {word}<word>", "does {thefile}<file> contain {word}<word>"]),
    ('grep -rn "<word>" .', ["{search} for {word}<word> in [all|all the|every] [files|documents|file]{below}", "{search} [recursively|everywhere|in all subdirectories|the whole tree|this directory] for {word}<word>", "which files [contain|mention|have] {word}<word>", "[find|list|show] [all |the |]files [containing|that contain|that mention|with] {word}<word>", "{how} {search} all files for {word}<word>", "where is <word> [mentioned|used]{below}", "{search} all files for {word}<word>", "grep for <word> [recursively|everywhere]"]),
    ('grep -i "<word>" <file>', ["{search} for {word}<word> in {thefile}<file>[,|] [ignoring case|ignoring upper and lower case|case insensitively|case insensitive|regardless of case|no matter the case]", "case insensitive search for <word> in {thefile}<file>", "{search} {thefile}<file> for {word}<word>[,|] [ignoring case|case insensitively|regardless of case]", "{how} {search} {thefile}<file> for <word> [ignoring case|without regard to case]"]),
    ('grep -c "<word>" <file>', ["{count} [the |]lines [that contain|containing|with|mention] <word> in {thefile}<file>", "how [often|many times] does {word}<word> [appear|occur|show up] in {thefile}<file>", "{count} [the |]occurrences of <word> in {thefile}<file>", "{how} count [the |]occurrences of <word> in {thefile}<file>", "how many lines of {thefile}<file> [contain|mention|have] <word>", "count <word> in <file>"]),
    ("sed -i 's/<word>/<word2>/g' <file>", ["replace {word}<word> [with|by] <word2> in {thefile}<file>", "replace [all|every|each] [occurrences of |occurrence of ||instance of |]<word> [with|by] <word2> in {thefile}<file>", "change <word> [to|into] <word2> [in|everywhere in|throughout] {thefile}<file>", "[substitute|swap] <word> [with|by] <word2> in {thefile}<file>", "in {thefile}<file>, [replace|change] <word> [with|to] <word2>", "{how} replace <word> with <word2> in {thefile}<file>", "turn [every |each |]<word> into <word2> in {thefile}<file>"]),
    ("sort <file>", ["sort {thefile}<file>", "sort the lines [of|in] {thefile}<file>", "[order|arrange] the lines [of|in] {thefile}<file>[ alphabetically|]", "{show} {thefile}<file> sorted[ alphabetically|]", "put the lines of {thefile}<file> in [alphabetical |]order", "{how} sort {thefile}<file>[ alphabetically|]", "<file> in alphabetical order"]),
    ("sort -u <file>", ["sort {thefile}<file> and [remove|drop|delete|get rid of|eliminate] [duplicates|duplicate lines|repeated lines]", "{show} [the |only the |only |all |][unique|distinct] lines [of|in|from] {thefile}<file>", "[remove|drop|eliminate|filter out|strip] [duplicates|duplicate lines|repeated lines] from {thefile}<file>", "{how} {show} [the |]unique lines of {thefile}<file>", "sort {thefile}<file> uniquely", "{thefile}<file> without duplicate lines"]),
    ("diff <file> <file2>", ["compare {thefile}<file> [and|with|to] <file2>", "{show} the difference[s|] between <file> and <file2>", "what is [the difference|different] between <file> and <file2>", "how do <file> and <file2> differ", "diff <file> [and|against|with|] <file2>", "{how} compare <file> [and|with] <file2>", "what changed between <file> and <file2>"]),
    ("df -h", ["{what} [the |]free disk space", "how much [disk space|space|storage] is [left|free|available|used]", "how much [free |]space [do I have|is there] [left |]on [the|my] disk", "{show} [the |]disk [usage|space|capacity]", "is the disk full", "how full [is|are] [the|my] [disk|disks|drive|drives]", "{how} {show} [free |]disk space", "how much storage do I have[ left|]", "check [the |]disk space", "disk space"]),
    ("du -sh <dir>", ["how [big|large] is the {dir} <dir>", "how much [space|disk space|room|storage] does {thedir}<dir> [take|use|take up|need|occupy]", "{what} the [size|total size|disk usage] of {thedir}<dir>", "size of the {dir} <dir>", "{how} {show} the size of the {dir} <dir>", "how many bytes are in {thedir}<dir>", "{show} [the |]disk usage of <dir>"]),
    ("free -h", ["how much [memory|ram|RAM] is [left|free|available|used|in use]", "{what} the [memory usage|free memory|available memory|ram usage|amount of free memory]", "{show} [the |][memory|ram|RAM] [usage|use|consumption|statistics|]", "how much [memory|RAM] do I have", "{how} {show} [free memory|memory usage|the memory]", "check the memory", "is there enough [memory|RAM]", "memory usage"]),
    ("ps aux", ["{list} [all |the |all the |][running |active |][processes|programs]", "what is running[| on this machine| right now| on my computer]", "which [processes|programs] are running[| right now| on this machine]", "{how} {list} [all |][running |]processes", "what processes are there", "process list", "{list} all processes"]),
    ("ps aux | grep <prog>", ["is <prog> running", "{find} the [process|processes] [of|called|named|for] <prog>", "{find} [all |]<prog> processes", "check [if|whether] <prog> is [running|up|active]", "which processes belong to <prog>", "{how} [find|see|check] [if|whether] <prog> is running", "is there a <prog> process"]),
    ("kill <pid>", ["[kill|stop|end|terminate|quit|shut down] [the |]process [with |][the |][pid |id |number |]<pid>", "[kill|terminate|end] pid <pid>", "kill <pid>", "{how} [kill|stop|end|terminate] [the |]process [with pid |with id |]<pid>"]),
    ("pkill <prog>", ["[kill|stop|end|terminate|quit|close] [all |the |][processes|process|programs] [called|named|of] <prog>", "[kill|terminate|end] [all |every |]<prog>[ process| processes|]", "{how} [kill|stop|end|terminate] [all |]<prog>[ processes|]", "kill <prog> by name", "shoot down <prog>"]),
    ("uptime", ["how long has [this|the] [machine|computer|system|server|box] been [running|up|on]", "{what} the uptime", "since when is [this|the] [machine|computer|system|server] [running|up|on]", "{what} the [system |]load", "when was [this|the] [machine|computer|system|server] last [restarted|booted|rebooted|started]", "{how} {show} the uptime", "uptime", "{what} the load average"]),
    ("whoami", ["who am I", "which user am I", "{what} my [user |][name|username|account|login]", "what user [is this|am I logged in as|am I running as]", "as whom am I logged in", "{how} {show} my user name", "under which [user|account] [does this run|am I logged in]", "whoami", "{what} the current user"]),
    ("date", ["{what} the [date|time|current date|current time|date and time|time of day]", "what time is it[| now]", "what day is [it|today]", "what's today's date", "today's date", "{how} {show} the [current |][date|time]", "date", "what is the date today"]),
    ("uname -a", ["{what} the [kernel|kernel version|operating system|system information|os version]", "which [kernel|operating system|os|kernel version] [is this|am I running|is running|runs here]", "{show} [the |]system information", "{how} {show} the [kernel version|system information|operating system]", "what [system|os|kernel] [is this|am I on]", "kernel version"]),
    ("hostname", ["{what} the [host name|hostname|name of this machine|name of this computer|machine name|computer name]", "how is this [machine|computer|host|server] called", "what is this [machine|computer|host|server] called", "{how} {show} the [hostname|host name]", "hostname", "which [machine|host|server] am I on"]),
    ("ip addr", ["{what} my [ip|ip address|IP address|IP|network address|network addresses]", "{show} [the |my |all |][ip addresses|network interfaces|IP addresses|network interface addresses]", "which [ip|IP|ip address|IP address] do I have", "{how} {show} my [ip|ip address|IP address]", "what network interfaces are there", "ip address"]),
    ("ping -c <n> <host>", ["ping <host> <n> times", "send <n> [pings|ping packets|packets|echo requests] to <host>", "{how} ping <host> <n> times", "ping <host> with <n> [packets|requests]", "check [if|whether] <host> [answers|responds|is reachable] with <n> [pings|packets]", "<n> pings to <host>"]),
    ("curl <url>", ["[fetch|get|request|load|call|curl|open] <url>", "make a [get |GET |http |]request to <url>", "{show} [the |][contents|content|response|reply|answer] of <url>", "what does <url> [say|return|answer|respond]", "{how} [fetch|get|request] <url>", "send a GET request to <url>"]),
    ("curl -O <url>", ["download <url>", "download the file [at|from] <url>", "save [the file |]<url> [to disk|locally|as a file|to a file]", "{how} download <url>", "fetch <url> and [save|keep|store] it[ as a file|]", "get a [local |]copy of <url>"]),
    ("lsof -i :<port>", ["[what|which process|which program|who] [is using|uses|listens on|is listening on|occupies|is on|blocks|holds] port <port>", "{find} the [process|program] [on|using|listening on|that uses] port <port>", "is [port <port> in use|something on port <port>|anything listening on port <port>|port <port> taken|port <port> free]", "{how} [see|find|check] [what uses|what is on|which process uses|who uses] port <port>", "check port <port>"]),
    ("tar -czf <archive> <dir>", ["[compress|pack|archive|bundle|tar] {thedir}<dir> [into|to|as|in] <archive>", "{create} [a|an|the] [tarball|archive|tar archive|compressed archive|tar file] [called |named |]<archive> [of|from|with|out of|containing] {thedir}<dir>", "{how} [compress|pack|archive] {thedir}<dir> [into|as] <archive>", "tar up <dir> [as|into] <archive>", "make <archive> [from|out of] {thedir}<dir>"]),
    ("tar -xzf <archive>", ["[extract|unpack|untar|decompress|uncompress|open] [the |][archive |tarball |file ||]<archive>", "[extract|unpack] everything [from|in] <archive>", "{how} [extract|unpack|untar|open] [the archive |]<archive>", "unpack the contents of <archive>"]),
    ("zip -r <zip> <dir>", ["[zip|compress|pack|archive|bundle] {thedir}<dir> [into|to|as|in] <zip>", "{create} [a|the] [zip|zip file|zip archive] [called |named |]<zip> [of|from|with|out of|containing] {thedir}<dir>", "{how} [zip|compress|pack] {thedir}<dir> [into|as] <zip>", "zip up <dir> [as|into] <zip>", "make <zip> [from|out of] {thedir}<dir>"]),
    ("unzip <zip>", ["[unzip|extract|unpack|decompress|open] [the |][zip |zip file |archive ||]<zip>", "[extract|unpack] everything [from|in] <zip>", "{how} [unzip|extract|unpack|open] [the zip file |]<zip>", "unpack the contents of <zip>"]),
    ("chmod +x <file>", ["make {thefile}<file> executable", "[let|allow] {thefile}<file> [be executed|run|to be run|to be executed]", "[give|add] {thefile}<file> [execute|execution|executable] [permission|permissions|rights]", "{how} make {thefile}<file> executable", "mark {thefile}<file> [as |]executable", "set the executable [bit|flag] [on|of|for] <file>", "I want to be able to execute <file>"]),
    ("chmod <mode> <file>", ["[set|change] the [permissions|permission|mode|rights|access rights] [of|on|for] {thefile}<file> to <mode>", "chmod {thefile}<file> [to|with] <mode>", "chmod <mode> <file>", "give {thefile}<file> [the |][mode|permissions|permission] <mode>", "{how} [set|change] the [permissions|mode] of <file> to <mode>", "{thefile}<file> should have [mode|permissions] <mode>"]),
    ("chown <user> <file>", ["[change|set] the owner of {thefile}<file> to <user>", "make <user> [the |][owner|the owner] of {thefile}<file>", "[give|hand] [ownership of |]{thefile}<file> [over |]to [the user |]<user>", "{how} [change|set] the owner of <file> to <user>", "{thefile}<file> should belong to <user>", "let <user> own {thefile}<file>"]),
    ("ln -s <file> <name>", ["{create} a [symbolic link|symlink|soft link|link] [called|named] <name> [to|pointing to|that points to|pointing at] {thefile}<file>", "[symlink|link] {thefile}<file> [as|to] <name>", "{create} a [symbolic link|symlink|soft link] [from <name> to|to] <file> [|named <name>|called <name>|as <name>]", "{how} {create} a [symlink|symbolic link] [called|named] <name> to <file>"]),
    ("printenv", ["{list} [all |the |all the |my |][environment variables|env variables|env vars|environment]", "which environment variables are [set|defined|there]", "what is in [my|the] environment", "{how} {list} [all |the |]environment variables", "printenv", "env"]),
    ("printenv <var>", ["{what} the value of [the environment variable |the variable |the env variable |$|]<var>", "{show} [the |][environment |env |]variable <var>", "what is <var> set to", "what is the [environment variable|env var] <var>", "{how} {show} the [value of the |][environment |]variable <var>", "what does the environment say for <var>"]),
    ("export <var>=<value>", ["set [the |][environment |env |]variable <var> to <value>", "export <var> [as|with|with the value|=] <value>", "let <var> be <value>", "{how} set [the |][environment |]variable <var> to <value>", "define <var> as <value>", "<var> should be <value> in [my|the] environment"]),
    ("which <prog>", ["where is [the program |the command |the binary |the executable |]<prog> [installed|located]", "{what} the path [of|to] [the program |the command |the binary |]<prog>", "which <prog> [is used|do I use|will be run|is it|would run]", "is <prog> installed", "{how} [find|see] where <prog> is installed", "locate the [program|binary|executable|command] <prog>"]),
    ("history", ["{show} [the |my |][command|shell|bash] history", "which commands did I [run|type|use|enter][ before| lately| so far|]", "what did I type [before|earlier]", "{list} [my |the |all |][earlier|previous|past|last] commands", "{how} {show} my [command |]history", "history"]),
    ("git status", ["{what} the [git status|state of the repository|state of the repo|status of the repository|status of my git repo]", "what [has changed|did I change|is changed] in [git|the repository|this repo|the repo]", "which files [are changed|are modified|are staged|have I changed] [in git|in the repository|in this repo]", "{show} [the |]git status", "{how} {show} the git status", "is the working tree clean", "do I have uncommitted changes", "git status"]),
    ("git log --oneline -n <n>", ["{show} the last <n> [commits|git commits|entries of the git log]", "{list} the [latest|most recent|newest|last] <n> commits", "what were the last <n> commits", "{how} {show} the last <n> commits", "git log[ with|,| of|] the last <n> commits", "<n> [latest|most recent|last] commits"]),
    ("git checkout -b <branch>", ["{create} a [new |][git |]branch [called|named] <branch>", "{create} and [switch to|check out] [a|the] [new |]branch [called |named |]<branch>", "[start|open] a new branch <branch>", "new [git |]branch <branch>", "{how} {create} a [new |][git |]branch [called|named] <branch>", "branch off [as|into] <branch>"]),
    ("git checkout <branch>", ["[switch|change|go|move] to [the |][git |]branch <branch>", "check out [the |][git |]branch <branch>", "checkout <branch>", "{how} [switch|change|go] to [the |][git |]branch <branch>", "put me on [the |]branch <branch>"]),
    ('git commit -m "<msg>"', ["commit [my changes |the changes |everything |this |it |what is staged |]with [the |][commit |]message <msg>", "commit [as|saying] <msg>", "make a commit [called|with the message|saying|named] <msg>", "{how} commit with the message <msg>", "git commit with message <msg>", "record a commit with the text <msg>"]),
    ("git add <file>", ["[stage|git add] {thefile}<file>", "[stage|add] {thefile}<file> [for|to] [the next |]commit", "add {thefile}<file> to [git|the index|the staging area|the repository]", "{how} [stage|add] {thefile}<file> [in|to] git", "put {thefile}<file> under version control"]),
    ("git diff", ["{show} [the |my |][unstaged |uncommitted |][changes|modifications] [in git|in the repository|in the repo|I made|since the last commit]", "{show} the [git |]diff", "what did I [change|edit] [since the last commit|compared to the last commit]", "{how} {show} my [uncommitted |unstaged |]changes[ in git|]", "git diff", "diff [against|with] the last commit"]),
    ("git push", ["push [my|the|all] [commits|changes|work]", "push to [the remote|origin|the server|github|upstream]", "[send|upload|publish] my commits [to the remote|to the server|to github|]", "{how} push [my |]commits", "git push", "push"]),
    ("git pull", ["pull [the |]latest [changes|commits|version]", "[get|fetch] the latest [changes|commits|version] from [the remote|origin|the server|github|upstream]", "update [my|the|this] [repository|repo|checkout|branch]", "{how} [pull|get] the latest changes", "git pull", "bring [the|my|this] [repository|repo] up to date"]),
    ("git clone <giturl>", ["clone [the repository |the repo |]<giturl>", "[get|make] a clone of <giturl>", "{how} clone [the repository |]<giturl>", "git clone <giturl>", "check out the repository [at|from] <giturl>", "download the [repository|repo|git repository] <giturl>"]),
    ("git branch", ["{list} [all |the |all the |my |][git |local |]branches", "which [git |]branches [are there|do I have|exist]", "what branches [are there|do I have|exist]", "{how} {list} [all |the |][git |]branches", "which branch am I on", "git branch"]),
    ("python3 <pyfile>", ["{run} [the |][python |][script|program|file] <pyfile>", "{run} <pyfile>[ with python| in python| using python|]", "{how} {run} [the |][python |][script |]<pyfile>", "[start|execute] python with <pyfile>", "python <pyfile>"]),
    ("bash <shfile>", ["{run} [the |][shell |bash |][script |]<shfile>", "{run} <shfile>[ with bash| in bash| using bash|]", "{how} {run} the [shell |bash |]script <shfile>", "bash <shfile>"]),
    ("pip install <pkg>", ["install [the |][python |pip |][package|library|module] <pkg>", "install <pkg> [with|using|via|through|by] pip", "pip install <pkg>", "{how} install [the |][python |][package |library |]<pkg>[ with pip| for python|]", "get [me |]the python [package|library|module] <pkg>", "add <pkg> to my python [packages|environment|installation]"]),
    ('echo "<msg>"', ["[print|echo|output|write] <msg>[ to the terminal| to the screen| to stdout| in the shell|]", "[print|echo|output|write] the [text|words|message|string] <msg>", "{how} [print|echo|output] [the text |]<msg>", "let the shell say <msg>"]),
    ("sha256sum <file>", ["{what} the [sha256|sha-256|SHA256|sha256 checksum|SHA-256 hash|checksum|hash] of {thefile}<file>", "[compute|calculate] the [sha256|sha-256|SHA256|checksum|hash|sha256 sum] [of|for] {thefile}<file>", "[checksum|hash] {thefile}<file>", "{how} [compute|calculate|get] the [sha256|checksum|hash] of {thefile}<file>"]),
    ("file <file>", ["what [kind|type|sort] of file is <file>", "{what} the [file type|type|format] of {thefile}<file>", "which [type|kind|format] [has|does] {thefile}<file>[| have]", "{how} [find out|see] what [kind|type] of file <file> is", "determine the [type|format] of {thefile}<file>"]),
    ("nproc", ["how many [cpus|cores|processors|cpu cores|CPUs|CPU cores] [are there|do I have|does this machine have|are available|has this machine]", "{what} the number of [cpus|cores|processors|cpu cores|CPU cores]", "{count} [the |][cpus|cores|processors|cpu cores]", "{how} {show} the number of [cpus|cores|processors]", "core count"]),
    ("ssh <user>@<host>", ["[log in|login|connect|ssh] to <host> as [user |the user |]<user>", "ssh [in|]to <host> [as|with] [user |the user |]<user>", "[open|start] [a|an] [ssh session|ssh connection|shell] [on|to] <host> as <user>", "{how} [log in|connect] to <host> as <user>", "log <user> in [on|at] <host>"]),
    ("scp <file> <user>@<host>:<dir>", ["[copy|send|upload|transfer] {thefile}<file> to {thedir}<dir> on <host> as [user |]<user>", "[copy|send|upload|transfer] {thefile}<file> as [user |]<user> to <host>[,| and| into|, into] {thedir}<dir>", "{how} [copy|send|upload] <file> to <dir> on <host> as <user>", "scp <file> to <user> at <host> [into|in|under] <dir>"]),
    ("sleep <n>", ["[wait|sleep|pause] [for |]<n> seconds", "do nothing for <n> seconds", "{how} [wait|sleep|pause] [for |]<n> seconds", "[make a|take a] pause of <n> seconds", "<n> seconds of [sleep|waiting]"]),
]

# Requests that stand alone as a bare program's name are only understood where no tool could be meant.
_MODES = ("644", "600", "755", "700", "640", "750", "777", "400", "444", "664", "775", "500")
_SIZES = (("M", ("MB", " MB", " megabytes", "M", "mb", " mb", " Mb", " meg", " MiB", " megabyte")), ("k", ("KB", " KB", " kilobytes", "k", "kb", " kb", "K", " KiB", " kilobyte")), ("G", ("GB", " GB", " gigabytes", "G", "gb", " gb", " gigs", " GiB", " gigabyte")))


def quoted(rng, text, share=0.25):
    """Some people put names between quotes."""
    if rng.random() >= share:
        return text
    marks = rng.choice(("''", '""', "``", "''"))
    return f"{marks[0]}{text}{marks[1]}"


def _plain(make):
    def slot(rng):
        value = make(rng)
        return quoted(rng, value), value
    return slot


def _size(rng):
    unit, spoken = rng.choice(_SIZES)
    number = rng.choice((1, 2, 3, 4, 5, 8, 10, 12, 15, 16, 20, 25, 30, 32, 40, 50, 60, 64, 75, 80, 100, 128, 150, 200, 250, 256, 300, 400, 500, 512, 700, 800, 900, rng.randrange(1, 1024)))
    return f"{number}{rng.choice(spoken)}", f"{number}{unit}"


def _count(rng):
    return (str(n := rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 20, 25, 30, 40, 50, 60, 90, 100, 200, 365, 500, 1000, rng.randrange(2, 2000)))), str(n))


def _date(rng):
    value = f"{rng.randrange(1998, 2032)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
    return quoted(rng, value, 0.1), value


def _quoted_text(rng):
    value = words.phrase(rng, 1, 6)
    marks = rng.choice(("''", '""', '""', "``"))
    return f"{marks[0]}{value}{marks[1]}", value


def _word(rng):
    kind = rng.random()
    value = words.word(rng) if kind < 0.7 else rng.choice(("error", "TODO", "warning", "import", "main", "failed", "password", "localhost", "FIXME", "hello", "def", "true", "name", "http", "timeout"))
    if kind > 0.93:
        value = words.phrase(rng, 2, 3)
        return quoted(rng, value, 1.0), value
    return quoted(rng, value, 0.45), value


def _url(rng):
    host = rng.choice(words.HOSTS[:8]) if rng.random() < 0.5 else f"{words.pseudo_word(rng)}.{rng.choice(('com', 'org', 'net', 'io', 'dev'))}"
    tail = rng.choice(("", "/", f"/{words.name(rng)}", f"/{words.name(rng)}/{words.file_name(rng)}", f"/{words.file_name(rng)}", f":{rng.randrange(1000, 9999)}/{words.name(rng)}"))
    return f"{rng.choice(('https', 'https', 'http'))}://{host}{tail}"


def _file_url(rng):
    return f"https://{rng.choice(words.HOSTS[:5])}/{words.name(rng)}/{words.file_name(rng)}" if rng.random() < 0.7 else _url(rng)


def _branch(rng):
    return rng.choice(("main", "develop", "feature-" + words.name(rng), "feature/" + words.name(rng), "fix-" + words.name(rng), "bugfix/" + words.name(rng), words.name(rng), "release-" + str(rng.randrange(1, 20))))


SLOTS = {
    "dir": _plain(words.directory),
    "dir2": _plain(words.directory),
    "file": _plain(words.path),
    "file2": _plain(words.path),
    "pyfile": _plain(lambda r: (words.name(r) if r.random() < 0.8 else r.choice(("main", "train", "app", "script", "test"))) + ".py"),
    "shfile": _plain(lambda r: (words.name(r) if r.random() < 0.8 else r.choice(("run", "build", "deploy", "install", "setup"))) + ".sh"),
    "ext": lambda r: (e := r.choice(words.EXTENSIONS), e),
    "size": _size,
    "n": _count,
    "pid": lambda r: (n := str(r.randrange(2, 99999)), n),
    "port": lambda r: (n := str(r.choice((80, 443, 8000, 8080, 3000, 5432, 5000, 22, 6379, 8888, r.randrange(1024, 65536)))), n),
    "date": _date,
    "word": _word,
    "word2": _word,
    "msg": _quoted_text,
    "prog": _plain(lambda r: r.choice(words.PROGRAMS) if r.random() < 0.75 else words.pseudo_word(r)),
    "pkg": _plain(lambda r: r.choice(words.PACKAGES) if r.random() < 0.6 else words.name(r)),
    "host": lambda r: (h := r.choice(words.HOSTS) if r.random() < 0.6 else f"{words.pseudo_word(r)}.{r.choice(('com', 'org', 'net', 'io'))}", h),
    "url": _plain(_url),
    "giturl": _plain(lambda r: f"https://{r.choice(('github.com', 'gitlab.com', 'example.org'))}/{words.pseudo_word(r)}/{words.name(r)}" + r.choice(("", ".git")) if r.random() < 0.8 else f"git@github.com:{words.pseudo_word(r)}/{words.name(r)}.git"),
    "archive": _plain(lambda r: words.name(r) + r.choice((".tar.gz", ".tar.gz", ".tgz"))),
    "zip": _plain(lambda r: words.name(r) + ".zip"),
    "mode": lambda r: (m := r.choice(_MODES), m),
    "user": _plain(lambda r: r.choice(words.PEOPLE).lower() if r.random() < 0.6 else r.choice(("root", "admin", "www-data", "deploy", "ubuntu", words.pseudo_word(r)))),
    "name": _plain(words.name),
    "branch": _plain(_branch),
    "var": lambda r: (v := r.choice(("PATH", "HOME", "EDITOR", "LANG", "API_KEY", "DEBUG", "PORT", "USER", "JAVA_HOME", "_".join(w.upper().replace("-", "_") for w in (r.choice(words.NOUNS), r.choice(words.NOUNS))))), v),
    "value": _plain(lambda r: words.word(r) if r.random() < 0.7 else str(r.randrange(10000))),
}


def fill(command, values):
    for key, value in values.items():
        command = command.replace(f"<{key}>", value)
    return command


def request(rng, intents=INTENTS):
    """A request and the command that answers it."""
    command, patterns = intents[int(rng.random() * len(intents))]
    pattern = rng.choice(patterns)
    texts, values = {}, {}
    for key, make in SLOTS.items():
        if f"<{key}>" in command:
            texts[key], values[key] = make(rng)
    asking = pattern.startswith(("what", "which", "where", "who", "how", "is ", "are ", "does", "in which", "{how}", "{what}", "{count}", "when", "since"))
    frame = pattern if asking else "{please}" + pattern + "{thanks}"
    text = opened(rng, say(rng, frame, texts, 0.25))
    if asking and rng.random() < 0.5:
        text += "?"
    elif rng.random() < 0.2 and text[-1].isalnum():
        text += "."
    return text, fill(command, values)


def answer(command):
    """What the model says where it has no tools."""
    return json.dumps({"cmd": command}, ensure_ascii=False)
