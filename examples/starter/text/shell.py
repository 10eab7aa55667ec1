"""Requests for a shell command, each with the one command that answers it.

An intent is a command with slots, and ways to ask for it in the language of phrasing.py. What stands in a slot is copied
from the request, or brought into the form that the command takes ("10 megabytes" becomes 10M).
"""

import json
import re

from . import words
from .phrasing import examined, opened, say

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
    ('find . -name "*.<ext>" -delete', ["{delete} {all} <ext> files{below}", "{delete} {all} .<ext> files{below}", "{delete} {all} files [ending in|ending with|with the extension|with extension] .<ext>{below}", "{how} {delete} all <ext> files{below}", "{delete} every <ext> file{below}", "find and {delete} [all |]<ext> files{below}", "{delete} [all |]these <ext> files"]),
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

# More ways, most of them turned around: what shall become of a thing, rather than what to do.
_MORE = {
    "ls -la": ["[what|which] [stuff|things|documents|files] [do we have|can be found|lie|live|are there] {here}", "{list} [every|each] file {here}", "[see|look] what [is|there is|we have] {here}", "[look at|inspect|view] [this|the current] {dir}", "the [files|contents] {here}", "{list} files [as well as|along with|and also] [hidden files|dotfiles] {here}", "{list} [stuff|things] {here}"],
    "ls -la <dir>": ["[what|which] [stuff|things|documents|files] [do we have|can be found|lie|live|are kept|are stored|are there] [in|inside|under] {thedir}<dir>", "[look|see|peek|check] [into|inside|what is in|what lies in] {thedir}<dir>", "[look at|inspect|view] {thedir}<dir>", "the [files|contents] of {thedir}<dir>", "show what <dir> [contains|holds|has in it]"],
    "ls -lt": ["[files|the files|everything] {here}[,|] [newest|latest|most recent] [first|on top|at the top]", "[order|arrange|sort] [everything|all|it all|the files|my files] {here} by [date|time|modification date|when it changed]", "{list} [files|the files] by [age|date|modification time]", "[by|sorted by] [time|date][,|] {list} [the files|files]"],
    "ls -lS": ["[files|the files|everything] {here}[,|] [largest|biggest|heaviest] [first|on top|at the top]", "[order|arrange|sort] [everything|all|it all|the files|my files|things] {here} by [size|how big it is|how much space it takes]", "{list} [files|the files] by [size|bytes]", "[by|sorted by] [size][,|] {list} [the files|files]", "the [size order|biggest ones] {here}"],
    "ls -d */": ["[just|only] [the |my |][folders|directories|subfolders] {here}[, no files|, please|]", "I [only |just |]want [the |][folders|directories|subfolders]", "[folders|directories] only", "what [folders|directories|subdirectories] [can be found|exist|are there|do we have] {here}"],
    "ls -R": ["[files|everything] {here}[,|] [with|including] [what is in the subfolders|all levels|nested folders|subfolders]", "the [whole|entire|full] [tree|directory tree] of files"],
    "ls -d .*": ["[just|only] [the |my |][hidden files|dotfiles|dot files] {here}", "I [only |just |]want [the |][hidden files|dotfiles]", "what [dotfiles|hidden files] [can be found|exist|are there|do we have] {here}"],
    "pwd": ["{show} [the |][path|full path|location] [I am at|I'm in|of this place|of this {dir}|where I am]", "what's the [path|name] of [this|the current] {dir}", "what is my [location|directory|folder]", "tell me where [I am|we are] [in the file system|now|]", "[in which|what|which] {dir} [do I stand|am I|are we|do we work]"],
    "cd <dir>": ["[step|hop|get|dive|proceed|head] [over to|into|to] {thedir}<dir>", "[let's|let us] [work|be] in {thedir}<dir>", "I [want|need|have] to [be in|get into|work in] {thedir}<dir>", "make <dir> the [current|working] {dir}", "[bring|put] me [to|in|into] {thedir}<dir>"],
    "cd ..": ["[back|return] to the [parent|upper|higher|containing] {dir}", "[step|climb|hop] [up|out] [one |a ][level|{dir}]", "the {dir} [above|one up|over this one]", "[back|up] one [level|{dir}|step]"],
    "mkdir -p <dir>": ["[a|a new|the|one] {dir} [called|named|with the name|by the name of] <dir> {be} [created|made|set up|there]", "{want} [a|a new|the] {dir} [called|named|with the name|by the name] <dir>", "<dir> {be} a [new |]{dir}", "[could we have|can I have|there must be|let there be] a {dir} [called|named] <dir>", "a [new |]{dir} <dir>[ please|]", "{create} the [path|directory path|directories] <dir>"],
    "touch <file>": ["[an empty|a blank|a new|a new empty] {doc} [called|named|with the name|by the name of] <file> {be} [created|made|there]", "{want} [an empty|a blank|a new|a new empty] {doc} [called|named|with the name|by the name] <file>", "{create} [me |][an empty|a blank] {doc}[,| and] [name|call] it <file>", "[an empty|a blank] {doc} <file>"],
    "rm <file>": ["[the file |]<file> {be} {deleted}", "{want} [the file |]<file> {deleted}", "[throw|take|put] [the file |]<file> [away|out|in the trash|in the bin]", "<file> [is useless|is not needed|can go|must go|should go], {delete} it"],
    "rm -r <dir>": ["the {dir} <dir> {be} {deleted}", "{want} the {dir} <dir> {deleted}", "[throw|take|put] the {dir} <dir> [away|out|in the trash]", "the {dir} <dir> [and|with] [everything|all] [in it|that is in it|inside] {be} {deleted}", "{delete} the {dir} <dir> [completely|entirely|with its files|and everything inside]"],
    "cp <file> <file2>": ["{want} a [copy|duplicate] of <file> [called|named|under the name|as|in] <file2>", "<file> {be} copied [to|as|into] <file2>", "[put|save|store] a copy of <file> [as|in|under|at] <file2>", "have <file> [also as|copied to|twice, once as] <file2>", "clone [the file |]<file> [as|into|to] <file2>"],
    "cp -r <dir> <dir2>": ["{want} a [copy|duplicate] of the {dir} <dir> [called|named|under the name|as] <dir2>", "the {dir} <dir> {be} copied [to|as|into] <dir2>", "clone the {dir} <dir> [as|into|to] <dir2>", "copy the {dir} <dir> [with|and] [everything|all] [in it|inside|its files] to <dir2>", "duplicate {thedir}<dir> [as|to|under the name] <dir2>"],
    "mv <file> <file2>": ["[the file |]<file> {be} [renamed|called|named|moved] [to |]<file2>", "{want} [the file |]<file> renamed [to|as|into] <file2>", "let [the file |]<file> be [called|named] <file2>", "the [new |]name of <file> {be} <file2>", "[rename|retitle] <file>[;| and| so that] it [is called|is named|becomes] <file2>"],
    "mv <file> <dir>": ["[the file |]<file> {be} [moved|put] [to|into|in] the {dir} <dir>", "{want} [the file |]<file> [moved to|put into|in] the {dir} <dir>", "[bring|shift|transfer] [the file |]<file> [to|into] the {dir} <dir>", "[file|drop|place|stick] <file> [in|into|under] the {dir} <dir>"],
    "cat <file>": ["the [text|content|contents|whole text] [of|inside|in] {thefile}<file>", "{want} to [read|see|look at] [the text of |what is in |what {thefile}says in |]<file>", "[the whole|all] of <file>[, please|]", "[print|write] [out |]the whole [of |]{thefile}<file>", "what [stands|is written] in {thefile}<file>", "what <file> [says|contains|holds]"],
    "head -n <n> <file>": ["the [first|top|initial] <n> lines [of|in|from] {thefile}<file>[, please|]", "the [beginning|start|top] of {thefile}<file>, <n> lines", "<n> lines from the [start|beginning|top] of {thefile}<file>", "{want} to see [only |just |][the |]first <n> lines of {thefile}<file>", "[only|just] the first <n> lines of {thefile}<file>"],
    "tail -n <n> <file>": ["the [last|bottom|final|closing] <n> lines [of|in|from] {thefile}<file>[, please|]", "the [end|bottom] of {thefile}<file>, <n> lines", "<n> lines from the [end|bottom] of {thefile}<file>", "{want} to see [only |just |][the |]last <n> lines of {thefile}<file>", "[only|just] the last <n> lines of {thefile}<file>"],
    "tail -f <file>": ["[keep|have] an eye on {thefile}<file>", "[print|show] [what is added|new lines|additions] to {thefile}<file> [as they come|as it is written|live|while it grows|as they are written]", "[live|real time|continuous] [view|output|watch] of {thefile}<file>", "{thefile}<file> {be} [watched|followed|monitored]"],
    "wc -l <file>": ["how long is {thefile}<file>[,|] [in|counted in|measured in] lines", "[lines|the lines] of <file>[,|] [counted|how many]", "the [number|count|amount] of lines [in|of|that are in] {thefile}<file>", "{want} to know how many lines {thefile}<file> has"],
    "wc -w <file>": ["how long is {thefile}<file>[,|] [in|counted in|measured in] words", "the [number|count|amount] of words [in|of|that are in] {thefile}<file>", "{want} to know how many words {thefile}<file> has", "how many words [did I write|stand|are written] in {thefile}<file>"],
    "ls | wc -l": ["the [number|count|amount|total] of files {here}", "[files|the files] {here}[,|] [counted|how many]", "{want} to know how many files [there are|are] {here}", "[total|overall] [count|number] of [files|entries] {here}"],
    'find . -name "*.<ext>"': ["{list} [every|each|any|all] file[s|] [that ends|ending|that end] [in|with] .<ext>{below}", "[every|each|any] <ext> file{below}", "{find} [files|documents] [whose|with an] [extension|ending] [is |]<ext>{below}", "are there [any |]<ext> files{below}", "[the |all ]<ext> files{below}", "{find} all[ of|] my <ext> files"],
    'find . -name "<file>"': ["I [lost|misplaced|cannot find|can't find|forgot the place of] {thefile}<file>[, find it|, where is it|]", "[find out|tell me|show me] where {thefile}<file> [is|lies|sits|hides]", "where [did|does] {thefile}<file> [go|lie|live|hide]", "the [place|location|whereabouts] of {thefile}<file>"],
    "find . -type f -size +<size>": ["[every|each|any] file {larger} <size>{below}", "which [of the |of my |]files [are|go] {larger} <size>{below}", "[big files|large files], [everything |]{larger} <size>", "{find} the files that [are|have] {larger} <size>", "what is {larger} <size>{below}"],
    "find . -type f -size -<size>": ["[every|each|any] file {smaller} <size>{below}", "which [of the |of my |]files [are|stay] {smaller} <size>{below}", "[small files|tiny files], [everything |]{smaller} <size>", "{find} the files that [are|have] {smaller} <size>", "what is {smaller} <size>{below}"],
    "find . -type f -mtime -<n>": ["what [did I|have I|was] [change|changed|modify|modified|edit|edited] [in|within|during|over] the [last|past] <n> days", "{find} [the |]files [which|that] [were|got|have been] [changed|modified|edited|touched] [in|within|during|over] the [last|past|previous] <n> days", "[everything|files] [changed|modified|edited|touched] [in|within|during|over] the [last|past] <n> days"],
    "find . -type f -mtime +<n>": ["{find} files [that|which] [haven't|have not] been [changed|modified|edited|touched] [for|in|since] <n> days", "which files [haven't|have not|were not] [been |]changed [for|in] <n> days", "[everything|files] older than <n> days", "files [untouched|unchanged|unmodified] for [more than |over |]<n> days", "what is older than <n> days{below}"],
    "find . -type f -newermt <date>": ["[everything|files|all files] that [was|were|got] [changed|modified|edited|written] [since|after] <date>", "what [was changed|was modified|changed] [since|after] <date>", "{find} [the |]files [which|that] [were|got|have been] [changed|modified|edited] [since|after|later than] <date>"],
    "find . -type f -empty": ["{find} files [without|that have no|which have no|lacking] [content|contents|text|bytes]{below}", "[do|did] [we|I] have [any |]empty files{below}", "[empty|blank] files{below}", "what files are empty{below}"],
    'find . -name "*.<ext>" -delete': ["[all|every|each|all the] <ext> file[s|] {be} {deleted}", "{want} [all|every|each|all the] <ext> file[s|] {deleted}", "{delete} [all of the|every single|each|all my] .<ext> file[s|]{below}", "[all|every] [of the |]files [that end|ending] [in|with] .<ext> {be} {deleted}", "no [more |].<ext> files[ please|], {delete} them"],
    'grep "<word>" <file>': ["[lines|the lines|all lines] [of|in] {thefile}<file> [with|that contain|containing|that have] {word}<word>", "{want} [the |]lines of {thefile}<file> [that contain|with|containing] <word>", "[what|which] lines [in|of] {thefile}<file> [contain|have|mention|hold] {word}<word>", "is [the word |]<word> [in|part of|mentioned in] {thefile}<file>", "where in {thefile}<file> [is|stands|appears|do we find] {word}<word>"],
    'grep -rn "<word>" .': ["[what|which] [files|documents] [hold|contain|include|mention] {word}<word>", "{search} [every|each] file [here |]for {word}<word>", "in [which|what] files [is|appears|stands|do we find] {word}<word>", "[all|the] files [with|that contain|containing|mentioning] {word}<word>", "{search} [this|the] [project|code|tree|folder] for {word}<word>", "<word> [in all files|anywhere|everywhere in here][, find it|]"],
    'grep -i "<word>" <file>': ["{search} {thefile}<file> for {word}<word>[ and|, but|,| but] [ignore|disregard|do not care about|don't mind] [case|upper and lower case|upper or lower case|capital letters|capitalization]", "[find|show] <word> in {thefile}<file>[, | and |, but |][upper or lower case|in any case|no matter how it is capitalized|ignoring capitals]"],
    'grep -c "<word>" <file>': ["the [number|count] of lines [with|that contain|containing] <word> in {thefile}<file>", "how [many|often|many lines with] [times |]<word> [is in|occurs in|is found in|appears in|comes up in] {thefile}<file>", "[count|number] of <word> in {thefile}<file>", "{want} to know how often <word> [appears|occurs] in {thefile}<file>"],
    "sed -i 's/<word>/<word2>/g' <file>": ["[every|each|any|all] [occurrence|occurrences|instance|instances] of <word> in {thefile}<file> {be} [replaced|changed|turned] [by|with|to|into] <word2>", "<word> {be} [replaced|changed|turned] [by|with|to|into] <word2> in {thefile}<file>", "{want} <word> [replaced by|changed to|turned into] <word2> in {thefile}<file>", "[use|write|put] <word2> instead of <word> in {thefile}<file>"],
    "sort <file>": ["[the lines of |]<file> {be} [sorted|ordered|in order]", "{want} [the lines of |]<file> [sorted|ordered|in order]", "bring [the lines of |]<file> [into|in] [order|alphabetical order]", "[put|place|list] [the lines of |]{thefile}<file> [alphabetically|in order|into alphabetical order|from a to z]", "[alphabetical|sorted] [order|lines|list] of <file>"],
    "sort -u <file>": ["{want} [only |just |][the |]unique lines [of|in|from] {thefile}<file>", "[drop|kill|get rid of|throw out|lose] [the |all |][duplicates|repeats|double lines|duplicate lines] [in|from|of] {thefile}<file>", "each line of {thefile}<file> [only |]once", "[deduplicate|dedupe|uniq] {thefile}<file>", "[no|without] [duplicates|double lines] in {thefile}<file>"],
    "diff <file> <file2>": ["[the |][differences|difference|changes] [between|from] <file> [and|to] <file2>", "<file> [and|versus|against] <file2>[, compared|, what differs|: what is different]", "in what do <file> and <file2> differ", "are <file> and <file2> [different|the same|equal|identical]", "{want} to [see|know] how <file> differs from <file2>"],
    "df -h": ["is there [still |any |enough |][room|space|storage] [left |][on|in] [the|my|this] [disk|drive|hard drive|computer]", "do I have [enough |any |][disk |][space|storage|room] left", "[remaining|free|available] [disk space|storage|space on disk]", "{want} to know how much [disk |]space [I have|is left|remains]", "how much room [is there|is left|remains]"],
    "du -sh <dir>": ["[tell me |]how much [space|disk space|room|storage] [the {dir} |]<dir> [takes|takes up|uses|needs|occupies]", "[tell me |]how [big|large|heavy] [the {dir} |]<dir> is", "the [size|total size|disk usage|weight] of [the {dir} |]<dir>", "{want} to know [how big|the size of|how large] [the {dir} |]<dir>[ is|]"],
    "free -h": ["[the |][memory|ram|RAM] [usage|use|state|situation][, please|]", "do I have [enough|any] [free |]memory[ left|]", "[free|available|used|remaining] [memory|ram|RAM]", "{want} to know how much memory is [free|used|left]", "how full is [the |my |][memory|RAM]"],
    "ps aux": ["[all |the |][running|active|current] [processes|programs|tasks]", "what [is|are] [the |][computer|machine|processes] [doing|running][ now|]", "{want} to see [all |the |][running |][processes|programs]", "which [tasks|applications|programs] are [active|running|open]"],
    "ps aux | grep <prog>": ["is there [a|any] <prog> [process|running]", "does <prog> run", "[find out|check|see|look|tell me] [if|whether] [there is a |there's a |a ]<prog> [process|process running|process exists]", "{want} to know [if|whether] <prog> [is running|runs|is up]", "are there <prog> processes"],
    "kill <pid>": ["[the |]process [with |][the |][number|id|pid] <pid> {be} [killed|stopped|ended|terminated]", "{want} process <pid> [killed|stopped|ended|terminated|gone]", "[finish|halt|abort|shoot] process [number |id |]<pid>", "[kill|end|stop|terminate] the process [number|with number|with the id|whose id is|whose pid is] <pid>"],
    "pkill <prog>": ["[all|every|each|the] <prog> [processes|process] {be} [killed|stopped|ended|terminated|closed]", "{want} [all |every |]<prog> [killed|stopped|ended|terminated|closed|gone]", "[kill|stop|end|terminate|close|quit] [every|each|all the|any] <prog> [process|processes]", "no more <prog>[, kill it|]", "[kill|stop|end|terminate|close|quit] everything [called|named] <prog>"],
    "uptime": ["how long [is|was] [this|the] [machine|computer|system|server] [up|on|running][ already|]", "[the |][load|system load|current load] of [the|this] [machine|system|computer]", "{want} to know how long [this|the] [machine|computer|server] [is up|has been up|runs]", "[time|hours|days] since [the last |]boot"],
    "whoami": ["[what|which] [is the |][username|user name|user|account] [I use|I have|am I using|I am using]", "{show} [my |the current ][user|username|user name|login name]", "{want} to know [who I am|my user name]", "what is my [login|account] name"],
    "date": ["[the |][current |]time[, please|]", "can you tell me [the time|what time it is|today's date|the date]", "do you [know|have] [the time|what time it is|today's date]", "{want} to know [the time|what time it is|the date|what day it is]", "[which|what] [day|date] [do we have|is today|is it today]"],
    "uname -a": ["[which|what] [version|release] of the [kernel|operating system|os] [is this|runs here|do I have|do I use]", "[which|what] [kernel version|kernel|os|operating system] [does this machine run|is that|is installed|does this computer have|is on this machine]", "[system|kernel|os] [info|information|details|version]", "what [is|kind of] [system|machine] [is |]this"],
    "hostname": ["[the |][name|host name] of [this|the] [computer|machine|host|server|box]", "what do we call this [machine|computer|host|server]", "what name [has|does] this [machine|computer] [have|]", "{want} to know [the name of this machine|this computer's name|the hostname]"],
    "ip addr": ["[tell me |give me |][my|the|this machine's] [ip|IP|ip address|IP address|network address]", "under which [address|ip] can I be reached", "{want} to know my [ip|ip address|IP address]", "what are [my|the] [network interfaces|interfaces|ip addresses|IP addresses]"],
    "ping -c <n> <host>": ["<host> {be} pinged <n> times", "[fire|shoot|send] <n> [pings|packets] [at|to] <host>", "[try|test] [to reach |if I can reach |the connection to ]<host> with <n> [pings|packets]", "ping <host>[,|] <n> [times|packets|pings]"],
    "curl <url>": ["[the |][content|contents|response|answer] [of|from|at] <url>", "what [is at|comes from|do I get from|is the answer of] <url>", "[send|make] a request to <url>", "{want} to see [what <url> says|the content of <url>|the response of <url>|<url>]", "[get|fetch|give] me [the content of |]<url>"],
    "curl -O <url>": ["<url> {be} [downloaded|saved|stored]", "{want} <url> [downloaded|saved|on my disk]", "[download|grab|save|store] [me |][the file |]<url>", "bring <url> [to my disk|onto this machine|here as a file]"],
    "lsof -i :<port>": ["[who|what] [is|sits|lives|runs|listens] on port <port>", "[who|what] has port <port>[ open|]", "who's [using|on|listening on|blocking] port <port>", "what's [using|on|listening on|blocking|running on] port <port>", "[process|program] [on|at|behind] port <port>", "{want} to know [who uses|what uses|what listens on] port <port>"],
    "tar -czf <archive> <dir>": ["the {dir} <dir> {be} [packed|compressed|archived|put] [into|in|as] <archive>", "{want} the {dir} <dir> [packed|compressed|archived] [into|in|as] <archive>", "[put|stuff|wrap] the {dir} <dir> [into|in] [the archive |]<archive>", "[make|create|build] [an|the] archive <archive> [from|of|out of|with] the {dir} <dir>"],
    "tar -xzf <archive>": ["<archive> {be} [unpacked|extracted|opened]", "{want} <archive> [unpacked|extracted|opened]", "[get|take|pull] [everything|the files] out of <archive>", "[extract|unpack|open] the [tarball|archive|tar file] <archive>"],
    "zip -r <zip> <dir>": ["the {dir} <dir> {be} [zipped|packed|compressed] [into|in|as|to] <zip>", "{want} the {dir} <dir> [zipped|packed|compressed] [into|in|as|to] <zip>", "[put|stuff|wrap] the {dir} <dir> [into|in] [the zip |]<zip>"],
    "unzip <zip>": ["<zip> {be} [unzipped|unpacked|extracted|opened]", "{want} <zip> [unzipped|unpacked|extracted]", "[get|take|pull] [everything|the files] out of <zip>", "[extract|unpack|unzip] [all|everything|all files] [from|in|of|inside] <zip>"],
    "chmod +x <file>": ["<file> {be} [executable|made executable|runnable]", "{want} <file> [executable|to be executable|runnable]", "{want} to [run|execute] <file>[, make it executable| as a program]", "[let|make it so that] <file> [can be|may be] [executed|run]", "turn <file> into an executable"],
    "chmod <mode> <file>": ["the [permissions|mode|access rights|rights] of <file> {be} <mode>", "{want} [the |][permissions|mode|rights] <mode> [on|for] <file>", "[apply|put|use] [mode|permissions] <mode> [to|on|for] <file>", "<file> {be} [set|changed] to [mode |]<mode>"],
    "chown <user> <file>": ["the owner of <file> {be} <user>", "<file> {be} owned by <user>", "{want} <user> [as the owner of|to own] <file>", "[transfer|pass] [ownership of |]<file> to <user>"],
    "ln -s <file> <name>": ["[a |][symlink|symbolic link|soft link] [named|called] <name> [to|pointing to|for|that leads to] <file>", "<name> {be} a [symlink|symbolic link|link] to <file>", "{want} a [symlink|symbolic link] <name> [to|pointing to] <file>", "make <name> [point|link] to <file>"],
    "printenv": ["[all |the |my |all my |]environment[ variables|]", "[all|every] [of my |][environment variable|environment variables|env var|env vars]", "{show} [me |][all of |]my environment variables", "{want} to see [my|the|all] environment[ variables|]"],
    "printenv <var>": ["[the |][value|content] of [the variable |]<var>", "what [does|is in] [the variable |]<var>[ hold| contain| say|]", "what's [the value of |in |]<var>", "{want} to know [the value of|what is in] <var>"],
    "export <var>=<value>": ["[the variable |the environment variable |]<var> {be} [set to |]<value>", "{want} <var> [set to|to be] <value>", "[put|store|write] <value> [in|into] [the variable |]<var>", "[give|assign] [the variable |]<var> [the value |]<value>", "<var> = <value> in the environment"],
    "which <prog>": ["where's <prog>[ installed| located|]", "[the |][location|path|place] of [the program |the binary |]<prog>", "where does <prog> [live|lie|sit]", "what's the [path|location] of [the program |the command |the binary |]<prog>", "{want} to know where <prog> [is|is installed|lives]", "do I have <prog>[ installed|]"],
    "history": ["[the |my |][commands|things] [that |]I [typed|entered|ran|used][ before| earlier|]", "what [commands |]have I [typed|run|entered][ before| so far|]", "{want} to see [my|the] [command |shell |]history", "[earlier|past|former|previous] commands[ of mine|]"],
    "git status": ["[the |][state|status] of [my|the|this] [git |][repo|repository|working tree]", "are there [any |][changes|uncommitted changes|modified files|uncommitted files][ in git| in the repository| in the repo|]", "{want} to [know|see] [the git status|the state of the repository|what git says]", "what's [changed|new] in [the|my] [repo|repository|git repository]"],
    "git log --oneline -n <n>": ["[the |my |][last|latest|most recent|newest|previous] <n> [commits|git commits]", "what [are|were] the [last|latest|most recent|newest] <n> commits", "{want} to see the [last|latest] <n> commits", "[history|log] of the [last|latest] <n> commits"],
    "git checkout -b <branch>": ["{want} a [new |][git |]branch [called|named|with the name] <branch>", "a [new |][git |]branch [called|named] <branch>[ please|]", "{create} <branch> as a [new |]branch", "a branch [called|named] <branch> {be} [created|made]"],
    "git checkout <branch>": ["[get|hop|jump|head|return] [on|over|back|] to [the |][git |]branch <branch>", "{want} to [be|work|go] [on|to] [the |][git |]branch <branch>", "[use|take|open] [the |][git |]branch <branch>", "make <branch> the current branch"],
    'git commit -m "<msg>"': ["[save|store|commit] [my work|the changes|everything|it all] [under|with|as] [the |]commit message <msg>", "{want} [it|everything|this] committed [with the message|as|under] <msg>", "[the |][commit |]message {be} <msg>[, commit it|, please commit]", "commit[ it| that| all|] with the [title|text|note|words] <msg>"],
    "git add <file>": ["<file> {be} [staged|added to git|in the next commit|added to the index]", "{want} <file> [staged|in the next commit|added to git]", "[put|take|include] <file> [in|into] the [index|next commit|staging area|git index]", "add <file> to the [git index|index|stage]"],
    "git diff": ["[the |my |][diff|changes|modifications] [since|compared to|against] [the |my ]last commit", "{want} to see [the diff|my changes|what I changed|the changes]", "what changes did I make[ since the last commit|]", "what have I [changed|edited|modified] [so far|since the last commit]"],
    "git push": ["[my |the |][commits|work|changes] {be} [pushed|uploaded|published]", "{want} [my commits|my work|it|everything] [pushed|on the remote|on github]", "push [my work|everything|it|all|this branch] [up|to the remote|to origin|]", "[bring|get] my commits [to the remote|online|to github]"],
    "git pull": ["{want} the [latest|newest] [changes|commits|version][ from the remote|]", "[pull|get|fetch|bring] [in |me |][the |]newest [changes|commits|version]", "what others [pushed|committed][, get it|]", "the [latest|newest] [changes|commits] [from the remote|from origin], please"],
    "git clone <giturl>": ["<giturl> {be} cloned", "{want} a [clone|checkout|local copy] of [the repository |]<giturl>", "clone [me |][the git repository |]<giturl>[ please|]"],
    "git branch": ["[all |the |my |all my |][git |local |]branches", "what [git |local |]branches [are there|exist|do we have]", "{want} to see [the |my |all |]branches"],
    "python3 <pyfile>": ["[run|execute|start|launch] [the file |the script |]<pyfile> [using|with|by|through|in] python[3|]", "<pyfile> {be} [run|executed|started][ with python|]", "{want} to [run|execute|start] [the python script |the script |]<pyfile>", "[let|have] python [run|execute] <pyfile>"],
    "bash <shfile>": ["[run|execute|start|launch] [the file |the script |the shell script |]<shfile>[ using bash| with bash| with the shell|]", "<shfile> {be} [run|executed|started]", "{want} to [run|execute|start] the [shell |]script <shfile>", "[let|have] bash [run|execute] <shfile>"],
    "pip install <pkg>": ["{want} [the |][python |][package|library|module] <pkg>[ installed| with pip|]", "<pkg> {be} installed[ with pip| by pip|]", "I need [the |][python |][package |library |module |]<pkg>[, install it| for python|, install it with pip]", "[get|install|add] <pkg> [with|via|from|by] pip"],
    'echo "<msg>"': ["{want} <msg> [printed|on the screen|in the terminal|on the terminal]", "<msg> {be} [printed|written|shown] [to|on|in] the [terminal|screen|console]", "[print|put|show|write] <msg> [on|in|to] the [console|screen|terminal|standard output]"],
    "sha256sum <file>": ["what's the [sha256|checksum|hash|sha256 checksum|sha256 sum|SHA256] [of|for] {thefile}<file>", "[the |][sha256|checksum|hash|sha256 checksum|sha256 sum] [of|for] {thefile}<file>", "{want} the [checksum|hash|sha256|sha256 sum] of {thefile}<file>"],
    "file <file>": ["what's the [type|kind|format|file type] of {thefile}<file>", "what [type|kind|sort] of [file|thing] [is |might be ]<file>", "[the |][file type|type|format] of {thefile}<file>", "what is {thefile}<file> for a [type|kind] of file", "{want} to know what [kind|type] of file <file> is"],
    "nproc": ["how many [cores|cpus|processors|CPUs|cpu cores|CPU cores] [has|does] this [computer|machine|system|box][ have|]", "[number|count] of [cores|cpus|processors|CPU cores]", "how many [cores|cpus|processors] [have I|do we have|has it|are in this computer]", "{want} to know how many [cores|processors|cpus] [there are|I have]"],
    "ssh <user>@<host>": ["[get|hop|go] [me |][on|onto|into] <host> as <user>[ via ssh| by ssh|]", "[connect|log in|login] as [the user |]<user> [to|on|at] <host>[ via ssh| by ssh| using ssh|]", "[connect|log in] to <host> [via|by|using|with|over] ssh as [the user |]<user>", "{want} [a shell|a session|to be] on <host> as [the user |]<user>"],
    "scp <file> <user>@<host>:<dir>": ["<file> {be} [copied|sent|uploaded] to {thedir}<dir> on <host> as <user>", "[bring|get|put] <file> [to|into|onto] {thedir}<dir> on <host> as [user |]<user>"],
    "sleep <n>": ["[wait|pause|sleep|hold on|hang on] [for |]<n> [seconds|sec|s]", "a [pause|break|delay] of <n> seconds", "{want} a [pause|break|delay] of <n> seconds", "[wait|stay] still for <n> seconds", "let <n> seconds pass"],
}
# Words of deletion in requests that delete nothing.
_HARMLESS = {
    'find . -name "*.<ext>"': ["{find} {all} <ext> files[ that I {may} {delete}[ later|]| which {may} be {deleted}|, but do not {delete} them|, {delete} nothing]", "which <ext> files {may} [I {delete}|be {deleted}]{below}", "[do not|don't|never] {delete} the <ext> files[, just|, only] [list|show|find] them", "before I {delete} the <ext> files, [list|show|find] them", "[without {deleting} anything|deleting nothing], {find} {all} .<ext> files"],
    "ls -la": ["{list} {all} {files}[, but do not {delete} any| without {deleting} any| that I {may} {delete}|, {delete} nothing]", "[do not|don't] {delete} [anything|the files], [just |only ]{list} {files}"],
    "cat <file>": ["[do not|don't] {delete} {thefile}<file>[, just|, only] [show it|print it|read it]", "before I {delete} {thefile}<file>, [show|print] [it|its contents]", "{show} {thefile}<file>[ before it is {deleted}| that I {may} {delete}|, but do not {delete} it]"],
    "find . -type f -empty": ["{find} {all} empty files[ that I {may} {delete}| which {may} be {deleted}|, but do not {delete} them]"],
    "find . -type f -mtime +<n>": ["{find} {all} files older than <n> days[ that I {may} {delete}| which {may} be {deleted}|, but do not {delete} them]"],
    "find . -type f -size +<size>": ["{find} {all} files {larger} <size>[ that I {may} {delete}| which {may} be {deleted}|, but do not {delete} them]"],
    "ps aux": ["{list} [all |the |][running |][processes|programs][, kill none|, but do not kill any| without killing any| that I {may} kill|, stop none of them]"],
    "ls -la <dir>": ["[do not|don't] {delete} the {dir} <dir>[, just|, only] [show|list] it", "before I {delete} the {dir} <dir>, {show} what is in it", "{list} {files} in {thedir}<dir>[, but do not {delete} them| that I {may} {delete}]"],
    "ps aux | grep <prog>": ["[do not|don't] kill <prog>, [just |]{show} its processes", "which <prog> processes {may} be killed"],
    "git status": ["what [would be|is] lost [if|when] I [reset|discard] [it|everything|my changes]"],
    "git diff": ["[show|see] my changes before I [discard|revert|undo] them"],
}
for _command, _patterns in INTENTS:
    _patterns += _MORE[_command] * 2 + _HARMLESS.get(_command, [])

# A command that destroys is learned only where the request says so: no stray word may take the place of what says it.
_DESTROYS = ("rm ", "kill ", "pkill ", "sed -i", 'find . -name "*.<ext>" -delete')

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
    "prog": _plain(lambda r: r.choice(words.PROGRAMS) if r.random() < 0.65 else words.pseudo_word(r) if r.random() < 0.7 else f"{r.choice(words.PROGRAMS)}-{words.pseudo_word(r)}"),
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


# What loses data: removal, truncation, formatting, git's ways to discard work, modes and owners of whole trees, databases, processes.
_LOSES = re.compile(
    r"""(?:^|[;&|(`]\s*|\s-c\s+["']|\b(?:sudo|xargs|exec|then|do|time)\s+)(?:/\w+/(?:\w+/)*)?
        (?:rm|rmdir|unlink|shred|truncate|dd|mkfs(?:\.\w+)?|wipefs|fdisk|kill|pkill|killall|shutdown|reboot|halt)(?=[\s;&|'"`)]|$)
    |\s-delete\b|\s-exec\s+(?:rm|unlink)\b
    |(?<![>&\d-])1?>(?![>&])\s*(?!/dev/null)\S
    |\bgit\s+(?:reset\s+--hard|clean\b|checkout\s+(?:--|\.(?:\s|$))|restore\b|stash\s+(?:drop|clear)|branch\s+-D|push\s+.*(?:--force|-f\b))
    |\b(?:chmod|chown)\s+(?:-\w*R|--recursive)
    |\b(?:drop\s+(?:table|database|schema)|delete\s+from|truncate\s+table)\b""",
    re.X | re.I,
)


def destroys(command):
    """Whether a command loses data that may be wanted."""
    plain = re.sub(r"\b(?:grep|rg)\b(?:\s+-\w+)*\s+(\"[^\"]*\"|'[^']*'|\S+)", "", command)
    return bool(_LOSES.search(plain))


def fill(command, values):
    for key, value in values.items():
        command = command.replace(f"<{key}>", value)
    return command


@examined
def request(rng, intents=INTENTS):
    """A request and the command that answers it."""
    command, patterns = intents[int(rng.random() * len(intents))]
    pattern = rng.choice(patterns)
    texts, values = {}, {}
    for key, make in SLOTS.items():
        if f"<{key}>" in command:
            texts[key], values[key] = make(rng)
    for first, second in (("file", "file2"), ("dir", "dir2")):
        if second in values and rng.random() < 0.35:
            values[second] = words.derived(rng, values[first])
            texts[second] = quoted(rng, values[second])
    asking = pattern.startswith(("what", "which", "where", "who", "how", "is ", "are ", "does", "do ", "in ", "{how}", "{what}", "{count}", "{want}", "when", "since", "<", "I ", "the ", "[the ", "there", "are", "[every", "[all", "[what", "[which", "[who", "can ", "could ", "under", "[tell", "a ", "[a ", "[an ", "[just", "[only", "before", "[do not", "[without", "[show|see]"))
    frame = pattern if asking else "{please}" + pattern + "{thanks}"
    text = opened(rng, say(rng, frame, texts, 0.25, not command.startswith(_DESTROYS)))
    if asking and rng.random() < 0.5:
        text += "?"
    elif rng.random() < 0.2 and text[-1].isalnum():
        text += "."
    return text, fill(command, values)


def answer(command):
    """What the model says where it has no tools."""
    return json.dumps({"cmd": command}, ensure_ascii=False)
