"""The words and sentences of the story grammar in `stories`, written for SpecRig."""

from __future__ import annotations

import re

_LISTS = """
trade: clockmaker / baker / ferryman / beekeeper / mapmaker / lamplighter / weaver / fisher / gardener / bell ringer
    glassblower / shepherd / potter / piano tuner / bookbinder / carpenter / stargazer / letter carrier / tailor
    miller
place: Harrow Bay / the valley of Lume / Saltmarsh / Old Bridgewater / the island of Tern / Copper Hill / Winterbourne
    the port of Asmara / Fenwick / the high village of Orla / Greyfriars / Larkspur Lane / the town of Mira
    Stonehollow / Driftwood Point / the city of Vell / Applegarth / the river town of Sorrel / Northlight
    Thistledown
treasure: a silver compass / a blue lantern / a cracked violin / a sealed letter / a jar of seeds / a wooden bird
    a brass key / a glass bell / a torn map / a red umbrella / a music box / a book without words
    a stone that hummed / a golden thimble / a paper boat / a small white feather / a pair of green boots
    an old telescope / a painted mask / a ball of red yarn
animal: fox / heron / black cat / goat / raven / otter / donkey / owl / hedgehog / hare / tortoise / magpie
villain: the mayor / a travelling merchant / the tax collector / a jealous cousin / the keeper of the gate
    a man in a grey coat / the captain of the guard / an old sorcerer / the owner of the mill / a clever thief
    the duke / a stern judge
goal: to find the lost garden / to cross the northern sea / to win the autumn fair / to wake the sleeping mountain
    to hear the song of the deep well / to bring the rain back / to light the old tower again
    to mend the broken bridge / to learn the name of the stranger / to return the stolen bell / to save the orchard
    to read the last page of the story / to build a ship that could fly / to bring the swallows home
    to open the door under the hill
site: the old tower / the empty lighthouse / the ruined chapel / the deep forest / the flooded cellar
    the attic of the inn / the frozen lake / the market square / the abandoned station / the cave behind the waterfall
    the roof of the library / the orchard wall / the last house on the road / the harbour steps / the windmill
    the well in the yard
women: Mara / Elin / Ottilie / Rosa / Ines / Tamsin / Yara / Freya / Beatrix / Leila / Noor / Signe / Wren / Zuzana
    Dilek / Mei / Clara / Hana / Petra / Aylin
men: Anton / Casper / Emil / Jonas / Karel / Milo / Oskar / Pavel / Rafi / Silas / Tomas / Ulric / Viktor / Yusuf
    Deniz / Bo / Hugo / Matej / Kerem / Lin
weather: a cold wind / soft rain / the first snow / a thick fog / bright sunshine / a warm breeze
    a long thunderstorm / a pale moon / a red sunset / a hard frost / a quiet mist / a sudden hail
time: one morning in March / on the longest night of the year / late one summer / on a grey Tuesday
    at the end of harvest / a week before the fair / in the year of the great flood / just after midnight
    on the first day of spring / one evening in October / when the bells had stopped / at low tide
came: came over the hills / settled on the roofs / filled the streets / rolled in from the sea / woke the whole town
    covered the fields / hung above the river / followed the road
mood: patient / stubborn / curious / shy / cheerful / restless / careful / proud / gentle / forgetful / brave / lonely
    clever / honest
said: said / whispered / answered / laughed / sighed / called / muttered / cried / replied
slowly: slowly / at once / without a word / with a smile / in a low voice / with shaking hands / after a long silence
    as if in a dream / very quietly / with great care
food: warm bread / plum soup / honey cake / roasted chestnuts / a bowl of lentils / mint tea / dried figs
    salted fish / apple pie / a piece of cheese
feeling: afraid / hopeful / tired / ashamed / glad / angry / calm / homesick / lucky / foolish
count: two / three / four / five / seven / nine / twelve
span: days / nights / weeks / hours / winters / months
thing: the clocks / the dogs / the lamps / the fountains / the windows / the church bells / the boats / the swallows
    the candles / the wheels
did: fell silent / began to sing / went dark / turned to the north / trembled / stood still / glowed / disappeared
    came back to life
lesson: a small light is enough / nothing that is shared is lost / a promise weighs more than gold
    the longest road begins at the door / a question can open what a hammer cannot / those who listen are never alone
    even the wind must rest / kindness has a long memory / a mistake is only a door with a strange handle
    home is the place that waits for you
smell: salt and tar / wet leaves / old paper / cinnamon / smoke / candle wax / fresh hay / cold iron / lavender
look: with eyes like wet stones / in a coat with {count} buttons / who smelled of {smell} / with flour on both hands
    who never blinked / with a voice like an old door / who walked without a sound / in boots that were far too large
sound: a knock at the door / a song without words / the creak of a rope / a bell far away / footsteps on the stairs
    a splash in the dark / someone laughing / the tick of a hidden clock / wings against the glass
hide: under the floor / behind the mirror / inside the stove / beneath the bed / in the hollow of an oak
    between two loose bricks / in the pocket of a dead man's coat / at the bottom of a flour sack
advice: Never trust a door that opens by itself / Count the steps and forget the last one
    Follow the water and not the road / Give away the thing you want to keep / Speak to it as you would to a friend
    Wait until the third bell / Do not look back before the bridge / Ask for less than you need
    Leave a crumb for the birds / Close your eyes and walk
doubt: It cannot be done / Nobody has ever come back from there / You are too late / I have heard that story before
    There is nothing here but dust / You will need more than luck / My grandmother tried and failed
    That belongs to me
reply: Then I will be the first / We shall see about that / I would rather try than wonder / I only need one night
    Somebody has to begin / Give me until morning / I am not afraid of the dark / I did not ask for your blessing
    Perhaps you asked the wrong question
road: over the frozen fields / along the river / through {count} gates / past the graveyard / up the narrow stairs
    down into the valley / across the wet sand / between the tall reeds / under the railway bridge
cost: a year of {his} life / {his} best coat / the sound of {his} name / {count} true stories / a lock of hair
    the only song {he} knew / every coin in the house / a promise
end: The people of {place} still tell it / The {animal} slept by the stove / Nobody spoke of the debt again
    The lamps burned until morning / A new sign hung above the door / The letter was answered at last
    There was {food} for everyone / The road was open again / {friend} moved into the house next door
titles: The {trade} of {place} and {treasure} / {hero} and {treasure} of {place}
    How {hero} of {place} found {treasure} / {treasure} in {place}, or the luck of {hero}
    The night {hero} lost {treasure} in {place}
openings: {time}, {hero} the {trade} found {treasure} near {site} in {place}.
    In {place} there lived a {mood} {trade} named {hero}, who owned nothing but {treasure}.
    Everyone in {place} knew {hero} the {trade}, but nobody knew about {treasure}.
    {hero} had been a {trade} in {place} for {count} years when {treasure} arrived without a sender.
    {weather} {came} on the day when {hero}, a {mood} {trade} of {place}, was given {treasure}.
wish: all {his} life {hero} had wanted {goal}. / {he} had only one wish: {goal}.
    {he} had promised {friend} {goal}, and a promise is a promise.
    {hero} was {mood} and {mood}, and {he} dreamed every night of a way {goal}.
    nobody believed that a {trade} would ever be able {goal}.
    it was {friend} who first said that {hero} was born {goal}.
sign: then, {time}, {thing} {did}. / that night {weather} {came}, and {thing} {did}.
    {time}, {hero} heard {sound} and could not sleep.
    for {count} {span} {thing} {did}, and {hero} began to feel {feeling}.
    when {he} touched it, {thing} {did} and the air smelled of {smell}.
    a {animal} came to the window and would not leave.
meet: on the way to {site} {he} met {friend}, a {mood} stranger {look}.
    at {site} {friend} was waiting, {mood} as ever, with {food}. / {friend} came {road} to warn {him}.
    a {animal} led {him} {road} to {site}, where {friend} sat eating {food}.
    the door was opened by {friend}, {look}.
advise: “{advice},” {friend} {said} {slowly}. “{advice}.” / “{advice},” {said} {friend}, and gave {him} {food}.
    “I know what you carry,” {friend} {said}. “{advice}.”
    “Is it true?” {hero} asked. “{advice},” {said} {friend} {slowly}.
    {friend} looked at it {slowly} and {said}: “{advice}.”
travel: so {he} went {road} and then {road}, for {count} {span}. / together they went {road}, and {weather} {came}.
    the way led {road}, and {he} felt {feeling} and {feeling} in turn.
    {hero} walked {road} until {he} reached {site}.
    {count} times {he} lost the way {road}, and {count} times the {animal} found it again.
challenge: but {villain} had followed {him} {road}. / at {site} {villain} stood before {him}, {look}.
    there {villain} had hidden a trap {hide}. / the next day {villain} came to the door and asked for it {slowly}.
    soon {villain} heard of it and wanted it for the price of {cost}.
quarrel: “{doubt},” {said} {villain}. “{reply},” {hero} {said} {slowly}.
    “{doubt}!” {villain} {said}. {hero} only smiled. “{reply}.”
    “{reply},” {said} {hero}, although {he} felt {feeling}. “{doubt},” {villain} {said} again.
    {hero} {said} {slowly}: “{reply}.” Then {thing} {did}.
turn: {he} remembered the words of {friend} and looked {hide}.
    just then the {animal} ran between them, and {thing} {did}.
    {hero} broke it in two, and inside lay {count} drops of light.
    at that moment {sound} came from {site}, and {villain} turned pale. / it cost {him} {cost}, but {thing} {did}.
    {friend} arrived with {count} neighbours and {food}, and the quarrel was over.
done: {weather} {came}, and {hero} knew that it was enough {goal}.
    in the morning {thing} {did}, and {villain} was gone. / that is how {hero} the {trade} managed {goal}.
    {he} had wanted {goal}, and {he} had done it {slowly}. / {villain} bowed {slowly} and asked for forgiveness.
home: {hero} went home {road} and ate {food} with {friend}. / back in {place} {he} put it {hide} and never sold it.
    {he} gave it to the {animal}, who knew best what to do with it.
    {hero} stayed a {trade} for {count} more years, {mood} as before.
moral: {end}, and {hero} liked to say that {lesson}. / {end}. “You see,” {friend} {said}, “{lesson}.”
    in {place} they say that {lesson}. {end}. / and whoever asks {hero} is told {slowly} that {lesson}. {end}.
"""
"""Lists of phrases: the name, then phrases with ` / ` or a line break between two of them."""

_PHRASES = {
    name: tuple(re.split(r" / |\n    ", text))
    for name, text in re.findall(r"^(\w+): (.*(?:\n    .*)*)$", _LISTS, re.MULTILINE)
}
_ENTITY_NAMES = ("trade", "place", "treasure", "animal", "villain", "goal", "site")
_BEATS = (("wish", "sign", "meet", "advise"), ("travel", "challenge", "quarrel", "turn"), ("done", "home", "moral"))
ENTITIES: dict[str, tuple[str, ...]] = {name: _PHRASES[name] for name in _ENTITY_NAMES}
"""What stays the same in a story."""
TITLES, OPENINGS = _PHRASES["titles"], _PHRASES["openings"]
BEATS = tuple(tuple(_PHRASES[name] for name in names) for names in _BEATS)
"""A story's paragraphs, each a list of beats; a story has one of the sentences of each beat."""
WORDS = {name: phrases for name, phrases in _PHRASES.items() if name not in ENTITIES}
"""What is chosen anew wherever it is named."""
