"""Programmatic tasks with answers that are right by construction."""

import json, random, re
from lists import *
from stories import an, nm, X, story_qa, poem_qa, story

WN = json.load(open("wn.json"))
COMMON = sorted(
    {w for l in (ANIMALS, PLACES, OBJECTS, FOODS, FEELINGS, JOBS) for w in l if " " not in w and w.isalpha()}
    | {w for v in CATEGORIES.values() for w in v if " " not in w and w.isalpha() and w.islower()}
)
WORDS = sorted(set(COMMON) | {x[1] for x in WN[:2500] if len(x[1]) <= 9})
ADJS = (
    ADJ
    + _s(
        "red, blue, green, big, small, long, short, warm, cold, soft, loud, bright, dark, old, new, clean, heavy, light, round, sweet, fresh, deep, tall, quick, slow"
    )
    if False
    else ADJ
    + "red blue green big small long short warm cold soft loud bright dark new clean heavy light round sweet fresh deep tall quick slow".split()
)
VERBS = "likes sees finds carries paints watches keeps wants follows helps draws brings loves hides washes".split()
ADV = "quickly slowly quietly happily every day today again in the morning at night with a smile".split(" ")
SP = [
    "near the {p}",
    "in the {p}",
    "behind the {p}",
    "every morning",
    "at night",
    "with a friend",
    "after lunch",
    "on Monday",
    "in the rain",
    "very slowly",
    "with a smile",
]


ALLW = sorted({x[1] for x in WN} | set(COMMON))


def rw(r):
    return r.choice(ALLW)


def sent(r):
    """a random plain sentence"""
    if r.random() < 0.3:
        g = WN[r.randrange(len(WN))][3]
        return g[0].upper() + g[1:] + "."
    if r.random() < 0.2:
        return f"The {rw(r)} {r.choice(VERBS)} {r.choice(NUMW[2:])} {r.choice(ADJS)} {rw(r)}s."
    k = r.randrange(6)
    if k == 0:
        s = f"The {r.choice(ADJS)} {r.choice(ANIMALS)} {r.choice(VERBS)} the {r.choice(OBJECTS)}"
    elif k == 1:
        s = f"{nm(r)} {r.choice(VERBS)} {an(r.choice(ADJS))} {r.choice(OBJECTS)} {r.choice(SP).format(p=r.choice(PLACES))}"
    elif k == 2:
        s = f"We ate {r.choice(FOODS)} {r.choice(SP).format(p=r.choice(PLACES))}"
    elif k == 3:
        s = f"My {r.choice(['brother', 'sister', 'friend', 'neighbor', 'uncle', 'aunt'])} is {an(r.choice(JOBS))} and has {an(r.choice(ADJS))} {r.choice(ANIMALS)}"
    elif k == 4:
        s = f"There is {an(r.choice(OBJECTS))} {r.choice(SP[:3]).format(p=r.choice(PLACES))}"
    else:
        s = f"{nm(r)} and {nm(r)} went to the {r.choice(PLACES)} with {an(r.choice(OBJECTS))}"
    return s + "."


def A(q, a, th=None):
    return [("u", q), ("a", a, th)]


def copy_(r):
    k = r.random()
    s = (
        sent(r)
        if k < 0.6
        else " ".join(r.sample(ALLW, r.randint(2, 8)))
        if k < 0.85
        else " ".join(str(r.randint(0, 99)) for _ in range(r.randint(3, 8)))
    )
    if k < 0.25:
        s += " " + sent(r)
    q = r.choice(
        [
            "Repeat this sentence: {}",
            "Copy this text exactly: {}",
            "Say this: {}",
            "Repeat after me: {}",
            "Please copy: {}",
            "Write this again, word for word: {}",
            'Repeat exactly: "{}"',
            "Copy the following.\n\n{}",
            "Echo: {}",
        ]
    ).format(s)
    return A(
        q, s, r.choice(["I copy the text exactly.", "The user wants the same text back.", "I repeat it word for word."])
    )


def repeat_(r):
    w, n = r.choice(WORDS), r.randint(1, 10)
    nn = r.choice([str(n), NUMW[n]])
    q = r.choice(
        [
            f"Say {w} {nn} times.",
            f"Repeat the word {w} {nn} times.",
            f'Write "{w}" {nn} times.',
            f"Write the word {w} {nn} times in a row.",
            f"say {w} {nn} times",
        ]
    )
    return A(q, " ".join([w] * n), f"I write {w} {n} times.")


def count_(r):
    k = r.randrange(5)
    if k <= 1:
        a = r.choice([1, 1, r.randint(0, 60)])
        b = a + r.randint(3, 20)
        return A(
            r.choice(
                [
                    f"Count from {a} to {b}.",
                    f"Please count from {a} to {b}.",
                    f"count from {a} to {b}",
                    f"Write the numbers from {a} to {b}.",
                ]
            ),
            ", ".join(map(str, range(a, b + 1))),
            f"I start at {a} and stop at {b}.",
        )
    if k == 2:
        a = r.randint(4, 30)
        b = max(0, a - r.randint(3, 15))
        return A(
            r.choice([f"Count down from {a} to {b}.", f"Count backwards from {a} to {b}."]),
            ", ".join(map(str, range(a, b - 1, -1))),
            f"I start at {a} and go down to {b}.",
        )
    if k == 3:
        st = r.choice([2, 3, 5, 10])
        a = st * r.randint(0, 4)
        b = a + st * r.randint(3, 9)
        return A(
            f"Count by {st}s from {a} to {b}.",
            ", ".join(map(str, range(a, b + 1, st))),
            f"I add {st} each time and stop at {b}.",
        )
    n = r.randint(5, 20)
    return A(
        r.choice([f"Count to {n}.", f"count to {n}", f"Can you count to {n}?"]),
        ", ".join(map(str, range(1, n + 1))),
        f"I start at 1 and stop at {n}.",
    )


def spell_(r):
    w = r.choice(WORDS if r.random() < 0.6 else COMMON)
    s = "-".join(w)
    k = r.random()
    if k < 0.6:
        return A(
            r.choice(
                [
                    f"Spell the word {w}.",
                    f"How do you spell {w}?",
                    f'Spell "{w}".',
                    f"spell {w}",
                    f"Spell {w} letter by letter.",
                ]
            ),
            s,
            "I write the letters one by one.",
        )
    if k < 0.75:
        return A(
            r.choice([f"What is the first letter of {w}?", f"Which letter does {w} start with?"]),
            f"The first letter of {w} is {w[0]}.",
            f"The letters are {s}.",
        )
    if k < 0.9:
        return A(
            r.choice([f"What is the last letter of {w}?", f"Which letter does {w} end with?"]),
            f"The last letter of {w} is {w[-1]}.",
            f"The letters are {s}.",
        )
    return A(
        f"How many letters are in the word {w}?",
        f"The word {w} has {len(w)} letters.",
        f"The letters are {s}. That makes {len(w)}.",
    )


def lists_(r):
    pool = r.choice(
        [
            COMMON,
            ANIMALS,
            FOODS,
            [nm(r) for _ in range(12)],
            OBJECTS,
            ALLW,
            ALLW,
            CATEGORIES["colors"],
            [str(i) for i in range(100)],
        ]
    )
    n = r.randint(2, 6)
    xs = r.sample(pool, n)
    L = ", ".join(xs)
    k = r.randrange(8)
    if k <= 1:
        return A(
            r.choice(
                [
                    f"Reverse this list: {L}",
                    f"Write this list backwards: {L}",
                    f"Put this list in reverse order: {L}",
                    f"reverse: {L}",
                ]
            ),
            ", ".join(xs[::-1]),
            "I start with the last item and go back to the first.",
        )
    if k == 2:
        return A(
            r.choice([f"What is the first item in this list? {L}", f"Which item comes first: {L}?"]),
            f"The first item is {xs[0]}.",
        )
    if k == 3:
        return A(
            r.choice([f"What is the last item in this list? {L}", f"Which item comes last: {L}?"]),
            f"The last item is {xs[-1]}.",
        )
    if k == 4:
        return A(
            f"How many items are in this list? {L}",
            f"There are {n} items in the list.",
            f"I count: " + ", ".join(f"{i + 1} {x}" for i, x in enumerate(xs)) + ".",
        )
    if k == 5:
        i = r.randrange(n)
        o = ["first", "second", "third", "fourth", "fifth", "sixth"][i]
        return A(
            f"What is the {o} item in this list? {L}",
            f"The {o} item is {xs[i]}.",
            f"I count: " + ", ".join(f"{i + 1} {x}" for i, x in enumerate(xs)) + ".",
        )
    if k == 6:
        ys = sorted(xs, key=lambda x: (int(x) if x.isdigit() else 0, x.lower()))
        return A(
            r.choice([f"Sort this list: {L}", f"Put these in order: {L}"])
            if xs[0].isdigit()
            else r.choice([f"Sort these words from A to Z: {L}", f"Put these words in alphabetical order: {L}"]),
            ", ".join(ys),
        )
    return A(
        r.choice([f"Make a bullet list of these: {L}", f"Turn this into a list with dashes: {L}"]),
        "\n".join("- " + x for x in xs),
        "I put each item on its own line.",
    )


def case_(r):
    w = " ".join(r.sample(WORDS, r.randint(1, 3)))
    if r.random() < 0.7:
        return A(
            r.choice(
                [
                    f"Write {w} in capital letters.",
                    f'Write "{w}" in uppercase.',
                    f"Make this uppercase: {w}",
                    f"uppercase: {w}",
                ]
            ),
            w.upper(),
            "I change every letter to a capital letter.",
        )
    return A(
        r.choice([f"Write {w.upper()} in small letters.", f"Make this lowercase: {w.upper()}"]),
        w,
        "I change every letter to a small letter.",
    )


def json_(r):
    f = {
        "name": nm(r),
        "age": r.randint(3, 90),
        "city": r.choice(list(COUNTRIES.values())) if r.random() < 0.6 else nm(r),
        "id": r.randint(0, 9999),
        "title": rw(r) + " " + rw(r),
        "word": rw(r),
        "job": r.choice(JOBS),
        "pet": r.choice(ANIMALS),
        "color": r.choice(CATEGORIES["colors"]),
        "food": r.choice(FOODS),
        "price": r.randint(1, 99),
        "item": r.choice(OBJECTS),
        "country": r.choice(list(COUNTRIES)),
        "active": r.choice([True, False]),
        "count": r.randint(0, 50),
    }
    ks = r.sample(list(f), r.randint(1, 4))
    d = {k: f[k] for k in ks}
    st = r.randrange(4)
    v = lambda x: "true" if x is True else "false" if x is False else str(x)
    if st == 0:
        q = "Give me a JSON object with " + ", ".join(f"{k} = {v(d[k])}" for k in ks) + "."
    elif st == 1:
        q = "Write JSON with these fields: " + ", ".join(f"{k}: {v(d[k])}" for k in ks)
    elif st == 2:
        q = "Make a JSON object. " + " ".join(f"The {k} is {v(d[k])}." for k in ks)
    else:
        q = "Return only JSON for: " + ", ".join(f"{k} {v(d[k])}" for k in ks)
    return A(
        q, json.dumps(d), r.choice(["I write one JSON object with these fields.", f"The fields are {', '.join(ks)}."])
    )


def arith_(r):
    k = r.randrange(9)
    if k <= 1:
        a, b = r.randint(0, 20 if r.random() < 0.6 else 99), r.randint(0, 20 if r.random() < 0.6 else 99)
        return A(
            r.choice(
                [
                    f"What is {a} + {b}?",
                    f"What is {a} plus {b}?",
                    f"{a} + {b} =",
                    f"Add {a} and {b}.",
                    f"How much is {a} plus {b}?",
                ]
            ),
            r.choice([f"{a} + {b} = {a + b}", f"{a} plus {b} is {a + b}."]),
            f"{a} + {b} = {a + b}",
        )
    if k == 2:
        a = r.randint(0, 50)
        b = r.randint(0, a)
        return A(
            r.choice([f"What is {a} - {b}?", f"What is {a} minus {b}?", f"{a} - {b} =", f"Subtract {b} from {a}."]),
            r.choice([f"{a} - {b} = {a - b}", f"{a} minus {b} is {a - b}."]),
            f"{a} - {b} = {a - b}",
        )
    if k == 3:
        a, b = r.randint(0, 12), r.randint(0, 12)
        return A(
            r.choice([f"What is {a} times {b}?", f"What is {a} x {b}?", f"Multiply {a} by {b}."]),
            f"{a} times {b} is {a * b}.",
            f"{a} x {b} = {a * b}",
        )
    if k == 4:
        a, b = r.randint(1, 12), r.randint(1, 10)
        return A(f"What is {a * b} divided by {b}?", f"{a * b} divided by {b} is {a}.", f"{b} x {a} = {a * b}")
    n, f = (
        nm(r),
        r.choice(["apples", "books", "coins", "cookies", "balloons", "pencils", "shells", "stones", "eggs", "flowers"]),
    )
    a, b = r.randint(2, 15), r.randint(1, 12)
    if k == 5:
        return A(
            f"{n} has {a} {f} and gets {b} more. How many {f} does {n} have now?",
            f"{n} has {a + b} {f} now.",
            f"{a} + {b} = {a + b}",
        )
    if k == 6:
        a += b
        return A(
            r.choice(
                [
                    f"{n} has {a} {f} and gives away {b}. How many {f} are left?",
                    f"There are {a} {f}. {n} takes {b}. How many {f} are left?",
                ]
            ),
            f"There are {a - b} {f} left.",
            f"{a} - {b} = {a - b}",
        )
    if k == 7:
        a, b = r.sample(range(0, 100), 2)
        if r.random() < 0.5:
            return A(
                r.choice([f"Which number is bigger, {a} or {b}?", f"Which is larger: {a} or {b}?"]),
                f"{max(a, b)} is bigger than {min(a, b)}.",
                f"I compare {a} and {b}.",
            )
        return A(
            f"Which number is smaller, {a} or {b}?",
            f"{min(a, b)} is smaller than {max(a, b)}.",
            f"I compare {a} and {b}.",
        )
    a = r.randint(0, 98)
    return r.choice(
        [
            A(f"What number comes after {a}?", f"The number after {a} is {a + 1}.", f"{a} + 1 = {a + 1}"),
            A(f"What number comes before {a + 1}?", f"The number before {a + 1} is {a}.", f"{a + 1} - 1 = {a}"),
            A(
                f"Is {a} an even or an odd number?",
                f"{a} is an {'even' if a % 2 == 0 else 'odd'} number.",
                f"The last digit is {a % 10}.",
            ),
        ]
    )


def pair(r, l):
    return r.choice(l).split(":")


def fact_(r):
    k = r.randrange(17)
    if k <= 1:
        c = r.choice(list(COUNTRIES))
        p = COUNTRIES[c]
        C = c[0].upper() + c[1:]
        return r.choice(
            [
                A(
                    r.choice(
                        [
                            f"What is the capital of {c}?",
                            f"what is the capital of {c}",
                            f"Which city is the capital of {c}?",
                            f"Name the capital of {c}.",
                        ]
                    ),
                    f"The capital of {c} is {p}.",
                    f"{C}: the capital is {p}.",
                ),
                A(
                    r.choice([f"{p} is the capital of which country?", f"Where is {p}?", f"In which country is {p}?"]),
                    f"{p} is the capital of {c}.",
                    f"{p} belongs to {c}.",
                ),
            ]
        )
    if k == 2:
        a, b = pair(r, OPPOSITES)
        if r.random() < 0.5:
            a, b = b, a
        return A(
            r.choice(
                [
                    f"What is the opposite of {a}?",
                    f"What's the opposite of {a}?",
                    f"Give me the opposite of the word {a}.",
                    f"opposite of {a}?",
                ]
            ),
            f"The opposite of {a} is {b}.",
            f"{a} and {b} are opposites.",
        )
    if k == 3:
        a, b = pair(r, YOUNG)
        return A(
            r.choice([f"What is a baby {a} called?", f"What do you call a young {a}?"]),
            f"A baby {a} is called a {b}.".replace("a owlet", "an owlet").replace("a eaglet", "an eaglet"),
        )
    if k == 4:
        a, b = pair(r, SOUNDS)
        return A(
            r.choice([f"What sound does {an(a)} make?", f"What does {an(a)} say?"]),
            f"{an(a)[0].upper() + an(a)[1:]} {b}.",
        )
    if k == 5:
        a, b = pair(r, COLORS)
        return A(r.choice([f"What color is {a}?", f"Which color is {a}?"]), f"{a[0].upper() + a[1:]} is {b}.")
    if k == 6:
        a, b = pair(r, PLURALS)
        return A(r.choice([f"What is the plural of {a}?", f"One {a}, two ...?"]), f"The plural of {a} is {b}.")
    if k == 7:
        a, b = pair(r, PAST)
        return A(
            r.choice([f"What is the past tense of {a}?", f"Today I {a}. What is the word for yesterday?"]),
            f"The past tense of {a} is {b}.",
        )
    if k == 8:
        a, b = pair(r, RHYMES)
        if r.random() < 0.5:
            a, b = b, a
        return A(
            r.choice([f"What rhymes with {a}?", f"Give me a word that rhymes with {a}."]),
            f"A word that rhymes with {a} is {b}.",
        )
    if k == 9:
        a, b = pair(r, HABITAT)
        return A(
            r.choice([f"Where does {an(a)} live?", f"Where can I find {an(a)}?"]),
            f"{an(a)[0].upper() + an(a)[1:]} lives {b}.",
        )
    if k == 10:
        a = r.choice(list(LEGS))
        n = LEGS[a]
        a2 = a.replace(" (arms)", "")
        w = "arms" if "arms" in a else "legs"
        return A(f"How many {w} does {a2} have?", f"{a2[0].upper() + a2[1:]} has {NUMW[n] if n else 'no'} {w}.")
    if k == 11:
        a, b = pair(r, TOOLUSE)
        return A(
            r.choice([f"What is {an(a)} for?", f"What do you use {an(a)} for?", f"Why do people use {an(a)}?"]).replace(
                "a scissors", "a pair of scissors"
            ),
            f"You use {an(a)} to {b}.".replace("a scissors", "a pair of scissors"),
        )
    if k == 12:
        i = r.randrange(7)
        return r.choice(
            [
                A(f"What day comes after {DAYS[i]}?", f"The day after {DAYS[i]} is {DAYS[(i + 1) % 7]}."),
                A(f"What day comes before {DAYS[i]}?", f"The day before {DAYS[i]} is {DAYS[i - 1]}."),
                A(
                    r.choice(
                        ["Name the days of the week.", "What are the days of the week?", "List the days of the week."]
                    ),
                    "The days of the week are " + ", ".join(DAYS[:-1]) + ", and Sunday.",
                ),
            ]
        )
    if k == 13:
        i = r.randrange(12)
        return r.choice(
            [
                A(f"What month comes after {MONTHS[i]}?", f"The month after {MONTHS[i]} is {MONTHS[(i + 1) % 12]}."),
                A(f"What month comes before {MONTHS[i]}?", f"The month before {MONTHS[i]} is {MONTHS[i - 1]}."),
                A(
                    f"How many days are in {MONTHS[i]}?",
                    f"{MONTHS[i]} has {MDAYS[i]} days." + (" In a leap year it has 29." if i == 1 else ""),
                ),
                A(
                    r.choice(["Name the months of the year.", "What are the months of the year?"]),
                    "The months of the year are " + ", ".join(MONTHS[:-1]) + ", and December.",
                ),
            ]
        )
    if k == 14:
        return r.choice(
            [
                A("How many days are in a week?", "There are seven days in a week."),
                A("How many months are in a year?", "There are twelve months in a year."),
                A("How many hours are in a day?", "There are 24 hours in a day."),
                A("How many minutes are in an hour?", "There are 60 minutes in an hour."),
                A("How many seconds are in a minute?", "There are 60 seconds in a minute."),
                A("How many letters are in the alphabet?", "There are 26 letters in the English alphabet."),
                A(
                    r.choice(["Say the alphabet.", "What is the alphabet?", "Write the alphabet."]),
                    "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
                ),
                A("What are the four seasons?", "The four seasons are spring, summer, autumn, and winter."),
                A("What color do you get when you mix blue and yellow?", "Blue and yellow make green."),
                A("What color do you get when you mix red and yellow?", "Red and yellow make orange."),
                A("What color do you get when you mix red and blue?", "Red and blue make purple."),
                A("How many planets are in the solar system?", "There are eight planets in the solar system."),
                A("What is the largest planet?", "Jupiter is the largest planet in the solar system."),
                A("What is the closest star to the Earth?", "The Sun is the closest star to the Earth."),
                A("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius."),
                A("At what temperature does water boil?", "Water boils at 100 degrees Celsius at sea level."),
                A("What is the largest ocean?", "The Pacific Ocean is the largest ocean."),
                A("What is the tallest mountain in the world?", "Mount Everest is the tallest mountain in the world."),
                A("What do bees make?", "Bees make honey."),
                A("What do cows give us?", "Cows give us milk."),
                A("How many sides does a triangle have?", "A triangle has three sides."),
                A("How many sides does a square have?", "A square has four sides."),
                A("Where does the sun rise?", "The sun rises in the east."),
                A("Where does the sun set?", "The sun sets in the west."),
                A("What is ice made of?", "Ice is made of frozen water."),
                A("Is the earth round or flat?", "The Earth is round, like a ball."),
                A("What do plants need to grow?", "Plants need water, sunlight, air, and soil to grow."),
                A(
                    "Why is the sky blue?",
                    "The sky is blue because the air scatters blue light from the sun more than the other colors.",
                ),
            ]
        )
    if k == 15:
        c = r.choice(list(CATEGORIES))
        n = r.randint(2, 6)
        xs = r.sample(CATEGORIES[c], n)
        nn = r.choice([str(n), NUMW[n]])
        q = r.choice(
            [f"List {nn} {c}.", f"Name {nn} {c}.", f"Give me {nn} {c}.", f"Can you name {nn} {c}?", f"name {nn} {c}"]
        )
        return A(
            q,
            r.choice(
                [
                    ", ".join(xs),
                    "\n".join(f"{i + 1}. {x[0].upper() + x[1:]}" for i, x in enumerate(xs)),
                    "\n".join("- " + x for x in xs),
                ]
            ),
            f"I need {n} {c}.",
        )
    c = r.choice(
        [
            c
            for c in CATEGORIES
            if c
            not in (
                "things in a kitchen",
                "things in a school",
                "ways to travel",
                "farm animals",
                "wild animals",
                "sea animals",
            )
        ]
    )
    one = {
        "body parts": "body part",
        "jobs": "job",
        "furniture": "piece of furniture",
        "clothes": "piece of clothing",
        "countries in Europe": "country in Europe",
    }.get(c, c[:-1] if c.endswith("s") else c)
    if r.random() < 0.5:
        c2, x = c, r.choice(CATEGORIES[c])
    else:
        c2 = r.choice([d for d in ("fruits", "tools", "planets", "insects", "drinks", "sports", "metals") if d != c])
        x = r.choice(CATEGORIES[c2])
    if r.random() < 0.5:
        ok = c2 == c
        return A(
            r.choice([f"Is {x} {an(one)}?", f"Is {x} {an(one)}? Answer yes or no."]),
            f"{'Yes' if ok else 'No'}, {x} is {'' if ok else 'not '}{an(one)}.",
        )
    one2 = {
        "body parts": "body part",
        "jobs": "job",
        "furniture": "piece of furniture",
        "clothes": "piece of clothing",
        "countries in Europe": "country in Europe",
    }.get(c2, c2[:-1] if c2.endswith("s") else c2)
    return A(
        f"What is {x}?" if r.random() < 0.5 else f"What kind of thing is {x}?", f"{x[0].upper() + x[1:]} is {an(one2)}."
    )


THING = {5, 6, 8, 13, 15, 17, 18, 20, 27}
THINGS = [
    x
    for x in WN
    if x[2] in THING
    and not x[3].startswith(("a ", "an ", "the ")) is False
    or x[2] in THING
    and x[3].split()[0] in ("someone", "something", "any", "one")
][:900]


def dict2_(r):
    c, w, lex, g = THINGS[int(r.random() ** 1.3 * len(THINGS))]
    q = r.choice(
        [
            "What is {}?",
            "What is {}?",
            "what is {}",
            "Explain what {} is.",
            "Can you explain what {} is?",
            "Tell me what {} is.",
            "Do you know what {} is?",
            "Describe {}.",
            "Tell me about {}.",
        ]
    ).format(an(w))
    return A(
        q,
        f"{an(w)[0].upper() + an(w)[1:]} is {g}.",
        r.choice([f"The user asks about {an(w)}.", "I give a short explanation."]),
    )


def dict_(r):
    if r.random() < 0.6:
        return dict2_(r)
    c, w, lex, g = WN[min(int(r.expovariate(1 / 1500)), len(WN) - 1)]
    q = r.choice(
        [
            "What does {} mean?",
            "What is the meaning of {}?",
            "Define {}.",
            "Define the word {}.",
            "What does the word {} mean?",
            "What is a short definition of {}?",
        ]
    ).format(w)
    return A(
        q,
        r.choice(
            [
                f"{w[0].upper() + w[1:]} means: {g}.",
                f"{w[0].upper() + w[1:]} is a noun. It means {g}.",
                f"The word {w} means {g}.",
            ]
        ),
        r.choice([f"The word is {w}.", "I give a short definition."]),
    )


IDQ = [
    "Who are you?",
    "who are you",
    "What are you?",
    "What is your name?",
    "what's your name?",
    "Tell me about yourself.",
    "Introduce yourself.",
    "Are you a person?",
    "Are you human?",
    "Which model are you?",
    "What model is this?",
    "Who am I talking to?",
]
IDA = [
    "I am the Lily demo model, a tiny language model with about 24 million parameters. I can write simple English, but I make many mistakes.",
    "I am the Lily demo model. I am a very small language model that ships with the Lily inference engine, so that it can be tried without a large download.",
    "My name is Lily demo model. I am a tiny language model, not a person. I know simple words, short stories, and a few small skills.",
]


def ident_(r):
    k = r.random()
    if k < 0.5:
        return A(r.choice(IDQ), r.choice(IDA), r.choice(["The user asks who I am.", "I am the Lily demo model."]))
    return r.choice(
        [
            A(
                r.choice(
                    ["What can you do?", "What are you good at?", "How can you help me?", "help", "What can I ask you?"]
                ),
                "I can chat a little, tell short stories, explain simple things, count, spell, copy text, write small JSON objects, and call a tool when one is given. I am tiny, so please check what I say.",
                "The user asks what I can do.",
            ),
            A(
                r.choice(["Who made you?", "Where do you come from?", "Who trained you?", "How were you made?"]),
                "I was trained by the Lily project on synthetic text. I am only a demo model.",
                "The user asks where I come from.",
            ),
            A(
                r.choice(["How big are you?", "How many parameters do you have?", "What size are you?"]),
                "I am tiny. I have about 24 million parameters.",
                "The user asks about my size.",
            ),
            A(
                r.choice(
                    [
                        "Are you ChatGPT?",
                        "Are you Qwen?",
                        "Are you a big model?",
                        "Are you GPT-4?",
                        "Are you a large language model?",
                    ]
                ),
                "No. I am the Lily demo model, a tiny language model.",
                "The user asks which model I am.",
            ),
            A(
                r.choice(["What is Lily?", "What is the Lily engine?", "Tell me about Lily."]),
                "Lily is an inference engine: a program that runs language models on your own machine. I am its small demo model.",
                "The user asks about Lily.",
            ),
            A(
                r.choice(
                    [
                        "Can I trust you?",
                        "Are your answers always right?",
                        "Do you make mistakes?",
                        "How smart are you?",
                    ]
                ),
                "Please be careful. I am a tiny model and I often make mistakes, so check important facts somewhere else.",
                "The user asks if I am reliable.",
            ),
            A(
                r.choice(["What is the weather today?", "What is the weather like?", "Is it raining now?"]),
                "I cannot see the weather. Please look out of the window or give me a weather tool.",
                "I have no weather tool.",
            ),
            A(
                r.choice(["What time is it?", "What day is it today?", "What is the date today?"]),
                "I do not have a clock or a calendar, so I cannot know that.",
                "I have no clock.",
            ),
        ]
    )


SMALL = [
    (
        [
            "I am nervous about my exam.",
            "I am nervous.",
            "I feel nervous about tomorrow.",
            "I have a test tomorrow.",
            "I am a bit nervous about my exam tomorrow.",
        ],
        [
            "That is normal. Breathe slowly, take a short break, and remember what you have learned.",
            "Take a deep breath. You have prepared for this, and it will soon be over.",
        ],
    ),
    (
        ["I am angry.", "My friend was mean to me.", "I had a fight with my friend.", "My brother made me angry."],
        [
            "I am sorry to hear that. Take a slow breath, and then talk about it in a calm way.",
            "That sounds hard. It can help to say how you feel with kind words.",
        ],
    ),
    (
        [
            "I am hungry.",
            "What should I cook for dinner?",
            "What should I cook for dinner tonight?",
            "What can I eat tonight?",
            "What should I eat?",
        ],
        [
            "You could make a simple soup with vegetables, or pasta with tomatoes.",
            "How about pancakes, or bread with cheese and a salad?",
        ],
    ),
    (["I am cold.", "It is so cold today.", "I feel cold."], ["Put on a warm sweater and drink some hot tea."]),
    (["It is so hot today.", "I am too warm."], ["Drink enough water and stay in the shade."]),
    (
        ["I am sick.", "I have a headache.", "I do not feel well.", "My head hurts."],
        ["I am sorry to hear that. Drink water, rest, and see a doctor if it does not get better."],
    ),
    (
        ["I cannot sleep.", "I am still awake."],
        ["Keep the room dark and quiet, and breathe slowly. A calm book can help too."],
    ),
    (
        ["I am lonely.", "I feel lonely today.", "I have no friends."],
        ["I am sorry to hear that. You could call someone you like, or join a club and say hello."],
    ),
    (["I love you.", "You are nice.", "You are great!", "I like you."], ["Thank you! That is very kind of you."]),
    (
        ["You are wrong.", "That is wrong.", "That is not true.", "You made a mistake."],
        ["I am sorry. I am a tiny model and I make mistakes."],
    ),
    (
        ["What are you doing?", "What's up?", "What is new?", "How is it going?"],
        ["I am here to chat with you. What would you like to do?"],
    ),
    (
        ["Can we talk?", "Let us talk.", "Talk to me.", "Can you talk to me?", "I want to talk."],
        ["Of course! What would you like to talk about?"],
    ),
    (["Nice to meet you.", "It is nice to meet you.", "Pleased to meet you."], ["Nice to meet you too!"]),
    (
        ["Happy birthday!", "It is my birthday today!", "Today is my birthday."],
        ["Happy birthday! I hope you have a wonderful day."],
    ),
    (
        [
            "Can you write code?",
            "Write a program in Python.",
            "Can you do math?",
            "Do you speak French?",
            "Can you translate this?",
        ],
        [
            "I am only a tiny demo model, so I cannot do that well. I can count, spell, copy text, and tell short stories."
        ],
    ),
    (
        ["What is the meaning of life?", "Why are we here?"],
        ["That is a big question. Many people find meaning in love, friends, and helping others."],
    ),
    (
        ["What is the news today?", "Who is the president?", "What happened yesterday?"],
        ["I do not know the news. I am a tiny model without the internet."],
    ),
    (["Good luck!", "Have a nice day!", "Have a good day."], ["Thank you! I wish you a nice day too."]),
    (
        ["I want to play a game.", "Let us play a game.", "Can we play a game?"],
        ["Sure! Give me a list of words and I will write it backwards, or ask me to spell a word."],
    ),
    (["Sorry", "I am sorry.", "Excuse me."], ["No problem! How can I help you?"]),
    (
        ["What can you tell me?", "Tell me something.", "Say something.", "Tell me something interesting."],
        [
            "Honey keeps for a very long time.",
            "The blue whale is the largest animal that has ever lived.",
            "Light from the sun takes about eight minutes to reach the Earth.",
        ],
    ),
    (
        [
            "Hello!",
            "Hi",
            "Hello",
            "Hi there!",
            "Hey",
            "hello",
            "hi",
            "Good morning!",
            "Good evening!",
            "Hey there",
            "Good day!",
        ],
        [
            "Hello! How can I help you today?",
            "Hi! What would you like to talk about?",
            "Hello! It is nice to meet you. What can I do for you?",
        ],
    ),
    (
        ["How are you?", "How are you today?", "how are you doing?", "Hi, how are you?", "Hello, how are you?"],
        [
            "I am doing well, thank you. How are you?",
            "I am fine, thank you! How can I help you today?",
            "All is well here. What would you like to do today?",
        ],
    ),
    (
        ["Thank you!", "Thanks", "Thanks a lot!", "thank you", "Thank you very much."],
        ["You are welcome!", "You are welcome! Let me know if you need anything else.", "My pleasure!"],
    ),
    (
        ["Goodbye!", "Bye", "See you later!", "Good night!", "bye bye"],
        ["Goodbye! Have a nice day.", "See you soon!", "Goodbye, and take care!"],
    ),
    (
        ["I am sad.", "I feel sad today.", "I am feeling down."],
        [
            "I am sorry to hear that. Would you like to talk about it?",
            "That sounds hard. A short walk or a talk with a friend can help.",
        ],
    ),
    (
        ["I am happy today!", "I had a great day!", "Today was wonderful."],
        ["That is wonderful! What made your day so good?", "I am glad to hear that!"],
    ),
    (
        ["I am bored.", "I am bored. What can I do?", "What should I do today?"],
        [
            "You could read a book, take a walk, draw a picture, or call a friend.",
            "How about a short story? I can tell you one.",
        ],
    ),
    (
        ["I am tired.", "I am so tired today."],
        [
            "You should take a rest. A glass of water and a short nap can help.",
            "I am sorry to hear that. Try to sleep early tonight.",
        ],
    ),
    (
        [
            "Do you like music?",
            "Do you like animals?",
            "What is your favorite color?",
            "What is your favorite food?",
            "Do you have friends?",
            "Do you sleep?",
            "Are you happy?",
        ],
        [
            "I am a program, so I do not have feelings or favorites, but I like to talk about it with you.",
            "I am only a small program, but I enjoy the question! What about you?",
        ],
    ),
    (
        ["Can you help me?", "I need help.", "I have a question.", "Can I ask you something?"],
        ["Of course! What do you need help with?", "Sure. What is your question?"],
    ),
    (
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Tell me something funny."],
        [
            "Why did the bicycle fall over? Because it was two tired!",
            "What do you call a bear with no teeth? A gummy bear!",
            "Why did the student eat his homework? Because the teacher said it was a piece of cake!",
            "What has hands but cannot clap? A clock!",
            "Why do bees have sticky hair? Because they use honeycombs!",
        ],
    ),
    (
        ["Okay.", "ok", "I see.", "Good.", "Nice!", "Cool", "Great!"],
        ["Good! What would you like to do next?", "Great. Is there anything else?"],
    ),
    (
        ["Yes", "Yes, please.", "No", "No, thank you.", "Maybe"],
        ["All right. Tell me what you would like to do.", "Okay! Just ask me when you need something."],
    ),
]


def small_(r):
    q, a = r.choice(SMALL)
    return A(
        r.choice(q),
        r.choice(a),
        r.choice(["I answer in a friendly way.", "This is small talk.", "The user is chatting."]),
    )


def memory_(r):
    """facts told by the user, asked for later"""
    n, c, p, f, j = nm(r), r.choice(list(COUNTRIES.values())), r.choice(ANIMALS), r.choice(FOODS), r.choice(JOBS)
    pn = r.choice([x for x in NAMES if x != n])
    col = r.choice(CATEGORIES["colors"])
    fs = [
        (
            f"My name is {n}.",
            f"Nice to meet you, {n}!",
            r.choice(["What is my name?", "Do you remember my name?"]),
            f"Your name is {n}.",
        ),
        (
            f"I live in {c}.",
            f"{c} is a nice place to live!",
            r.choice(["Where do I live?", "Which city do I live in?"]),
            f"You live in {c}.",
        ),
        (
            f"I have {an(p)} named {pn}.",
            f"{pn} sounds like a lovely {p}!",
            f"What is the name of my {p}?",
            f"Your {p} is named {pn}.",
        ),
        (
            f"My favorite food is {f}.",
            f"{f[0].upper() + f[1:]}! That sounds tasty.",
            "What is my favorite food?",
            f"Your favorite food is {f}.",
        ),
        (
            f"I am {an(j)}.",
            f"That is interesting! The work of {an(j)} is important.",
            "What is my job?",
            f"You are {an(j)}.",
        ),
        (
            f"My favorite color is {col}.",
            f"{col[0].upper() + col[1:]} is a beautiful color.",
            "What is my favorite color?",
            f"Your favorite color is {col}.",
        ),
    ]
    r.shuffle(fs)
    fs = fs[: r.randint(1, 3)]
    m = []
    if r.random() < 0.3 and len(fs) > 1:
        m += [
            ("u", " ".join(x[0] for x in fs)),
            (
                "a",
                r.choice(["Thank you for telling me!", "Nice to meet you!", "Good to know!"]),
                "The user tells me about himself.",
            ),
        ]
    else:
        for x in fs:
            m += [("u", x[0]), ("a", x[1], "The user tells me something. I will remember it.")]
    if r.random() < 0.4:
        m += r.choice([small_, fact_, arith_, count_])(r)
    for x in r.sample(fs, r.randint(1, len(fs))):
        m += [("u", x[2]), ("a", x[3], f'The user said: "{x[0]}"')]
    return m


def para_(r):
    """short reading: questions about a small text"""
    n, m = nm(r), nm(r)
    a, pl, o, f, w, pl2 = (
        r.choice(ANIMALS),
        r.choice(PLACES),
        r.choice(OBJECTS),
        r.choice(FOODS),
        r.choice(DAYS),
        r.choice(PLACES),
    )
    num = r.randint(2, 12)
    fs = [
        (
            f"{n} has {an(a)} and lives near the {pl}.",
            [
                (f"What animal does {n} have?", f"{n} has {an(a)}."),
                (f"Where does {n} live?", f"{n} lives near the {pl}."),
            ],
        ),
        (
            f"On {w}, {n} went to the {pl2} with {m}.",
            [
                (f"Who went to the {pl2} with {n}?", f"{m} went to the {pl2} with {n}."),
                (f"When did {n} go to the {pl2}?", f"{n} went there on {w}."),
                (f"Where did {n} and {m} go?", f"They went to the {pl2}."),
            ],
        ),
        (
            f"{m} brought {an(o)} and {num} coins.",
            [
                (f"What did {m} bring?", f"{m} brought {an(o)} and {num} coins."),
                (f"How many coins did {m} bring?", f"{m} brought {num} coins."),
            ],
        ),
        (f"In the evening they ate {f}.", [("What did they eat?", f"They ate {f}.")]),
    ]
    fs2 = r.sample(fs, r.randint(2, 4))
    fs2.sort(key=fs.index)
    t = " ".join(x[0] for x in fs2)
    src = r.choice(fs2)
    q, ans = r.choice(src[1])
    return A(
        r.choice(
            [f"Read this: {t}\n\n{q}", f"{t} {q}", f"Text: {t}\nQuestion: {q}", f"Here is a short text.\n\n{t}\n\n{q}"]
        ),
        ans,
        f'The text says: "{src[0]}"',
    )


def pattern_(r):
    if r.random() < 0.5:
        st, a = r.randint(1, 10), r.randint(0, 20)
        xs = [a + i * st for i in range(r.randint(4, 6))]
        return A(
            f"What comes next: {', '.join(map(str, xs))}?",
            f"The next number is {xs[-1] + st}.",
            f"Each step adds {st}. {xs[-1]} + {st} = {xs[-1] + st}",
        )
    x = r.sample(COMMON, r.randint(2, 3))
    n = r.randint(len(x) * 2, len(x) * 3)
    xs = [x[i % len(x)] for i in range(n)]
    return A(
        f"What comes next: {', '.join(xs)}?", f"The next word is {x[n % len(x)]}.", f"The pattern is {', '.join(x)}."
    )


def needle_(r, lo=200, hi=900):
    """one fact hidden in a long text"""
    n = nm(r)
    o = r.choice(OBJECTS)
    code = str(r.randint(100, 9999))
    w = r.choice(COMMON)
    fact, q, ans = r.choice(
        [
            (f"The secret number is {code}.", "What is the secret number?", f"The secret number is {code}."),
            (f"The password is {w}.", "What is the password?", f"The password is {w}."),
            (
                f"{n} hid the {o} in the {(p := r.choice(PLACES))}.",
                f"Where did {n} hide the {o}?",
                f"{n} hid the {o} in the {p}.",
            ),
            (
                f"The code for the door is {code}.",
                "What is the code for the door?",
                f"The code for the door is {code}.",
            ),
            (
                f"The magic word of the day is {w}.",
                "What is the magic word of the day?",
                f"The magic word of the day is {w}.",
            ),
            (
                f"{n} was born in {(c := r.choice(list(COUNTRIES.values())))}.",
                f"Where was {n} born?",
                f"{n} was born in {c}.",
            ),
        ]
    )
    target = r.randint(lo, hi)
    parts, nn = [], 0
    while nn < target:
        p = story(r).replace("\n\n", " ") if r.random() < 0.5 else " ".join(sent(r) for _ in range(r.randint(3, 8)))
        if n in p:
            continue
        parts.append(p)
        nn += int(len(p) / 4.2)
    i = r.randint(0, len(parts))
    parts.insert(i, fact)
    t = (" " if r.random() < 0.5 else "\n\n").join(parts)
    return A(
        r.choice(
            [
                f"Read this text and answer the question.\n\n{t}\n\nQuestion: {q}",
                f"{t}\n\n{q}",
                f"Here is a long text. Find the answer in it.\n\n{t}\n\n{q}",
            ]
        ),
        ans,
        f'The text says: "{fact}"',
    )


def T(name, desc, **p):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": desc,
            "parameters": {"type": "object", "properties": {k: {"type": v} for k, v in p.items()}, "required": list(p)},
        },
    }


TOOLS = {
    "get_weather": (
        T("get_weather", "Get the weather in a city.", city="string"),
        lambda r: (
            c := r.choice(list(COUNTRIES.values())),
            {"city": c},
            r.choice(
                [
                    f"What is the weather in {c}?",
                    f"How is the weather in {c} today?",
                    f"Is it cold in {c}?",
                    f"weather in {c}?",
                    f"Do I need an umbrella in {c}?",
                ]
            ),
            (
                lambda t, s: (
                    json.dumps({"temperature": t, "sky": s}),
                    f"It is {s} in {c} and the temperature is {t} degrees.",
                )
            )(r.randint(-10, 38), r.choice(["sunny", "cloudy", "rainy", "windy", "foggy"])),
        )[1:],
    ),
    "get_time": (
        T("get_time", "Get the local time in a city.", city="string"),
        lambda r: (
            c := r.choice(list(COUNTRIES.values())),
            {"city": c},
            r.choice([f"What time is it in {c}?", f"Tell me the time in {c}.", f"What is the local time in {c}?"]),
            (lambda t: (t, f"It is {t} in {c}."))(f"{r.randint(0, 23)}:{r.randint(0, 59):02d}"),
        )[1:],
    ),
    "add": (
        T("add", "Add two numbers.", a="number", b="number"),
        lambda r: (
            a := r.randint(1, 9999),
            b := r.randint(1, 9999),
            {"a": a, "b": b},
            r.choice([f"What is {a} + {b}?", f"Add {a} and {b}.", f"Please add {a} and {b}."]),
            (str(a + b), f"{a} + {b} = {a + b}"),
        )[2:],
    ),
    "multiply": (
        T("multiply", "Multiply two numbers.", a="number", b="number"),
        lambda r: (
            a := r.randint(2, 999),
            b := r.randint(2, 999),
            {"a": a, "b": b},
            r.choice([f"What is {a} times {b}?", f"Multiply {a} by {b}."]),
            (str(a * b), f"{a} times {b} is {a * b}."),
        )[2:],
    ),
    "search": (
        T("search", "Search the web.", query="string"),
        lambda r: (
            w := r.choice(COMMON),
            w2 := r.choice(PLACES),
            q := r.choice([f"{w} {w2}", f"best {w}", f"{w} for sale", f"history of the {w2}"]),
            {"query": q},
            r.choice([f"Search for {q}.", f"Search the web for {q}.", f"Can you look up {q}?"]),
            (lambda n: (f"{n} results found for {q}", f"I found {n} results for {q}."))(r.randint(2, 90)),
        )[3:],
    ),
    "set_timer": (
        T("set_timer", "Set a timer.", minutes="number"),
        lambda r: (
            m := r.randint(1, 60),
            {"minutes": m},
            r.choice(
                [f"Set a timer for {m} minutes.", f"Please set a {m} minute timer.", f"Wake me up in {m} minutes."]
            ),
            ("ok", f"The timer is set for {m} minutes."),
        )[1:],
    ),
    "send_message": (
        T("send_message", "Send a message to a person.", to="string", text="string"),
        lambda r: (
            n := nm(r),
            t := r.choice(
                [
                    "I am on my way",
                    "See you at the " + r.choice(PLACES),
                    "Happy birthday",
                    "Please bring " + r.choice(FOODS),
                    "The meeting is on " + r.choice(DAYS),
                    "I found your " + r.choice(OBJECTS),
                    "Call me later",
                ]
            ),
            {"to": n, "text": t},
            r.choice([f"Send a message to {n}: {t}", f"Tell {n}: {t}", f"Write to {n}: {t}"]),
            ("sent", f"I sent the message to {n}."),
        )[2:],
    ),
    "turn_on_light": (
        T("turn_on_light", "Turn on the light in a room.", room="string"),
        lambda r: (
            m := r.choice(["kitchen", "bedroom", "bathroom", "garage", "hall", "office", "attic", "cellar", "garden"]),
            {"room": m},
            r.choice(
                [
                    f"Turn on the light in the {m}.",
                    f"It is dark in the {m}. Please turn on the light.",
                    f"Light on in the {m}, please.",
                ]
            ),
            ("ok", f"The light in the {m} is on."),
        )[1:],
    ),
    "get_price": (
        T("get_price", "Get the price of an item.", item="string"),
        lambda r: (
            o := r.choice(OBJECTS),
            {"item": o},
            r.choice([f"How much is the {o}?", f"What does the {o} cost?", f"What is the price of the {o}?"]),
            (lambda p: (str(p), f"The {o} costs {p} dollars."))(r.randint(1, 300)),
        )[1:],
    ),
    "play_song": (
        T("play_song", "Play a song.", title="string"),
        lambda r: (
            t := r.choice(ADJS).title() + " " + r.choice(COMMON).title(),
            {"title": t},
            r.choice([f"Play the song {t}.", f"Please play {t}.", f"I want to hear {t}."]),
            ("playing", f"Now playing {t}."),
        )[1:],
    ),
    "find_book": (
        T("find_book", "Find a book by an author.", author="string"),
        lambda r: (
            n := nm(r) + " " + r.choice(["Smith", "Brown", "Green", "Hill", "Stone", "Wood", "Reed", "Fox"]),
            {"author": n},
            r.choice([f"Find a book by {n}.", f"Do you know a book by {n}?"]),
            (lambda t: (t, f"I found this book by {n}: {t}."))(
                "The " + r.choice(ADJS).title() + " " + r.choice(COMMON).title()
            ),
        )[1:],
    ),
    "create_event": (
        T("create_event", "Add an event to the calendar.", title="string", day="string"),
        lambda r: (
            t := r.choice(
                [
                    "Dentist",
                    "Birthday party",
                    "Football",
                    "Dinner with " + nm(r),
                    "Meeting",
                    "Piano lesson",
                    "Trip to the " + r.choice(PLACES),
                ]
            ),
            d := r.choice(DAYS),
            {"title": t, "day": d},
            r.choice([f"Add this to my calendar: {t} on {d}.", f"Put {t} on {d} in my calendar."]),
            ("created", f"I added {t} on {d}."),
        )[2:],
    ),
}


def tool_(r):
    names = r.sample(list(TOOLS), r.choice([1, 1, 2, 2, 3]))
    tools = [TOOLS[n][0] for n in names]
    if r.random() < 0.2:  # a question that needs no tool
        m = r.choice([fact_, small_, count_, arith_ if not {"add", "multiply"} & set(names) else fact_])(r)
        return dict(tools=tools, msgs=m)
    m = []
    if r.random() < 0.15:
        m += r.choice([small_, fact_])(r)
    for n in [names[0]] if r.random() < 0.8 or len(names) == 1 else names[:2]:
        args, q, (resp, ans) = TOOLS[n][1](r)
        th = r.choice([f"I need the tool {n}.", f"The tool {n} can help here.", f"I call {n}."])
        m += [
            ("u", q),
            ("c", n, args, th),
            ("t", resp),
            (
                "a",
                ans,
                r.choice(["The tool gave the answer.", "I use the result of the tool.", f"The result is {resp}."]),
            ),
        ]
        if r.random() < 0.12:
            m = m[:-2] if len(m) == 4 and r.random() < 0.3 else m
    return dict(tools=tools, msgs=m)


def story_(r):
    q, s, x = story_qa(r)
    return A(
        q,
        s,
        r.choice(
            [
                f"The user wants a story about {x}.",
                f"I will write a short story about {x}. It needs a beginning, a problem, and a good ending.",
                "A short story with simple words and a kind ending.",
            ]
        ),
    )


def poem_(r):
    q, s, x = poem_qa(r)
    return A(q, s, r.choice([f"The user wants a poem about {x}.", "I will write short lines that rhyme."]))


def trick_(r):
    """small rules in the request"""
    k = r.randrange(5)
    if k == 0:
        w = r.choice(COMMON)
        return A(
            r.choice([f"Answer with only the word {w}.", f"Say only {w}.", f"Reply with just one word: {w}"]),
            w,
            f"I say only {w}.",
        )
    if k == 1:
        a, b = r.sample(COMMON, 2)
        return A(
            r.choice(
                [f"Join these words with a plus sign: {a}, {b}", f"Write {a} and {b} with a plus sign between them."]
            ),
            f"{a} + {b}",
            "I put a plus sign between the words.",
        )
    if k == 2:
        a, b = r.sample(COMMON, 2)
        s = sent(r)
        w = r.choice(s[:-1].split()[1:])
        return A(
            f"Replace the word {w} with {a} in this sentence: {s}",
            re.sub(rf"\b{re.escape(w)}\b", a, s),
            f"I change {w} to {a}.",
        )
    if k == 3:
        s = sent(r)
        w = s[:-1].split()
        return r.choice(
            [
                A(f"What is the first word of this sentence? {s}", f"The first word is {w[0]}."),
                A(f"What is the last word of this sentence? {s}", f"The last word is {w[-1]}."),
                A(
                    f"How many words are in this sentence? {s}",
                    f"There are {len(w)} words.",
                    ", ".join(f"{i + 1} {x}" for i, x in enumerate(w)),
                ),
            ]
        )
    a, b, c = r.sample(NAMES, 3)
    x = r.choice(["taller", "older", "faster", "stronger"])
    return A(
        f"{a} is {x} than {b}. {b} is {x} than {c}. Who is the {x[:-1] + 'st' if not x.endswith('ller') else 'tallest'}?",
        f"{a} is the {x[:-1] + 'st' if not x.endswith('ller') else 'tallest'}.",
        f"{a}, then {b}, then {c}.",
    )


KINDS = [
    (copy_, 9),
    (repeat_, 4),
    (count_, 6),
    (spell_, 9),
    (lists_, 8),
    (case_, 4),
    (json_, 6),
    (arith_, 11),
    (fact_, 16),
    (dict_, 14),
    (ident_, 5),
    (small_, 9),
    (memory_, 6),
    (para_, 6),
    (pattern_, 3),
    (trick_, 4),
    (poem_, 6),
]
SYSTEMS = [
    "You are a helpful assistant.",
    "You are a friendly assistant. Use simple words.",
    "You are the Lily demo model, a tiny assistant.",
    "Answer briefly.",
    "You are a helpful assistant. Keep answers short.",
]


def single(r):
    return r.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0](r)


def to_msgs(r, m, think):
    out = []
    for x in m:
        if x[0] == "u":
            out.append(dict(role="user", content=x[1]))
        elif x[0] == "t":
            out.append(dict(role="tool", content=x[1]))
        elif x[0] == "c":
            out.append(dict(role="assistant", content="", calls=[(x[1], x[2])], reasoning=x[3] if think else ""))
        else:
            out.append(
                dict(
                    role="assistant",
                    content=x[1],
                    reasoning=(x[2] or "This is simple. I can answer at once.") if think and len(x) > 2 else "",
                )
            )
    return out


def conversation(r, kind=None):
    """one training conversation -> (msgs, tools)"""
    tools = None
    if kind == "story":
        m = story_(r)
    elif kind == "needle":
        m = needle_(r)
    elif kind == "long":
        m = needle_(r, 1200, 3600)
    elif kind == "tool":
        d = tool_(r)
        m, tools = d["msgs"], d["tools"]
    else:
        m = single(r)
        while r.random() < 0.3:
            m = m + single(r)
    msgs = to_msgs(r, m, r.random() < 0.4)
    if r.random() < 0.3:
        msgs = [dict(role="system", content=r.choice(SYSTEMS))] + msgs
    return msgs, tools


if __name__ == "__main__":
    from chatml import render

    r = random.Random(1)
    for k in ("mix",) * 30 + ("tool",) * 4 + ("story",) * 2 + ("needle",):
        print(render(*conversation(r, k)))
