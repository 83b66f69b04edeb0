"""Of train: clauses about places, and clauses without a name, one a line."""

PLACES = """
I want to go to {where}
she refused to go to {where}
{loc} is famous for its {food}
{loc} is a {adj} city
{loc} is a large town in the north
{loc} has {num} bridges and a {adj} harbour
{loc} has a new university
{loc} lies north of {loc}
{loc} lies between {loc} and {loc}
{loc} is {num} kilometres from {where}
{loc} is far away from {loc}
{loc} hosted the games in {year}
{loc} was flooded in {month}
{loc}, {loc} and {loc} are in the same country
{loc}'s population has doubled
{loc}'s streets are {adj}
{loc}'s airport is closed
{loc}'s president {did}
{loc}'s mayor speaks {lang}
{loc}'s hotels are {adj}
{loc} needs a new hospital
{loc} built a {adj} stadium in {year}
{loc} chose a new governor
{loc} exports {food}
{loc} is a {adj} village near {loc}
{loc} is a port in the south of {loc}
{loc} is a {adj} place
{loc} is not far from the coast
{loc} has no airport
{loc} has {num} inhabitants
{loc} was founded in {year}
the capital of the province is {loc}
the nearest city is {loc}
the weather in {where} is {adj}
it is raining in {where}
the train to {where} leaves at {time}
the bus from {where} was late
the bus stops in {where}
the road from {loc} to {where} is closed
flights between {loc} and {loc} were cancelled
we flew from {loc} to {where}
we spent the summer in {where}
we drove across {loc} in {num} days
we drove through {where} at {time}
the museum in {loc} opens at {time}
prices in {where} rose by {num} percent
people in {where} speak {lang}
the mayor of {loc} {did}
a {job} from {where} found the {thing}
the tourists came from {where}
the river flows through {where}
a storm hit {where} on {day}
the coast near {loc} is {adj}
all roads around {loc} are blocked
they moved the factory from {loc} to {where}
he comes from {where}
this {thing} was made in {where}
{org} closed its office in {where}
{org} and {org} opened a plant outside {where}
{num} tourists visited {where} last year
the hotel in {loc} had {adj} rooms
tickets for {loc} are sold out
the university of {loc} is {adj}
most of our customers live in {where}
nothing ever happens in {where}
a ship from {loc} reached {where}
the team from {where} lost
{stuff} is cheap in {where}
{stuff} from {where} is {adj}
the {job}s of {loc} went on strike
the shop in {loc} sells {stuff}
there are no {thing}s in {where}
there is a {adj} road to {where}
we lost the {thing} in {where}
the border between {loc} and {loc} is open
the king of {loc} {did}
the train between {loc} and {loc} was {adj}
the river crosses {loc} near {loc}
the flight from {loc} landed in {loc} at {time}
{loc} is the third largest city after {loc}
{loc} and {loc} share a border
{loc}'s harbour is {adj}
we rented a car in {where}
{num} people from {where} signed the letter
the hospital in {loc} needs {num} nurses
there was heavy rain over {where}
farmers around {loc} sell {food} to {loc}
the governments of {loc} and {loc} signed the agreement
half of {loc} was under water
{loc} is an island in the south
{loc} is in the east
{loc} is on the coast
{loc} is the largest city in the country
{loc} is the capital of {loc}
{loc} is {adj} in {month}
{loc} is a city of {num} bridges
{loc} is known for {food} and {stuff}
{loc} is older than {loc}, but not as large
{loc} is at war
{loc} is close to the border
{loc} is cold in winter
{loc} borders on {loc} and {loc}
{loc} belongs to {loc}
{loc} lies on a river
{loc} lies in the mountains
{loc} was destroyed in {year}
{loc} was part of {loc} until {year}
{loc} has a long history
{loc} has two railway stations
{loc} imports {stuff} from {loc}
{loc} produces {stuff}
{loc} raised its taxes in {month}
{loc} closed its borders
{loc}'s economy grew by {num} percent
{loc}'s government {did}
{loc}'s railway station is {adj}
{loc}'s oldest street is {adj}
the town of {loc} has {num} inhabitants
the island of {loc} is {adj}
the people of {loc} {did}
the history of {loc} is long
the government of {loc} {did}
the police in {loc} found the {thing}
the airport of {loc} was closed
the schools in {where} are {adj}
the trains in {loc} are {adj}
the fire in {loc} lasted {num} days
the war between {loc} and {loc} ended in {year}
the distance from {loc} to {loc} is {num} kilometres
the price of {stuff} in {where} rose
the night train to {loc} was full
the ferry to {loc} was cancelled
the exhibition in {loc} closes on {day}
the office in {loc} employs {num} people
the match in {loc} was cancelled
the best {food} comes from {loc}
the streets of {loc} were empty
the village lies between {loc} and {loc}
an earthquake shook {loc}
a flood destroyed half of {loc}
a train from {loc} to {loc} was stopped
a student from {loc} won the prize
a company from {where} bought {org}
a house in {loc} costs {num} euros
many people left {where} in {year}
two {job}s from {loc} {did}
her parents live in {where}
his flight to {loc} was late
their house is in {where}
my {relative} lives in {where}
my {relative} comes from {loc}
our ship leaves {loc} at {time}
our bus broke down near {loc}
we are in {where} until {day}
we live in {where}
we got lost in {where}
we crossed {loc} by train
we left {loc} and drove to {loc}
we stayed in a hotel in {loc}
we took a bus to {loc}
we went from {loc} to {loc} and back
they live in {loc}, not in {loc}
they found gold in {where}
they want to build a road to {loc}
she was born in {loc} and lives in {loc}
she was sent from {loc} to {loc}
he lives somewhere in {loc}
he has been to {loc}, {loc} and {loc}
it never snows in {loc}
it is {num} degrees in {loc}
there was a fire near {loc}
there is a {thing} shop in {loc}
there is no war in {loc}
{num} people died near {loc}
{org} will move to {loc}
{org} built {num} houses in {loc}
{org} has offices in {where}
{food} is cheaper in {loc} than in {loc}
{loc} had {num} visitors in {month}
our visitors from {where} {did}
visitors to {loc} need a {thing}
my {relative} cooked in a hotel in {loc}
we travelled from {loc} to {where}
they travelled through {where}
the bus to {loc} arrives late
there are {num} shops in {where}
the shops of {loc} sell {food}
life in {loc} is hard
tea from {where} is {adj}
the cups are from {where}
the name of the city is {loc}
we ate in {where}
{org} rented a house near {loc}
it is still raining in {loc}
the bridge in {loc} is closed
they built a bridge near {where}
please send the {thing} to {loc}
they send {food} to {where}
most of {loc} is {adj}
most people in {loc} speak {lang}
snow covered {where}
{loc}'s museum is closed
{loc} wants a new mayor
the photo was taken in {loc}
the factory near {loc} was sold
{org} sold its factory in {where}
{loc} is a town of {num} people
{loc} is a good place for a {job}
the {thing} costs more in {where}
how much {food} costs in {loc} is a mystery
I do not live in {loc}
the road goes through {where}
there is no road between {loc} and {loc}
the ship reached {loc} on {day}
{loc} voted for a new president
{loc} elected its first mayor in {year}
{loc} opened a {adj} bridge
{loc} sent {num} {job}s to {loc}
{loc} celebrated the end of the war
{loc} closed its schools on {day}
{loc} sold {stuff} to {loc}
{loc} built a new road to {loc}
{loc} wants to host the games
{loc} lost its king in {year}
{loc} won its independence in {year}
{loc} grew by {num} percent
{loc} saw {num} tourists last year
{loc} moved its university to {loc}
because of the rain {loc} was closed
{loc}'s mayor {did}
{loc}'s harbour, seen from the ship, is small
{loc} is so small and so quiet
I saw the {thing} in {where}
they work in {loc} and live in {loc}
""".strip().split("\n")

NEITHER = """
the meeting on {day} was moved to {month}
it is raining again
{lang} is harder than {lang}
{lang} and {lang} are taught here
{org} sells {food} and {thing}s
{org} lost {num} million in {year}
we need a {adj} {thing}
nobody knows why the {thing} broke
the {job} left at {time}
the {job} {did}
I had {food} for breakfast
the days in {month} are {adj}
my {relative} plays {sport} on {day}s
there are {num} {thing}s on the table
the {lang} translation was published by {org}
I don't like {food}
we close at {time} on {day}
our {job} can't find the {thing}
learning {lang} is {adj}
half of the {food} was gone
{stuff} is {adj}
{stuff} fell on the street
everybody likes {food}
children love {sport}
most people {did}
somebody stole the {thing}
{org} hired a {job}
the {thing} and the {thing} are {adj}
we drank {num} cups of {stuff}
{lang} is {adj}
no {job} speaks {lang}
{org} makes {thing}s for {job}s
{stuff} and {food} are all we need
the {job} repaired the {thing} on {day}
{lang} has many words for {stuff}
the {job} was ill on {day}
the {thing} broke
the {thing} was {adj}
the shop sells {thing}s and {food}
the door was open
the children played {sport}
the {lang} book is on the table
the office closes at {time}
the first {thing} was made in {year}
the concert was {adj}
the doctor came at {time}
the story is {adj}
it was a {adj} day
it was {day}
it costs {num} euros
it never rains in {month}
I cannot find my {thing}
I was born in {year}
I am a {job}
I have {num} {thing}s
I study {lang}
I forgot my {thing} at {org}
we met at {time} on {day}
we have no {food}
we went home at {time}
they moved in {month}
they won {num} games
she drinks {stuff} every {day}
he works at {org}
he bought {food} and {food}
my {relative} is a {job}
my {relative} is ill
a {job} bought my {thing}
{num} {thing}s were stolen
{num} {job}s {did}
{day} is my favourite day
{month} was {adj}
{org} was founded in {year}
{org} is looking for a {job}
{org} and {org} are {adj}
{sport} is a {adj} game
{food} and {food} are {adj}
{lang} was my first language
the visitors {did}
the {job} cooked {food}
the {job} travelled by train
the letter arrives on {day}
we leave when the {job} arrives
the {job} praised the {food}
the shops are {adj}
the {food} is hard
it is hard to find a {job}
two cups of tea cost {num} euros
I forgot the name of the {job}
the {job} wrote his name in the book
the {job} ate nothing
nobody talked
my {relative} rented a room
the bridge is {adj}
we crossed the river at {time}
most {job}s {did}
most of the {food} was gone
snow is {adj}
rain fell on the {thing}
the photo costs {num} euros
the factory is closed
the concert was cancelled
we found the {thing} that the {job} lost
nobody wants to marry the {job}
they stole {num} euros from {org}
our town is small and quiet
the place is quiet
the road is {adj} and long
the ship is {adj}
the {job} drank {stuff}
""".strip().split("\n")
