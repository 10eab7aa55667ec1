"""The words that everything is made of, and strings that nobody has seen before.

A model that has met only real words copies only real words. So names, paths and quoted texts are drawn from three
sources: words, pseudo-words made of syllables, and random characters.
"""

import string
from functools import wraps

NOUNS = """account action address agent alarm album alert answer apple archive area arm article artist asset attempt author badge
bag ball band bank barrel base basket battery beach beam bed bell bench bicycle bill bird block board boat body bolt bond bone book
border bottle bottom bowl box branch brand bread bridge brief brush bucket budget building bundle burden bus button cabin cable cake
camera camp candle canvas capital captain car card carpet carrier case castle cell center chain chair channel chapter charge chart
chest choice circle citizen city claim class clock cloth cloud coach coast coat code coffee coin collar collection color column comment
company concert condition contact content contract corner cost cottage council counter country couple courage course court cousin cover
crack craft cream credit crew crowd crown culture cup curtain curve customer cycle daughter deal debt decision deck delivery demand
desert design desk detail device diamond diet dinner direction disk district doctor document dog door draft dragon drawer dream dress
drink driver drop dust duty ear earth edge editor effect effort egg election element employee engine entry envelope error estate event
evidence example exchange exercise exit expert extension eye face factor factory failure fall family farm farmer fashion father feature
feedback fence field figure finger fire fish flag flame flight floor flower fold food foot force forest fork form format fortune frame
friend fruit fuel function furniture future game garage garden gate gift girl glass glove goal gold grade grain grass ground group
growth guard guest guide guitar hall hammer hand harbor harvest hat head health heart heat hill history holiday home honey hook horse
hospital hotel hour house idea image income index industry ink insect inspector instance interest invoice iron island item jacket jar
job joint journey judge juice junction jungle kettle key kitchen kite knife label ladder lake lamp land language law layer leader leaf
lecture legend lemon lens lesson letter level library license lift light limit line link lion lip list load loan location lock log loop
loss lunch machine magazine mail manual map margin mark market marriage mask match material matter meal measure medal meeting member
memory menu message metal meter method mile mill mind mineral minute mirror mission mistake mixture mode model moment money monitor
month moon morning motion motor mountain mouse mouth movie museum music nail name nation needle neighbor nest network news night node
noise north note notice novel number nurse oak object ocean offer office oil onion opinion orange orchard order organ outcome oven
owner package page paint pair palace panel paper parade parcel parent park part partner party passage passenger path patient pattern
payment peace pen pencil people pepper period permission person phase phone photo phrase piano picture piece pilot pin pipe pitch place
plan planet plant plate platform player pocket poem poet point policy pond pool port portion position post pot potato powder power
practice price print priority prison prize problem process product profile profit program project promise proof property protocol
pump pupil purchase purpose quality quantity quarter queen query question queue radio rail rain range rank rate ratio reason receipt
recipe record region relation release reminder rent repair reply report request rescue reserve resource result return revenue review
reward rhythm rice ring river road robot rock role roof room root rope route routine row rule sail salad sale salt sample sand scale
scene schedule school science score screen script sea search season seat second secret section sector seed sensor sentence series
server session set shadow shape share sheet shelf shell ship shirt shoe shop shore shoulder signal silver singer sister site size skill
skin sky sleep slice slope smoke snow soap society sock soil soldier solution song sound soup source south space spark speaker
speech speed spice spirit spoon sport spring square stable staff stage stair stamp standard star state station statue status steam
steel step stock stone storage store storm story stove stranger straw stream street string structure student studio subject sugar
suit summer sun supply surface survey sword symbol system table tail talent tank target task taste tax tea teacher team temple tenant
tension term territory test text theater theory thread throat ticket tide tiger timber time tip title toast tool tooth topic total
tour tower town toy track trade traffic trail train transfer travel treasure treatment tree trend trial tribe trick trip truck trust
truth tube tunnel turn twin type uncle union unit update user valley value van vehicle vendor version vessel video view village
violin visit visitor voice volume voyage wage wagon wall war warehouse warning waste watch water wave weather wedding week weight
wheel whistle width wind window wine wing winner winter wire wish witness wolf wood wool word work worker workshop world yard year
youth zone""".split()

VERBS = """accept access adapt add adjust admit adopt advance advise agree allow announce apply approve arrange arrive ask assign
attach avoid balance begin believe belong borrow break bring build buy calculate call cancel carry cause change check choose claim clean
clear climb close collect combine come compare compile complete compute confirm connect consider consist contain continue control
convert copy correct count cover create cross cut deal decide declare define delay delete deliver depend describe design detect
develop discover discuss display distribute divide download draw drive drop earn edit emit employ enable encourage end enjoy enter
escape establish estimate evaluate examine exist expand expect explain explore export express extend extract fail fetch fill filter
find finish fit fix flow fold follow force forget format gather generate get give grant group grow guess handle happen hear help
hide hold identify ignore implement import improve include increase indicate inform insert inspect install invite invoke join jump
keep kill know label launch lead learn leave lend limit link list listen load locate lock log look lose lower maintain make manage
map mark match measure meet mention merge miss mix monitor move name need notice notify observe obtain offer open operate order
organize overwrite own pack paint parse pass pause pay perform pick place plan play point prefer prepare present press prevent print
process produce promise propose protect prove provide publish pull push put query raise reach read receive recommend record recover
reduce refer reflect refresh refuse register reject relate release remain remember remove rename render repair repeat replace reply
report request require reserve reset resolve respond rest restart restore resume retrieve return reveal review rotate run save scan
schedule search select send separate serve set settle share show skip sleep solve sort specify spend split spread stand start
state stay stop store submit succeed suggest supply support switch take talk teach tell test throw track train transfer transform
translate travel treat trigger trust try turn type unlock update upgrade upload use validate verify visit wait walk warn wash watch
wear wish work wrap write yield""".split()

ADJECTIVES = """able absolute active actual additional alive alone ancient angry annual anxious automatic available average aware bare
basic beautiful better big bitter blank blind blue bold brave brief bright broad broken brown busy calm capable careful cheap clean
clear clever close cold common complete complex constant cool correct crazy cruel curious current daily dangerous dark dead dear
deep default dense different difficult direct dirty double dry due dull eager early easy eastern elastic electric empty entire equal
exact existing expensive explicit extra fair false familiar famous far fast fat final fine firm first flat foreign formal former free
fresh friendly full funny general gentle global golden good grand gray great green half happy hard heavy helpful hidden high hollow
honest hot huge human humble idle important inner instant internal invalid kind large last late lazy left legal likely little local
lonely long loose loud low lucky mad main major manual medium mere mild minor missing mobile modern modest moral multiple narrow
native natural near neat necessary new next nice noisy normal northern nested numeric obvious odd official old online only open
optional orange ordinary original outer pale parallel partial past perfect permanent personal pink plain pleasant polite poor popular
possible practical precise present pretty previous primary private proper proud public pure purple quick quiet random rapid rare raw
ready real recent red regular related relative reliable remote responsible rich right rigid rough round royal rude sad safe same
secondary secret secure separate serious several shallow sharp short shy sick silent silver similar simple single slight slow small
smart smooth soft solid sour southern spare special specific stable stale standard steady steep sticky strange strict strong sudden
suitable sure sweet swift tall temporary tender terrible thick thin tidy tight tiny tired top total tough typical unique unknown
unusual upper urgent useful usual vague valid valuable vast verbose vertical vital warm weak wealthy weekly western wet white whole
wide wild wise wooden wrong yellow young""".split()

ADVERBS = """again almost already also always automatically barely briefly carefully clearly closely completely constantly correctly
daily deeply directly early easily entirely equally exactly explicitly finally firmly frequently gently gladly gradually hardly
immediately instead just largely later lightly mostly never normally often once only partly perfectly possibly promptly properly
quickly quietly rarely readily recently roughly safely seldom sharply silently simply slowly smoothly sometimes soon steadily still
strictly strongly suddenly together twice typically usually verbatim well widely""".split()

TECHNICAL = """absolute path access token adapter algorithm allocation api argument array artifact asynchronous attribute authentication
authorization backend background backup bandwidth batch benchmark binary bitmap boolean boundary breakpoint browser buffer bug build
byte cache callback certificate character checkpoint checksum client cluster codec collection column command commit comparison
compiler component compression concurrency configuration connection console constant constraint consumer container context cookie
coordinate counter crash credential cursor daemon dashboard data database dataset deadline deadlock debugger declaration default
definition dependency deployment description destination developer diagnostic dictionary diff digest directory domain driver
duration editor element encoding encryption endpoint engineer entity enumeration environment event exception executable execution
expression failure feature file filename filter fingerprint firewall flag folder format framework frequency function gateway
generator graph group handler hardware hash header heap hook host hostname hyperlink identifier identity implementation include
index initialization input instance instruction integer integration interface interpreter interval invocation isolation issue item
iteration iterator job json kernel key keyboard keyword latency library lifecycle linter list listener literal loader locale lock
logger logging loop macro manifest markdown memory merge message metadata method metric middleware migration milliseconds module
monitor mutation namespace network node notebook notification null number object offset operation operator optimization option
output override overflow package packet page parameter parent parser partition password patch path pattern payload performance
permission pipeline placeholder platform plugin pointer pool port prefix preview priority procedure process processor producer
production profile program progress project prompt properties property protocol provider proxy pull queue quota range recursion
reference regex registry release renderer replica repository request resource response result retry return revision role rollback
root router routine runtime sandbox scheduler schema scope script secret security segment selector semaphore sequence serializer
server service session setting shell signature skill snapshot socket software source stack statement status storage stream string
structure subagent subprocess summary symbol synchronization syntax system tag target task template terminal test thread threshold
throughput timeout timestamp token tool topology trace traffic transaction transform transport tree trigger type unicode update
upload usage user username utility validation value variable vector vendor verbose version virtual warning webhook widget window
worker workflow workspace wrapper worktree""".split()

COMMON = """a about above across after afterwards against ago all allowed along although am among an and another any anybody anyone anything anyway
anywhere are around as at away back be became because been before behind being below beneath beside besides between beyond both but by came can
cannot certain concerning could despite did do does doing done down during each either else enough especially even ever everybody everyone
everything everywhere except few for former found from further gave given gone got had half has have having he hello hence her here hers
herself him himself his how however if in indeed inside into is it its itself kept known latter least less let like made many may maybe me
meanwhile might mine more moreover most much must my myself nearby neither nevertheless next no nobody none nor not nothing now nowhere of off
on once one ones onto or other others otherwise ought our ours ourselves out outside over own per perhaps please quite rather regarding said
same seen shall she should since so some somebody somehow someone something somewhere such than that the their theirs them themselves then
there thereby therefore these they this those though three through throughout thus till to too toward towards two under unless unlike until
up upon us very via was we well went were what whatever when whenever where whereas wherever whether which whichever while who whoever whom
whose why will with within without would yes yet you your yours yourself zero
abbreviated accepted accessible according accurate acknowledge across actively activity addition advanced advantage affected aligned
alternative ambiguous analysis announcement anonymous anticipated appear append applicable application approach appropriate arbitrary
assistant associated assume assumption attached attention authored autonomous background based beginning behavior belongs breadth
bullet calling cancelled candidate categories caution challenge choice clarify clickable closing codebase combination comma commands
community completion complexity compute concise conclusion concrete conditional confidence confirmed conflicting considered consistent
contents contradict conversation coordinate created creation critical customer cycle decisions dedicated defaults deferred deliberate
demand denied depends deprecated derived described detached detailed determine development difference directly disabled discovery dispatch
distinct documentation duplicate edge editing effective elapsed elsewhere embedded emitted empty enabled encountered encourage ending
ensure entered entirely essential everything evidence exclude exclusive executed exhaustive exits expected experiment expired explanation
explicitly exposed expressed external failing fallback families fetched figure final findings finished flow following forbidden frontmatter
fully functionality generated genuine github global goal granted guidance guidelines handled harness headings higher hook identical
imagine immediately impact implementation important incorrect independent indicator inherits initialize injected inspired installed
instructions integer intended interactive internally interrupted introduce investigate invoked involved isolated issues judgment
keeping knowledge language latest launch length likely limits linked literally locally logic longer lookup maintenance malformed
managed matching maximum meaning mechanism mention merely minimal minimum misleading mistaken modified monitoring multiple mutually
naming navigate necessarily needed nested newline nonexistent notes noticed numbers observed obtained occurs omitted ongoing opened
operating organization originally outlined output overall overlap overview particular partially passing pending personal phrase
plain planning possibly preceding preference prevents previously prioritize privacy proceed produced prominent prompts propagate
proposal provided provider purely quickly quoted raised readable readily reading reason recap received recently recognized
recovered recurring redundant referenced refers regardless rejected related relevant reliable remaining remembered repeatedly
reported representation requested required requirements research resolution respective responding responsibility restricted
resulting retained returned returns reuse reverse reviewer revised running safety satisfied scheduled scratch searching sensitive
sentence separately sequential session several shared shortest shown significant silently simplify situation skipped slash
snippet solely specialized specifically specified spawned standalone started statements status storing strategy structured
stuck style subsequent subset substantial succeeded successful suffix suggestion suitable summarized supported suppose
surprising surrounding suspicious symbolic synthesize targeted team technique temporarily tests therefore thinking thoroughly threaded
timestamps together tokens tooling tracked treated trivial typically unavailable unchanged underlying understand unexpected
unfinished unnecessary unrelated unspecified updated upstream usable useful users using utility valid various verification
versions visible waiting warranted whole wildcard willing wording workaround working writes writing written wrote""".split()

PEOPLE = """Ada Adam Agnes Aisha Alan Alba Alex Alice Amir Amy Anders Andrea Anna Anton Arjun Astrid Ben Bianca Bjorn Bruno Carla Carlos
Chen Chloe Clara Claire Daniel David Diego Dmitri Dora Edgar Elena Eli Ella Emil Emma Eric Esther Eva Farah Felix Finn Frank Freya
Gabriel George Grace Greta Gustav Hana Hannah Hans Harry Helen Henry Hugo Ibrahim Ines Ingrid Irene Isaac Ivan Jack Jana Jane Jean Jenny
Joan Johan John Jonas Jose Julia Jun Karen Karim Karl Kate Kenji Lara Lars Laura Lea Leo Lily Lin Lisa Louis Lucas Lucy Luis Maja Marco
Maria Mark Marta Martin Mateo Max Maya Mei Mia Mila Milo Mohammed Nadia Nina Noah Nora Olaf Olga Oliver Omar Oscar Otto Paul Pedro Peter
Petra Priya Rachel Raj Rita Robert Rosa Ruth Sam Sara Sven Sofia Stefan Sunita Tara Theo Thomas Tim Tom Uma Vera Victor Viktor Wei
Wendy Yara Yuki Yusuf Zara Zoe""".split()

CITIES = """Amsterdam Ankara Athens Auckland Baghdad Bangkok Barcelona Basel Beijing Belgrade Bergen Berlin Bern Bogota Bordeaux Boston
Bratislava Brisbane Brussels Bucharest Budapest Cairo Calgary Chennai Chicago Cologne Copenhagen Cork Dakar Dallas Delhi Denver Detroit
Dhaka Dresden Dubai Dublin Edinburgh Florence Frankfurt Geneva Genoa Ghent Glasgow Graz Hamburg Hanoi Havana Helsinki Houston Istanbul
Jakarta Kiel Kigali Krakow Kyoto Lagos Leeds Leipzig Lima Lisbon Liverpool London Lyon Madrid Manchester Manila Marseille Melbourne
Miami Milan Montreal Moscow Mumbai Munich Nairobi Naples Nice Osaka Oslo Ottawa Oxford Paris Perth Philadelphia Porto Prague Quito Reykjavik
Riga Rome Rotterdam Salzburg Santiago Seattle Seoul Seville Shanghai Singapore Sofia Stockholm Stuttgart Sydney Taipei Tallinn Tbilisi
Tokyo Toronto Toulouse Tunis Turin Utrecht Valencia Vancouver Venice Vienna Vilnius Warsaw Wellington Zagreb Zurich""".split()
CITIES += ["New York", "San Francisco", "Los Angeles", "Rio de Janeiro", "Buenos Aires", "Cape Town", "Hong Kong", "Mexico City", "Tel Aviv", "São Paulo"]

LANGUAGES = "English German French Spanish Italian Portuguese Dutch Polish Japanese Korean Chinese Arabic Hindi Turkish Greek Swedish Danish Finnish Norwegian Czech Latin Russian".split()
CURRENCIES = "USD EUR GBP JPY CHF SEK NOK DKK CAD AUD INR CNY BRL PLN".split()
EXTENSIONS = "txt md py rs js ts json csv log html css sh c h cpp go java xml yaml yml toml pdf png jpg zip bak tmp sql ini cfg conf ipynb svg mp3 mp4 lock o swp bin iso img pem key crt docx xlsx pptx odt rb php tsx kt swift lua tex bib gif webp wav db dat out gz rtf mk vue".split()
# Names that speak of deletion, and mean none.
MISLEADING = "trash delete deleted remove removed remover old wipe kill killer erase cleanup clean purge reset garbage junk drop rm dump discard obsolete unused temp tmp waste recycle destroy shredder undo prune".split()
PROGRAMS = "nginx postgres redis python node java firefox chrome docker sshd cron bash vim emacs mysqld apache2 ollama pensieve cargo rustc npm webpack gunicorn celery mongod kafka code slack spotify java gcc systemd".split()
PACKAGES = "numpy pandas requests flask django scipy torch pytest rich httpx pillow matplotlib fastapi sqlalchemy jinja2 black ruff serde tokio express react lodash axios click pydantic aiohttp".split()
HOSTS = "example.com example.org example.net localhost google.com github.com wikipedia.org db.internal api.example.com mail.example.org 127.0.0.1 8.8.8.8 10.0.0.1 192.168.1.10 server1 build-host".split()
DIRECTORIES = "src docs tests build dist data logs assets images scripts config backup backups tmp bin lib node_modules target examples notes photos music downloads projects reports public static templates models plugins cache archive old new".split()
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

_ONSETS = "b br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sh sk sl sm sn sp st str t th tr v w y z".split()
_VOWELS = "a e i o u ai ea ee oo ou ia".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "x", "k", "m", "nd", "st", "ng", "ck", "rt", "lm", "p", "b", "d"]


_PIECES = []


def use_pieces(pieces):
    """Lets unseen words be made of the tokenizer's own pieces too, so that each piece is met in what is copied."""
    _PIECES[:] = pieces


_HELD_OUT = set()


def hold_out(found):
    """Never makes one of these words: they are for the examination."""
    _HELD_OUT.update(found)


def _unexamined(make):
    @wraps(make)
    def draw(*args):
        while (made := make(*args)).lower() in _HELD_OUT:
            pass
        return made

    return draw


def _chain():
    """What letter follows two others in the words above."""
    following = {}
    for found in (NOUNS, VERBS, ADJECTIVES, TECHNICAL, COMMON):
        for one in found:
            letters = f"^^{one.lower()}$"
            for at in range(2, len(letters)):
                following.setdefault(letters[at - 2 : at], []).append(letters[at])
    return following


_FOLLOWING = _chain()


@_unexamined
def unseen(rng):
    """A word as English might have it, letter by letter: spelled as real ones are, and hardly ever one of them."""
    while True:
        text = "^^"
        while text[-1] != "$" and len(text) < 14:
            text += rng.choice(_FOLLOWING[text[-2:]])
        if text[-1] == "$" and len(text) > 5:
            return text[2:-1]


@_unexamined
def compound(rng):
    """A word made of words or parts of words: what real names look like to a model that does not know them."""
    kind = rng.random()
    if kind < 0.3:
        return unseen(rng)
    if _PIECES and kind < 0.62:
        return "".join(rng.choice(_PIECES) for _ in range(rng.choice((1, 1, 2, 2, 3))))
    first, second = (rng.choice(rng.choice((NOUNS, VERBS, ADJECTIVES, COMMON, TECHNICAL))).lower() for _ in range(2))
    if kind < 0.78:
        return first + second
    if kind < 0.9:
        low = rng.randrange(max(1, len(first) - 3))
        return first[low : low + rng.randrange(3, 9)] + (second[: rng.randrange(2, 6)] if rng.random() < 0.5 else "")
    return first + rng.choice("s er ing ed ly ness able ment tion ity ful less ist ism est y".split())


@_unexamined
def pseudo_word(rng, syllables=None):
    """A word that could exist."""
    if not syllables and rng.random() < 0.7:
        return compound(rng)
    count = syllables or rng.choice((1, 2, 2, 2, 3, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count))


def random_id(rng):
    """An identifier as systems give them out."""
    kind = rng.randrange(6)
    if kind == 0:
        return f"{rng.choice('ABCDEFGHKLMNPQRSTWXZ')}{rng.choice('ABCDEFGHKLMNPQRSTWXZ')}-{rng.randrange(10, 99999)}"
    if kind == 1:
        return "".join(rng.choice("0123456789abcdef") for _ in range(rng.choice((6, 8, 12))))
    if kind == 2:
        return "".join(rng.choice(string.ascii_letters + string.digits) for _ in range(rng.randrange(4, 11)))
    if kind == 3:
        return f"{rng.choice(NOUNS)}-{rng.randrange(1, 10000)}"
    if kind == 4:
        return f"{rng.choice(NOUNS)[:4].upper()}-{rng.randrange(1, 10000)}"
    return str(rng.randrange(100, 10 ** rng.randrange(4, 9)))


def word(rng):
    """Any single word, real more often than not."""
    kind = rng.random()
    if kind < 0.22:
        return rng.choice(NOUNS)
    if kind < 0.3:
        return rng.choice(ADJECTIVES)
    if kind < 0.37:
        return rng.choice(VERBS)
    if kind < 0.43:
        return rng.choice(TECHNICAL)
    if kind < 0.53:
        return rng.choice(COMMON)
    if kind < 0.58:
        return rng.choice(PEOPLE)
    if kind < 0.93:
        return pseudo_word(rng)
    return random_id(rng)


def name(rng):
    """A lower-case name for a thing: a word, two joined, or one that nobody has seen."""
    kind = rng.random()
    if rng.random() < 0.04:
        first = rng.choice(MISLEADING)
        return first if kind < 0.5 else f"{first}{rng.choice('_-')}{rng.choice(NOUNS)}" if kind < 0.75 else f"{rng.choice(NOUNS)}{rng.choice('_-')}{first}"
    if kind < 0.22:
        return rng.choice(NOUNS)
    if kind < 0.34:
        return rng.choice(TECHNICAL)
    if kind < 0.4:
        return f"{pseudo_word(rng)}{rng.choice('_-')}{pseudo_word(rng)}"
    if kind < 0.62:
        return f"{rng.choice(NOUNS if rng.random() < 0.6 else ADJECTIVES)}{rng.choice('_-_-.')}{rng.choice(NOUNS)}".replace(".", "_")
    if kind < 0.92:
        return pseudo_word(rng)
    return f"{rng.choice(NOUNS)}{rng.randrange(1, 2030)}"


def file_name(rng):
    """A file's name with its extension; sometimes one of the well-known ones."""
    if rng.random() < 0.12:
        return rng.choice("README.md Makefile Dockerfile LICENSE a.out id_rsa authorized_keys hosts crontab .bashrc .vimrc CHANGELOG Rakefile Vagrantfile main.py index.html package.json Cargo.toml notes.txt todo.txt data.csv config.yaml app.log server.log report.pdf .env .gitignore main.rs lib.rs setup.py requirements.txt".split())
    stem = name(rng)
    if rng.random() < 0.12:
        stem = stem.capitalize()
    if rng.random() < 0.06:
        stem += f".{name(rng)}"
    return f"{stem}.{rng.choice(EXTENSIONS)}"


def derived(rng, name_):
    """A name made from another one, as copies are called."""
    stem, dot, end = name_.rpartition(".") if "." in name_.rpartition("/")[2][1:] else (name_, "", "")
    kind = rng.random()
    if kind < 0.5:
        return stem + rng.choice("_old _copy -copy _backup .backup 2 _new -2 _final .orig _v2 s _1".split()) + dot + end
    if kind < 0.7:
        return rng.choice("old_ new_ copy_of_ backup_ my_".split()) + name_ if "/" not in name_ else name_ + "2"
    return f"{stem}.{rng.choice(EXTENSIONS)}"


def directory(rng):
    """A folder's name, relative as a rule."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(DIRECTORIES)
    if kind < 0.65:
        return name(rng)
    if kind < 0.8:
        return f"{rng.choice(DIRECTORIES)}/{name(rng)}"
    return absolute_path(rng)


def absolute_path(rng):
    """A path from the root or the home."""
    first = rng.choice(("/tmp", "/var/log", "/home/" + rng.choice(PEOPLE).lower(), "/etc", "/opt", "~", "/usr/local", "/srv", "/data", "/var/www"))
    return "/".join([first] + [name(rng) for _ in range(rng.randrange(1, 3))])


def path(rng):
    """A file's path."""
    kind = rng.random()
    if kind < 0.6:
        return file_name(rng)
    if kind < 0.8:
        return f"{directory(rng)}/{file_name(rng)}"
    return f"{absolute_path(rng)}/{file_name(rng)}"


def phrase(rng, low=1, high=6):
    """Words in a row, as somebody would put between quotes."""
    kind = rng.random()
    count = rng.randrange(low, high + 1)
    if kind < 0.55:
        text = " ".join(word(rng) for _ in range(count))
    elif kind < 0.8:
        text = sentence(rng).rstrip(".")
        text = " ".join(text.split()[: max(count, 2)])
    else:
        text = " ".join(rng.choice(NOUNS) for _ in range(count))
    if rng.random() < 0.25:
        text = text.capitalize()
    if rng.random() < 0.02:
        text += rng.choice((" é", " ü", " ß", " ✓", " 日本", " ñ", " →", " 😀", " à la carte", " naïve"))
    return text.strip()


def plural(noun):
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def third(verb):
    """The verb as he, she and it have it."""
    if verb.endswith(("s", "x", "ch", "sh", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def past(verb):
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "ed"


def gerund(verb):
    return (verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else verb) + "ing"


_SENTENCES = (
    "The {a} {n} {v3} the {t} when the {n} is {a}.",
    "{V} the {t} before you {v} a {n}.",
    "Use this to {v} {a} {np} and to {v} each {n}.",
    "If the {n} is {a}, {v} it {d} and {v} the {t}.",
    "Never {v} a {t} that the user did not {v}.",
    "{Np} that are {a} will be {ved} {d}; the others stay {a}.",
    "This {v3} the {t} of a {a} {n} and returns its {t}.",
    "You can {v} up to {num} {np} with one {t}.",
    "A {t} with no {t} is treated as {a}, so {v} it first.",
    "Note that the {t} is {d} {ved}, which may {v} the {n}.",
    "For {a} {np}, prefer the {t} over the {t}.",
    "It is important to {v} the {n}, because the {t} does not {v} it.",
    "When in doubt, {v} the {n} and {v} what you find.",
    "Only the {a} {t} may {v} the {n}; everything else is {ved}.",
    "The default is {num}, the maximum {num}.",
    "Each {n} has a {t}, a {t} and an optional {t}.",
    "{person} {ved} the {n} in {city} and {ved} the {a} {np}.",
    "By default, it {v3} {num} {np} starting at the {n}.",
    "Do not {v} the {t} while {ving} the {n}.",
    "After {ving}, the {n} is {a} and the {t} can be {ved}.",
    "Set `{id}` to {num} to {v} the {t}.",
    "The `{id}` {t} is required; `{id}` is optional.",
    "There is no {n} between the {a} {n} and the {n}.",
    "We {ved} {num} {np} on {day}, which is more than the {n} of {month}.",
    "Results are {ved} as a list of {np}, sorted by {t}.",
    "Avoid {ving} {np} unless the user asks you to {v} them.",
)


def sentence(rng):
    """A sentence of documentation that means next to nothing, in good grammar."""
    return _fill(rng, rng.choice(_SENTENCES)) if rng.random() < 0.65 else plain_words(rng)


def _fill(rng, pattern):
    out, rest = [], pattern
    while True:
        head, mark, rest = rest.partition("{")
        out.append(head)
        if not mark:
            return "".join(out)
        key, _, rest = rest.partition("}")
        out.append(_FILLERS[key](rng))


_FILLERS = {
    "a": lambda r: r.choice(ADJECTIVES),
    "n": lambda r: r.choice(NOUNS) if r.random() < 0.93 else pseudo_word(r),
    "np": lambda r: plural(r.choice(NOUNS if r.random() < 0.6 else TECHNICAL)),
    "Np": lambda r: plural(r.choice(NOUNS)).capitalize(),
    "v": lambda r: r.choice(VERBS),
    "V": lambda r: r.choice(VERBS).capitalize(),
    "v3": lambda r: third(r.choice(VERBS)),
    "ved": lambda r: past(r.choice(VERBS)),
    "ving": lambda r: gerund(r.choice(VERBS)),
    "d": lambda r: r.choice(ADVERBS),
    "t": lambda r: r.choice(TECHNICAL),
    "num": lambda r: str(r.choice((1, 2, 3, 5, 8, 10, 12, 16, 20, 24, 50, 64, 100, 128, 255, 500, 1000, 2000, 60000, 120000, r.randrange(5000)))),
    "id": lambda r: identifier(r),
    "person": lambda r: r.choice(PEOPLE),
    "city": lambda r: r.choice(CITIES),
    "day": lambda r: r.choice(DAYS),
    "month": lambda r: r.choice(MONTHS),
}


def identifier(rng):
    """A name as code has it."""
    parts = [rng.choice(NOUNS if rng.random() < 0.4 else TECHNICAL) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    return joined(rng, parts)


def joined(rng, parts, style=None):
    style = style or rng.choice(("snake", "snake", "camel", "kebab", "pascal"))
    if style == "snake":
        return "_".join(parts)
    if style == "kebab":
        return "-".join(parts)
    if style == "camel":
        return parts[0] + "".join(p.capitalize() for p in parts[1:])
    return "".join(p.capitalize() for p in parts)


def plain_words(rng):
    """Words in a row that make no sentence, in all their forms."""
    out = []
    for _ in range(rng.randrange(5, 14)):
        kind = rng.random()
        if kind < 0.55:
            out.append(rng.choice(COMMON))
        elif kind < 0.65:
            out.append(past(rng.choice(VERBS)))
        elif kind < 0.75:
            out.append(gerund(rng.choice(VERBS)))
        elif kind < 0.85:
            out.append(plural(rng.choice(TECHNICAL)))
        else:
            out.append(rng.choice(rng.choice((NOUNS, ADJECTIVES, ADVERBS, TECHNICAL))))
    text = " ".join(out)
    return (text.capitalize() if rng.random() < 0.6 else text) + rng.choice((".", ".", ",", ":"))


def paragraph(rng, sentences=None):
    return " ".join(sentence(rng) for _ in range(sentences or rng.randrange(1, 6)))


def block(rng):
    """A stretch of a document: prose, a list, code, JSON or a heading. Ends with a newline."""
    kind = rng.random()
    if kind < 0.4:
        return paragraph(rng) + "\n\n"
    if kind < 0.6:
        mark = rng.choice(("- ", " - ", "* "))
        items = "".join(f"{mark}{_item(rng)}\n" for _ in range(rng.randrange(2, 7)))
        return items + "\n"
    if kind < 0.72:
        return f"{'#' * rng.randrange(1, 4)} {phrase(rng, 1, 4).capitalize()}\n"
    if kind < 0.8:
        return "".join(f"{i}. {sentence(rng)}\n" for i in range(1, rng.randrange(3, 7))) + "\n"
    if kind < 0.9:
        return f"```{rng.choice(('', 'json', 'bash', 'markdown', 'python'))}\n{code(rng)}```\n\n"
    tag = rng.choice(("example", "note", "important", "context", "env", "reminder", identifier(rng)))
    return f"<{tag}>\n{paragraph(rng)}\n</{tag}>\n\n"


def _item(rng):
    kind = rng.random()
    if kind < 0.4:
        return sentence(rng)
    if kind < 0.6:
        return f"{identifier(rng)}: {sentence(rng)}"
    if kind < 0.75:
        return f"`{identifier(rng)}` — {sentence(rng)}"
    if kind < 0.9:
        return f"{phrase(rng, 1, 3).capitalize()}: {phrase(rng)}"
    return f"**{phrase(rng, 1, 3)}**: {paragraph(rng, 2)} (Tools: {', '.join(identifier(rng) for _ in range(rng.randrange(1, 5)))})"


def code(rng):
    lines = []
    for _ in range(rng.randrange(1, 8)):
        kind = rng.randrange(7)
        if kind == 0:
            lines.append(f'{{"{identifier(rng)}": "{phrase(rng, 1, 3)}", "{identifier(rng)}": {rng.randrange(1000)}}}')
        elif kind == 1:
            lines.append(f"{identifier(rng)} = {identifier(rng)}({identifier(rng)}, {rng.randrange(100)})")
        elif kind == 2:
            lines.append(f"{identifier(rng)}: {phrase(rng, 1, 4)}")
        elif kind == 3:
            lines.append(f"$ {rng.choice(PROGRAMS)} --{identifier(rng)} {path(rng)}")
        elif kind == 4:
            lines.append(f"# {sentence(rng)}")
        elif kind == 5:
            lines.append(f"    return {identifier(rng)}.{identifier(rng)}({path(rng)!r})")
        else:
            lines.append(f"if {identifier(rng)} == {rng.randrange(50)}: {identifier(rng)}()")
    return "\n".join(lines) + "\n"
