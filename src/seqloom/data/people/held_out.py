"""The templates of dev and test, one a line: like those of train, and none of them."""

DEV_CLAUSES = """
{who} rented a house in {where}
the concert in {loc} was cancelled because {per} was ill
{per}'s {adj} {thing} is still in {loc}
we asked {who} about the {food}
we saw {first} and {first} in {where}
{org} needs a {job} in {loc}
there is no train from {loc} to {where}
{full} and {title} {last} wrote the letter for {org}
snow fell in {where}
{per}'s {relative} {first} bought {num} {thing}s
they named the bridge after {full}
{loc} elected a new mayor, {full}
{who} stole a {thing} from {who}
{loc} is a quiet place near {loc}
the {thing} costs {num} euros
we ate {food} and talked about {sport}
""".strip().split("\n")

DEV_WHOLE = """
Did {first} send you the {thing}?
Thanks, {first}!
Is there a museum in {loc}?
Where does {per} work?
Why is {lang} so hard?
To: {full}
""".strip().split("\n")

TEST_CLAUSES = """
{per} comes from {where}
{per} grew up near {loc} and works for {org}
I have not seen {who} since {month}
{first}, {first} and {first} cooked the {food}
{title} {last}, a {job}, moved to {loc} in {year}
the {thing} that {per} lost was found in {where}
{who} travelled to {where}
{full}'s {relative}, {full}, is a {job} in {loc}
she told {first} that the train to {loc} was {adj}
the factory in {loc} was closed in {year}
the ship from {where} arrives at {time}
the shops in {where} are closed on {day}
{org} asked {who} for {num} euros
the photo by {full} was sold in {loc}
the {job} gave {who} a {adj} {thing}
{loc}'s mayor, {full}, was late
{loc} is a small town between {loc} and {loc}
{loc} has a {adj} museum
most of the visitors came from {loc}, {loc} and {loc}
{full} (born in {loc} in {year}) is a {job}
our {job} in {loc} is {full}
the road between {loc} and {loc} is {adj}
{title} {last} praised {who} for the {thing}
they crossed the river near {where}
{who} bought {num} {thing}s in {where}
{per} refused to live with {per}
he wants to marry {first}
my name is {full} and I live in {loc}
the {job} drank {num} cups of tea
{lang} is not hard
the {thing} is {adj}
nobody ate the {food}
""".strip().split("\n")

TEST_WHOLE = """
Do you know {per} from {loc}?
Is {loc} far from {loc}?
See you in {loc}, {first}!
What did {who} say?
Where were {first} and {first} on {day}?
Isn't the {thing} {adj}?
""".strip().split("\n")
