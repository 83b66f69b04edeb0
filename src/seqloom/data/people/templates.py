"""What the sentences of `people` are made from.

    {per} a person in any form    {first} a given name alone    {full} given and family name    {last} a family name
    {loc} a place of one to three words
    {who} persons: one, several, with a title, explained; {where} places likewise
    all other slots are filled from `fillers.py` and are no entities

A sentence is a clause, alone or with a lead before it, an addition after it, or a second clause; or it is a whole
sentence (a question, a greeting, a heading), which stands alone. Those of dev and test (`held_out.py`) are none of
train's, though train has sentences like them. What joins clauses, the lists below, is common to all splits.
"""

from seqloom.data.people.clauses import PEOPLE
from seqloom.data.people.held_out import DEV_CLAUSES, DEV_WHOLE, TEST_CLAUSES, TEST_WHOLE
from seqloom.data.people.sentences import NEITHER, PLACES
from seqloom.data.people.whole import WHOLE

WHO = (
    "{title} {last}",
    "{title} {last}",
    "{title} {last}",
    "{title} {full}",
    "{title} {last} and {per}",
    "{per} and {per}",
    "{per} and {per}",
    "{per} and {per}",
    "{first}, {first} and {first}",
    "{per}, {per} and {per}",
    "{full}, a {job},",
    "{full}, the {job},",
    "{full}, a {job} from {loc},",
    "{full} ({num})",
    "my {relative} {first}",
    "her {relative} {full}",
    "the {job} {full}",
    "{per}'s {relative}",
)
WHERE = (
    "{loc} and {loc}",
    "{loc} and {loc}",
    "{loc}, {loc} and {loc}",
    "{loc}, {loc} and {loc}",
    "{loc} or {loc}",
    "the north of {loc}",
    "the centre of {loc}",
    "a village near {loc}",
    "the city of {loc}",
    "the town of {loc}",
    "{loc}, not far from {loc},",
)
LEADS = (
    "{adv}",
    "{adv}",
    "{adv}",
    "{adv},",
    "{adv},",
    "in {loc},",
    "in {loc},",
    "in the city of {loc},",
    "in the north of {loc},",
    "near {loc},",
    "not far from {loc},",
    "on {day}",
    "in {year}",
    "in {month}",
    "before {year},",
    "since {year}",
    "last {day},",
    "in the spring of {year}",
    "at {time}",
    "I think",
    "they say that",
    "we hear that",
    "I was told that",
    "according to {per},",
    "{per} said that",
    "{per} knows that",
    "{per} told me that",
    "{title} {last} believes that",
    "when {per} was in {loc},",
    "after {num} years in {loc},",
    "as you know,",
)
ADDITIONS = (
    "on {day}",
    "last year",
    "at {time}",
    "in {year}",
    "in {month}",
    "since {year}",
    "again",
    "with {per}",
    "together with {per}",
    "without {per}",
    "because of {per}",
    "before {per} arrived",
    "after {per} left",
    "until {per} came",
    "while {per} slept",
    "when {per} was in {loc}",
    "outside {loc}",
    "somewhere in {loc}",
    "on the road to {loc}",
    ", says {per}",
    ", {per} said",
    ", said {title} {last}",
)
JOINTS = (" and ", ", but ", ", while ", "; ", ", so ", " because ", " when ")


CLAUSES = {"train": (*PEOPLE, *PLACES, *NEITHER), "dev": tuple(DEV_CLAUSES), "test": tuple(TEST_CLAUSES)}
WHOLES = {"train": tuple(WHOLE), "dev": tuple(DEV_WHOLE), "test": tuple(TEST_WHOLE)}


def how_many(split: str) -> int:
    return len(CLAUSES[split]) + len(WHOLES[split])
