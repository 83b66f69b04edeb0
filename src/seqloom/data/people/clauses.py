"""Clauses of train with persons, and perhaps places, one a line. `templates.py` says what stands in braces."""

PEOPLE = """
{who} {did}
{who} {went} {where}
{who} {went} {where} in {year}
{who} {met} {who}
{who} {met} {who} in {where}
{who} left {where} on {day}
{per} lives in {loc}
{per} was born in {loc}
{who} worked as a {job} in {where}
{who} arrived in {where} by train
{per} has never been to {where}
{who} drove from {loc} to {where}
{who} visited {where} in {month}
{who} bought a {adj} {thing} in {where}
{who} found the {thing} near {where}
{who} wanted to live in {where}
{who} opened a small shop in {where}
{who} studied {lang} before moving to {where}
{per} teaches {lang} at a school in {loc}
{per} loves {food} and hates {sport}
{who} played {sport} every {day}
{per} speaks {lang} and {lang}
{per} is a {job}
{per} became a {job} in {year}
{who} joined {org} in {month}
{who} worked for {org} and {org}
{who} lost the {thing} again
{who} sold the {thing} to {who}
{who} gave {who} a {thing}
{who} told {who} about the {thing}
{who} asked {who} for help
{who} waited for {who} at the station
{who} wrote to {who} in {lang}
{per} married {per} in {loc}
{per} beat {per} in {num} games of {sport}
{per} owes {per} {num} euros
{per} and {per} are old friends
{first}, {first} and {first} are on the team
both {per} and {per} refused to comment
{per} is taller than {per}
{per} is the {relative} of {per}
{per} turned {num} in {month}
{per} is {num} years old
{per} died at the age of {num}
{who} laughed and put the {thing} back
{per} was late
{who} took a photo of the {thing}
{who} made {food} for {who}
{per} will be here at {time}
{full} has been the mayor of {loc} for {num} years
{full}, born in {loc}, grew up in {where}
{full} ({num}), a {job} from {loc}, won the race
{full} is a {job} from {where}
{who} {does}
{who} {goes} {where}
{per} likes {food}
{per} knows {per}
{per} thinks that {per} {did}
{per} wants a new {thing}
{per} can repair a {thing}
{per} has {num} {thing}s
{per} should ask {per}
{per} did not come
{per} heard the news from {per}
{per} and {per} have lived in {loc} since {year}
{who} paid {num} euros for the {thing}
{who} broke the {thing} and {did}
{per}'s {relative} is a {job}
{per}'s {relative} {first} lives in {where}
{per}'s {relative}, {full}, {did}
{per}'s {thing} is {adj}
{per}'s flat in {loc} is {adj}
the {thing} was stolen from {per}'s car in {loc}
we sat in {per}'s kitchen
the {job} {met} {who}
the letter was signed by {who}
the book by {full} sold {num} copies
the song was written by {who}
we {met} {who} in {where}
I gave the {thing} to {who} before lunch
nobody told {who} about the {thing}
she introduced me to {who} at the party
they named the street after {full}
the police arrested {who} in {loc}
the {adj} {thing} belongs to {who}
they sent {who} to {where} to buy {food}
{org} hired {who} as a {job}
{org} paid {who} {num} euros
my {relative} {first} works in {where}
our {relative} {first} is {num}
I saw {who} on {day}
he plays {sport} with {who}
I grew up with {first} in {where}
it was {first} who broke the {thing}
she married a {job} called {full}
the new {job} is {full}
the {job}, {full}, starts on {day}
the {job} {full} lives near {loc}
the {thing} that {per} bought is {adj}
the prize went to {who}
we elected {per} in {year}
nobody knows {who} here
this {thing} is for {who}
she borrowed {num} euros from {who}
he took the {thing} from {who}
{who} bought the {thing} from {who}
{who} learned {lang} from {who}
{who} hid the {thing} from {who}
the {job} sold {who} a {thing}
the {job} showed {who} the way to {where}
the {job} sent {who} the {thing}
your {relative} {first} {did}
his {relative} {full} {goes} {where}
we have known {who} since {year}
I never met {per}
you can trust {who}
let us wait until {per} {does}
the best {job} in {loc} is {full}
our {job} was {full}
the {job} who helped {per} {did}
he will marry {per} in {month}
she refused to speak to {who}
{title} {last} will see you now
{title} {last} spoke for {num} minutes
{title} {last} of {loc} was elected
{title} {last} and {title} {last} disagree about the {thing}
{title} {last}'s office is on the second floor
her teacher was {title} {last}, a {adj} man
the governor of {loc} {met} {title} {last}
{loc}'s governor, {full}, {did}
the mayor of {loc}, {full}, was elected in {year}
{who} spent {num} years in {where}
{who} crossed {loc} on foot
{per} earns more than {per}
{per} is going to {loc} with {first} and {first}
the doctor from {loc} treated {who}
{full}, who was born in {loc}, writes about {sport}
{title} {last} opened the new museum in {loc}
{who} found work in {where}
{org} sent {who} to {where}
{first} and {first} named their daughter {first}
the thief took {per}'s {thing} and ran
the {thing} was found by {who} near {loc}
he lent {who} a {thing}
she has been in love with {per} since {month}
{per} called from {loc} to say that {per} was ill
the novel by {full} tells the story of a {job} from {loc}
according to the {job}, {per} was in {loc} at {time}
my {relative} met {title} {last} in {where}
{per}'s {relative} has moved from {loc} to {loc}
the {lang} teacher, {title} {last}, is from {loc}
{per} is afraid of {per}'s {relative}
{who} swam in the river near {loc}
I wrote {per} a long letter from {loc}
the film about {full}'s life was {adj}
we got no answer from {who}
they had spoken to {who} before
{who} came to {where} in {year}
{per} was right
{per}'s {relative} speaks {lang}
{per}'s {relative} {goes} {where}
{per}'s {relative} and {per}'s {relative} {did}
{per}'s {relative} was a {job} in {loc}
{per}'s {thing} was made in {loc}
the {job} repaired {per}'s {thing}
nobody has seen {per}'s {thing}
they live in {per}'s house
{per} is afraid of the {job}
{per} is proud of {per}
{per} is angry with {per}
{per} is married to {per}
{per} lives with {per} and {per}
{per} lives alone
{per} looks like {per}
{per} earns {num} euros a month
{per} has lost {num} kilos
{per} had a {job} for a {relative}
{per} died in {loc} in {year}
{per} must be in {loc} by {day}
{per} always brings {food}
{per} prefers {food} to {food}
{per} reads a {lang} book
{per} fell off the {thing}
{per} closed the door
{per} opened the letter from {per}
{who} built a house near {where}
{who} sang in {where}
{who} ran the shop in {loc}
{who} lived in {loc} for {num} years
{who} walked through {where}
{who} sailed from {loc} to {loc}
{who} took the train from {loc} to {where}
{who} carried the {thing} to {where}
{who} found {who} in {where}
{who} sent {who} a letter from {loc}
{who} wrote {num} books about {sport}
{who} voted for {who}
{who} shook hands with {who}
{who} quarrelled with {who} about the {thing}
{who} taught {who} to swim
{who} promised {who} a {thing}
{who} brought {food} from {where}
{full} was elected mayor of {loc}
{full} is the author of {num} books
{full} was a famous {job}
{full} was arrested near {loc}
{full}, {num}, lives in {loc}
{full}, the mayor of {loc}, {did}
{full} of {org} {did}
{full} from {loc} won the first prize
the winner was {full} from {loc}
the president of {org}, {full}, {did}
the writer {full} moved to {loc}
the brothers {first} and {first} grew up in {loc}
the children, {first} and {first}, slept
the doctor told {who} to stay in bed
the judge believed {who}
the {thing} was a gift from {who} to {who}
the {thing} was bought by {who}
the {thing} on the table is {per}'s
a {job} helped {who} with the {thing}
a letter from {org} arrived for {who}
a woman called {first} {did}
a man named {full} {did}
everyone except {per} {did}
nobody but {first} speaks {lang}
people like {per} are rare
thanks to {who} we found the {thing}
he is the son of {full}
she is a friend of {who}
she dances with {who}
she is older than {per}
he was named after {full}
I have a message for {who}
I will ask {who}
I sat between {first} and {first}
I work for {title} {last}
I agree with {who}
we invited {who} and the {job}
we heard {who} sing
they call him {first}
they chose {per} as their {job}
you look like {per}
you should talk to {who}
{title} {last} is not in the office
{title} {last} was born in {loc}
{title} {last} teaches {lang}
{title} {last} has a meeting at {time}
{title} {last} moved from {loc} to {loc}
{title} {last}, {title} {last} and {title} {last} {did}
{title} {last} from {org} called
the {thing} belongs to {title} {last}
I have written to {title} {last}
{title} {full} lives in {loc}
{who} cooked for {who}
{per} never cooked
{who} travelled with {who}
{per} arrives in {loc} at {time}
everyone praised {who}
they praised {per}'s {thing}
{org} praised {who}
{per} has two shops in {loc}
{per} works hard
{per} drinks tea at {time}
I made tea for {who}
{per} broke {num} cups
his name is {full}
her name was {first}
{who} ate {food} in {loc}
{who} talked about {sport}
we talked to {who} about the {thing}
{who} rented a {thing} in {where}
{per} is still ill
{who} still lives in {loc}
{who} crossed the bridge
{per} crossed the street
I will send {who} a {thing}
snow fell on {per}'s {thing}
{loc}'s king, {full}, {did}
{loc}'s president, {title} {last}, {does}
{loc}'s new mayor is {full}
the mayor, {full}, is from {loc}
they elected {full} in {loc}
the photo of {per} is {adj}
{per} sold the factory
{per} lost {num} euros in {loc}
the concert by {full} is sold out
{who} sang at the concert in {loc}
{per} will marry a {job}
{first} and {first} want to marry in {loc}
a thief stole {per}'s {thing}
{who} refused the {food}
the {job} refused to talk to {who}
{full} (born in {year}) {did}
{first} was born in {loc} and died in {loc}
{who} knew about the {food}
I was told about {who} by the {job}
{per} needs a {thing}
the {job} needs {who}
we met a {job} who lives with {per}
{who} came by ship from {where}
{loc} honoured {full} with a street
{loc} chose {full} as its governor
{loc} gave {full} a prize for the bridge
because of the snow {per} was late
{loc}'s mayor gave {who} a {thing}
{who} drank tea in {loc}
the {job} gave {who} {num} euros
we saw {per}'s {thing}
{per}'s work is {adj}
{who} stole the {thing} from {org}
the {thing} was stolen from {who}
they took {num} euros from {who}
he bought a {thing} from {who} in {loc}
{who} took the {thing} from {per} and {per}
""".strip().split("\n")
