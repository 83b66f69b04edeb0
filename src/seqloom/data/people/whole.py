"""Sentences of train that stand alone, one a line: questions, greetings, headings."""

WHOLE = """
Who is {full}?
Where on the map is {loc}?
Which country is {loc} in?
Have you met {per}?
Have you ever been to {loc}?
How far is {loc} from {loc}?
Is {per} at home?
Is {loc} a large city?
Is {first} coming on {day}?
Did {per} call?
When does the train to {loc} leave?
Does {per} live in {loc}?
Why is {per} in {loc}?
Could you call {title} {last} before {time}?
What time is it?
Do you speak {lang}?
Dear {first}, thank you for the {thing}.
Dear {title} {last}, we have received your letter.
Come on, {first}, we are late!
{first}, where did you put the {thing}?
Hello {first}, how is the weather in {loc}?
Happy birthday, {first}!
Good morning, {title} {last}!
Ask {first} or {first}; they know the way.
Please bring the {thing} and {num} euros.
Thank you very much for your help!
Best wishes, {first}
Greetings from {loc}!
Welcome to {loc}, {first}!
Signed: {full}, {loc}, {month} {year}
Author: {full}
Name: {full}
Place of birth: {loc}
From: {full}
Address: {loc}
"I am tired," said {per}.
"Come in," {per} said.
{per} said: "The {food} is cold."
{first} isn't here; {first} is.
My name is {full}.
I am {per}, and this is {per}.
Are {first} and {first} at home?
Where did {who} go on {day}?
Is it far from {loc} to {loc}?
Is the weather in {loc} {adj}?
When did {who} leave {loc}?
Isn't it {adj}?
See you on {day}, {first}!
Don't forget the {thing}, {first}!
Where is {per} now?
Where are {first} and {first}?
Where was {per} on {day}?
Where does {who} live?
What does {who} want?
What has {per} done?
When did {who} arrive?
When will {per} come?
Why did {who} leave?
How old is {per}?
Can {per} swim?
Will {per} come on {day}?
Has {per} called?
Was {per} there?
Do {first} and {first} speak {lang}?
Do you live in {loc}?
How large is {loc}?
How many people live in {loc}?
When was {loc} founded?
Is {loc} near the sea?
Is {loc} a part of {loc}?
What is {loc} famous for?
Which train goes to {loc}?
Are there any {job}s in {loc}?
Is the {thing} {adj}?
Aren't you a {job}?
Sorry, {first}!
Goodbye, {first}, and thank you!
Yes, {first} {did}.
No, {loc} is far away.
Congratulations, {first} and {first}!
Cheers!
Thanks!
Many thanks, {first}!
Great idea, {first}.
Nice to meet you, {first}.
I am in {loc}, {first}.
Wait for {first}!
Subject: {food}
Date: {day}
Contact: {full}, {org}
Is {first} the {relative} of {first}?
Who was the mayor of {loc} in {year}?
Which is older, {loc} or {loc}?
Tell {first} that the {thing} is {adj}.
Good luck in {loc}, {first}!
Happy New Year from {loc}!
Photo: {full}
Regards, {full}, {loc}
Has anyone seen the {thing}?
Tell {first} that we are late!
Say hello to {first} for me.
Give {first} the {thing}, please.
Let {first} go!
Listen, {first}: the {thing} is {adj}.
Stop it, {first}!
Good night, {first}!
Good morning from {loc}!
How are you, {first}?
How is the food in {loc}?
How do I get from {loc} to {loc}?
How long did {per} stay in {loc}?
Who told {first} about the {thing}?
Who lives in {loc}?
Whose {thing} is it, {first}'s or {first}'s?
Which of you is {first}?
Which city is larger, {loc} or {loc}?
What did {title} {last} say?
What is the capital of {loc}?
What happened in {loc} in {year}?
What a {adj} {thing}!
When does {who} come home?
When is the next train to {loc}?
Why does {per} speak {lang}?
Why did {org} leave {loc}?
Did you see {first} or {first}?
Does {first} like {food}?
Are you from {loc}?
Are you {first}?
Are {loc} and {loc} in the same country?
Is {title} {last} ill?
Is it cold in {loc}?
Is {first} older than {first}?
Is this the train to {loc}?
Is there any {food}?
Was it {first} or {first}?
Has {who} ever been to {loc}?
Have {first} and {first} left {loc}?
Shall we ask {first}?
Would you like some {food}?
Happy New Year!
Next stop: {loc}
Weather in {loc}: {adj}
Photo by {full}
Translated by {full}
Director: {full}
Present: {first}, {first}, {first} and {title} {last}
Destination: {loc}
Born: {loc}, {year}
Sincerely, {full}
Love, {first}
With best regards from {loc}, {first}
"We are late," {first} told {first}.
"Where is my {thing}?" asked {per}.
"It is cold in {loc}," wrote {per}.
{title} {last} asked: "Who is there?"
To {first}, with love
To whom does the {thing} belong?
To get to {loc}, take the bus.
Thanks for the {thing}, {title} {last}!
Thanks to {first}, we found the {thing}.
Thanks a lot!
Is {first} still in {loc}?
Did you send the {thing} to {loc}?
Can you send {first} a {thing}?
Why is the {thing} so {adj}?
Why is it so hard to find {food}?
Is there a bridge in {loc}?
Is there a {job} in {loc}?
Where does the train to {loc} stop?
Where does {title} {last} come from?
Where were you on {day}?
Where were the {thing}s made?
What did you say?
What did {first} and {first} buy?
Do you know the way to {loc}?
Do you know {title} {last}?
Isn't {first} a {job}?
Isn't it raining in {loc}?
See you on {day}!
See {full}, {year}
""".strip().split("\n")
